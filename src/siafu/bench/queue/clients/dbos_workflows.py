"""DBOS: durable workflows in PostgreSQL, from one of its queues."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from dbos import DBOS, DBOSClient  # type: ignore[import-not-found]

QUEUE = "bench"


@contextlib.asynccontextmanager
async def submitting(order: dict[str, Any]) -> AsyncIterator[Callable[[int], Awaitable[Any]]]:
    DBOS.migrate(order["database"])  # the worker may not have made its tables yet
    client = DBOSClient(system_database_url=order["database"])
    options: Any = {"queue_name": QUEUE, "workflow_name": "work"}
    yield lambda number: client.enqueue_async(options, number)
    client.destroy()


def worker(order: dict[str, Any], count: Any) -> None:
    DBOS(config={"name": "bench", "system_database_url": order["database"], "log_level": "ERROR"})

    async def work(number: int) -> None:
        with count.task(number):
            if order["ms"]:
                await asyncio.sleep(order["ms"] / 1000)
        count.recorded()

    DBOS.workflow(name="work")(work)
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=order["slots"])
    threading.Event().wait()
