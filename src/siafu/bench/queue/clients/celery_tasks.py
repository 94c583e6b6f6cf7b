"""Celery: lists of Redis, a pool of threads; acknowledged late, as lost tasks would be otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from celery import Celery  # type: ignore[import-not-found]


def _app(order: dict[str, Any], count: Any) -> tuple[Any, Any]:
    app: Any = Celery("bench", broker=order["redis"])
    app.conf.update(task_default_queue=order["run"], task_acks_late=True, task_ignore_result=True)
    app.conf.worker_redirect_stdouts = False  # the driver reads them

    def work(number: int) -> None:
        with count.task(number):
            time.sleep(order["ms"] / 1000)
        count.recorded()

    return app, app.task(name="work")(work)


@contextlib.asynccontextmanager
async def submitting(order: dict[str, Any]) -> AsyncIterator[Callable[[int], Awaitable[Any]]]:
    app, work = _app(order, None)
    yield lambda number: asyncio.to_thread(work.delay, number)
    app.close()


def worker(order: dict[str, Any], count: Any) -> None:
    app, _ = _app(order, count)
    app.Worker(pool="threads", concurrency=order["slots"], loglevel="ERROR", quiet=True).start()
