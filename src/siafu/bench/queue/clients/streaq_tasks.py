"""streaq: Redis Streams, results in Redis."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from streaq import Worker  # type: ignore[import-not-found]


def _worker(order: dict[str, Any], count: Any) -> tuple[Any, Any]:
    one: Any = Worker(redis_url=order["redis"], concurrency=order["slots"], queue_name=order["run"])

    async def work(number: int) -> None:
        with count.task(number):
            if order["ms"]:
                await asyncio.sleep(order["ms"] / 1000)
        count.recorded()

    return one, one.task()(work)


@contextlib.asynccontextmanager
async def submitting(order: dict[str, Any]) -> AsyncIterator[Callable[[int], Awaitable[Any]]]:
    one, work = _worker(order, None)

    async def submit(number: int) -> None:
        await work.enqueue(number)

    async with one:
        yield submit


def worker(order: dict[str, Any], count: Any) -> None:
    _worker(order, count)[0].run_sync()
