"""taskiq: Redis Streams (taskiq-redis), no results kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from taskiq.api import run_receiver_task  # type: ignore[import-not-found]
from taskiq_redis import RedisStreamBroker  # type: ignore[import-not-found]


def _broker(order: dict[str, Any], count: Any) -> tuple[Any, Any]:
    broker: Any = RedisStreamBroker(url=order["redis"], queue_name=order["run"])

    async def work(number: int) -> None:
        with count.task(number):
            if order["ms"]:
                await asyncio.sleep(order["ms"] / 1000)
        count.recorded()

    return broker, broker.register_task(work, task_name="work")


@contextlib.asynccontextmanager
async def submitting(order: dict[str, Any]) -> AsyncIterator[Callable[[int], Awaitable[Any]]]:
    broker, work = _broker(order, None)
    await broker.startup()
    yield lambda number: work.kiq(number)
    await broker.shutdown()


def worker(order: dict[str, Any], count: Any) -> None:
    broker, _ = _broker(order, count)
    broker.is_worker_process = True
    asyncio.run(run_receiver_task(broker, max_async_tasks=order["slots"], run_startup=True))
