"""uvicorn, told when to stop by us instead of by signals."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import uvicorn

T = TypeVar("T")


async def serve_until(
    end: Callable[[], Awaitable[T]], config: uvicorn.Config, listening: socket.socket, on_ready: Callable[[], None]
) -> T:
    """Serve on `listening` until `end()` returns, and return that once the server has closed its connections. on_ready:
    called when requests are served.
    """
    web = _Web(config, on_ready)

    async def stop() -> T:
        try:
            return await end()
        finally:
            web.should_exit = True

    ending = asyncio.create_task(stop())
    try:
        await web.serve(sockets=[listening])
        return await ending
    finally:
        ending.cancel()


class _Web(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()
