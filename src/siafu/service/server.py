"""The server: uvicorn with limits of our own, drained when it has to stop."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from siafu.border.stopping import Stops
from siafu.border.web import serve_until
from siafu.service.app import App
from siafu.service.exchange import GONE, MAX_HEADERS, Receive, Scope, Send

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
HEADER_SECONDS = 10.0  # for these to arrive
SEND_SECONDS = 60.0  # for a client to take in what waits to be sent to it
IDLE_SECONDS = 75.0  # an unused connection is kept, longer than clients keep theirs
MAX_CONNECTIONS = 20_000
_BAD = b'{"error":{"message":"no valid HTTP request, or its headers are larger than 16 KiB",' + (
    b'"type":"invalid_request_error","param":null,"code":"bad_request"}}'
)


class Guarded(H11Protocol):
    """A connection that has to say what it wants in time, and to take in time what it gets."""

    _deadline: asyncio.TimerHandle | None = None
    _untaken: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base does
        super().connection_made(_Joining(transport, self.loop))
        if len(self.connections) > most_connections():
            transport.abort()
        else:
            self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._expect()  # a further request has begun, or a body is sent that nobody wants
        elif self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._untaken = self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._deadline, self._untaken):
            if timer is not None:
                timer.cancel()
        if self.scope is not None:
            cast("dict[str, Callable[[], None]]", self.scope).get(GONE, _nobody)()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(_BAD)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + _BAD)
        self.transport.close()

    def _expect(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.abort)


def _nobody() -> None:
    """Nothing is under way for the client that has gone."""


class _Joining(asyncio.Transport):
    """A transport that keeps the head of an answer, and what of its body is written in the same turn of the loop, until
    the turn ends: one system call, and mostly one packet. Answers of one turn leave together, so the next requests come
    together, and so do their lines in the ledger.
    """

    def __init__(self, inner: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._inner = inner
        self._loop = loop
        self._waiting: list[bytes] = []
        # what the protocol uses beside `write`
        self.get_extra_info, self.is_closing = inner.get_extra_info, inner.is_closing  # type: ignore[method-assign]
        self.pause_reading, self.resume_reading = inner.pause_reading, inner.resume_reading  # type: ignore[method-assign]
        self.abort, self.set_protocol = inner.abort, inner.set_protocol  # type: ignore[method-assign]

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._waiting:
            self._waiting.append(bytes(data))
        elif bytes(data[:5]) == b"HTTP/":
            self._waiting.append(bytes(data))
            self._loop.call_soon(self._flush)
        elif data:
            self._inner.write(data)

    def close(self) -> None:
        self._flush()
        self._inner.close()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._inner.write(b"".join(waiting))


def most_connections() -> int:
    """Connections at once: each may need one to the upstream, and files are limited."""
    return min(MAX_CONNECTIONS, max(32, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 64) // 2))


def more_files() -> None:
    """As many open files as this process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if most == resource.RLIM_INFINITY else most
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


async def serve(
    app: App, listening: socket.socket, stops: Stops, *, grace: float, on_ready: Callable[[], None] = lambda: None
) -> bool:
    """Serve until asked to stop; requests that run then have `grace` seconds to end, new ones are refused meanwhile.
    on_ready: called once requests are served. True when every request came to its own end.
    """

    async def end() -> bool:
        await stops.asked.wait()
        return await app.drain(grace, stops.hurry)

    return await serve_until(end, _config(app), listening, on_ready)


@contextlib.asynccontextmanager
async def served_beside(app: Asgi, listening: socket.socket) -> AsyncIterator[None]:
    """Serve `app` while the block runs."""
    over = asyncio.Event()
    serving = asyncio.create_task(serve_until(over.wait, _config(app), listening, lambda: None))
    try:
        yield
    finally:
        over.set()
        await serving


def _config(app: Asgi) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Guarded,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",  # the app tells its own faults; what scanners send is no news
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEADERS,
        timeout_keep_alive=int(IDLE_SECONDS),
        timeout_graceful_shutdown=2,
    )
