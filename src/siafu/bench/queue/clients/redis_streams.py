"""Redis Streams alone: one group, entries removed once they are done. Nothing is remembered of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

GROUP = "workers"


def _redis(order: dict[str, Any]) -> Any:
    return Redis.from_url(order["redis"], protocol=2, max_connections=order["submitters"] + order["slots"])


@contextlib.asynccontextmanager
async def submitting(order: dict[str, Any]) -> AsyncIterator[Callable[[int], Awaitable[Any]]]:
    stream = order["run"]
    async with _redis(order) as redis:
        yield lambda number: redis.xadd(stream, {"n": number})
        await redis.delete(stream)


def worker(order: dict[str, Any], count: Any) -> None:
    asyncio.run(_work(order, count))


async def _work(order: dict[str, Any], count: Any) -> None:
    stream, slots = order["run"], order["slots"]
    running: set[asyncio.Task[None]] = set()
    async with _redis(order) as redis:
        with contextlib.suppress(ResponseError):  # it is there
            await redis.xgroup_create(stream, GROUP, id="0", mkstream=True)

        async def do(entry: bytes, number: int) -> None:
            with count.task(number):
                if order["ms"]:
                    await asyncio.sleep(order["ms"] / 1000)
            async with redis.pipeline(transaction=False) as pipe:
                await pipe.xack(stream, GROUP, entry).xdel(stream, entry).execute()
            count.recorded()

        while True:
            if len(running) >= slots:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            most = min(10, max(1, slots - len(running)))
            found = await redis.xreadgroup(GROUP, "one", {stream: ">"}, count=most, block=2000)
            for entry, fields in found[0][1] if found else ():
                task = asyncio.create_task(do(entry, int(fields[b"n"])))
                running.add(task)
                task.add_done_callback(running.discard)
