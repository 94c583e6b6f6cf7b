"""Sends requests when they are planned, whatever becomes of those before (open loop); prints them as JSON.

    python -m siafu.bench.surge.load '{"url":"http://127.0.0.1:8080/v1","give_up":40,"surge":{...}}'

A time counts from when the request was planned, so a server, or this process, that falls behind is seen in each request
that had to wait for it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import aiohttp
import msgspec

from siafu.bench.gateway.drive import BODY, raise_file_limit
from siafu.bench.surge.figures import Came
from siafu.bench.surge.plan import Surge
from siafu.config.collector import relieve_collector

_DATA = msgspec.json.encode(BODY)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """give_up: seconds after which a client waits no more."""

    url: str
    give_up: float
    surge: Surge


async def load(order: Order) -> list[Came]:
    came: list[Came] = []
    timeout = aiohttp.ClientTimeout(total=order.give_up)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session,
        asyncio.TaskGroup() as group,
    ):
        began = time.perf_counter()
        for planned, interactive in order.surge.times():
            if (early := began + planned - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            group.create_task(_ask(session, order.url, began, planned, interactive, came))
    return came


async def _ask(
    session: aiohttp.ClientSession, url: str, began: float, planned: float, interactive: bool, came: list[Came]
) -> None:
    left = time.perf_counter() - began
    headers = {"Content-Type": "application/json", "x-siafu-priority": "1" if interactive else "3"}
    status, told = 0, False
    try:
        async with session.post(f"{url}/chat/completions", data=_DATA, headers=headers) as reply:
            await reply.read()
            status, told = reply.status, "retry-after" in reply.headers
    except (aiohttp.ClientError, TimeoutError):
        pass  # status 0 says so
    seconds = time.perf_counter() - began - planned
    came.append(
        Came(planned=planned, late=left - planned, interactive=interactive, status=status, told=told, seconds=seconds)
    )


if __name__ == "__main__":
    raise_file_limit()
    relieve_collector()
    found: Any = asyncio.run(load(msgspec.json.decode(sys.argv[1], type=Order)))
    sys.stdout.buffer.write(msgspec.json.encode(found))
