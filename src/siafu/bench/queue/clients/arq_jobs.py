"""arq: jobs in a sorted set of Redis, results kept for an hour."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from arq import create_pool  # type: ignore[import-not-found]
from arq.connections import RedisSettings  # type: ignore[import-not-found]
from arq.worker import Worker, func  # type: ignore[import-not-found]


@contextlib.asynccontextmanager
async def submitting(order: dict[str, Any]) -> AsyncIterator[Callable[[int], Awaitable[Any]]]:
    pool = await create_pool(RedisSettings.from_dsn(order["redis"]), default_queue_name=order["run"])
    yield lambda number: pool.enqueue_job("work", number)
    await pool.aclose()


def worker(order: dict[str, Any], count: Any) -> None:
    async def work(ctx: Any, number: int) -> None:
        with count.task(number):
            if order["ms"]:
                await asyncio.sleep(order["ms"] / 1000)
        count.recorded()

    async def run() -> None:
        settings = RedisSettings.from_dsn(order["redis"])
        functions = [func(work, name="work")]
        one = Worker(functions, queue_name=order["run"], redis_settings=settings, max_jobs=order["slots"])
        await one.async_run()

    asyncio.run(run())
