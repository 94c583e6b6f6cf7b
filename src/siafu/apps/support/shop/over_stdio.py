"""MCP over stdin and stdout: one JSON-RPC message a line."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from typing import Any, BinaryIO

import msgspec
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from siafu.apps.support.shop.wire import MAX_MESSAGE, Unusable, checked

DRAIN = 5.0  # seconds that calls still running get after stdin has ended


async def serve_stdio(server: Server[Any], stop: asyncio.Event) -> None:
    """Serve one client until it closes stdin (calls still running are answered first) or `stop` is set."""
    serving = asyncio.create_task(_serve(server, _Wire(*_take_standard_streams())))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        serving.cancel()
        await asyncio.wait((serving, stopping))
    if not serving.cancelled():
        serving.result()


async def _serve(server: Server[Any], wire: _Wire) -> None:
    async with stdio_server(stdin=wire, stdout=wire) as (read, write):  # type: ignore[arg-type]
        await server.run(read, write, server.create_initialization_options())


def _take_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """stdin and stdout for the protocol alone: from now on, what is printed goes to stderr and stdin is empty."""
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return os.fdopen(source, "rb"), os.fdopen(sink, "wb", buffering=0)


class _Head(msgspec.Struct):
    """The part of a message that says which answer belongs to which request."""

    id: str | int | None = None
    method: str | None = None
    params: Any = None


class _Wire:
    """The two ends of the line in the form the library uses them: iterated over, written to, flushed.

    stdin is read by a daemon thread, since a blocking read cannot be cancelled and must not hold up the end.
    """

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink
        self._lines: asyncio.Queue[bytes] = asyncio.Queue(maxsize=64)
        self._unanswered: set[str | int | None] = set()
        self._answered = asyncio.Event()
        self._one_writer = asyncio.Lock()

    async def __aiter__(self) -> AsyncIterator[str]:
        threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True).start()
        while line := await self._lines.get():
            if not line.strip():
                continue
            try:
                message = checked(line)
            except Unusable as unusable:
                await self._send(msgspec.json.encode(unusable.reply))
                continue
            self._note_request(message)
            yield message
        await self._drain()

    async def write(self, text: str) -> None:
        """Send one message (the library ends it with a line break)."""
        await self._send(text.rstrip("\n").encode())
        self._unanswered.discard(msgspec.json.decode(text, type=_Head).id)
        self._answered.set()

    async def flush(self) -> None:
        """Nothing is kept back."""

    async def _send(self, message: bytes) -> None:
        try:
            async with self._one_writer:
                await asyncio.to_thread(_write_all, self._sink, message + b"\n")
        except BrokenPipeError:  # the client has gone; reading will end as well
            self._unanswered.clear()

    def _note_request(self, message: str) -> None:
        try:
            head = msgspec.json.decode(message, type=_Head)
        except msgspec.ValidationError:  # the library answers or ignores what is no request
            return
        if head.method == "notifications/cancelled" and isinstance(head.params, dict):
            self._unanswered.discard(head.params.get("requestId"))
        elif head.method and head.id is not None:
            self._unanswered.add(head.id)

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(DRAIN):
                while self._unanswered:
                    self._answered.clear()
                    await self._answered.wait()
        except TimeoutError:
            pass

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Lines of at most MAX_MESSAGE bytes, then b"" for the end. The rest of a longer line is thrown away."""
        while True:
            line = self._source.readline(MAX_MESSAGE + 2)
            asyncio.run_coroutine_threadsafe(self._lines.put(line), loop).result()
            while len(line) == MAX_MESSAGE + 2 and not line.endswith(b"\n"):
                line = self._source.readline(MAX_MESSAGE + 2)
            if not line:
                return


def _write_all(sink: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[sink.write(view) :]
