"""A model endpoint over raw TCP that sends any bytes at any time, and records what arrived and when."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

OK: dict[str, Any] = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
}


@dataclass
class Arrival:
    """One request. `headers`: lower-case names."""

    at: float
    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = bytes | Callable[[asyncio.StreamWriter, Arrival], Awaitable[None]]


def http(body: bytes | str | dict[str, Any], status: int = 200, **headers: str) -> bytes:
    """A whole HTTP response. Header names are given with underscores."""
    if isinstance(body, dict):
        body, headers = json.dumps(body).encode(), {"content_type": "application/json", **headers}
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} X", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    if "content_length" not in headers:
        lines.append(f"content-length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode() + data


def error(status: int, message: str = "no", *, code: str | None = None, type: str = "error", **headers: str) -> bytes:
    """An error in OpenAI's shape."""
    return http({"error": {"message": message, "type": type, "code": code}}, status, **headers)


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def http_chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def sse(*events: dict[str, Any] | str) -> bytes:
    """A whole streamed response; a str is the data as it stands."""
    lines = "".join(f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n" for e in events)
    return SSE_HEAD + http_chunk(lines.encode()) + http_chunk(b"")


def piece(content: str | None = None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """A chunk of a streamed answer."""
    if content is not None:
        delta["content"] = content
    return {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


@dataclass
class FakeUpstream:
    """Plays `script`: answers in order of arrival (the last one again and again), or a function of the request."""

    script: Iterable[Answer] | Callable[[Arrival], Answer]
    arrivals: list[Arrival] = field(default_factory=list)
    connections: set[_Connection] = field(default_factory=set)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight: int = 0
    peak: int = 0
    port: int = 0
    stop_listening: Callable[[], None] = lambda: None  # connections that are open stay

    def __post_init__(self) -> None:
        self._answers = None if callable(self.script) else iter(self.script)
        self._last: Answer = http(OK)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (arrival := await _read_request(reader)) is not None:
                await self._answer(arrival, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, arrival: Arrival, writer: asyncio.StreamWriter) -> None:
        self.arrivals.append(arrival)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        self.changed.set()
        try:
            if self._answers is None:
                assert callable(self.script)
                answer = self.script(arrival)
            else:
                answer = self._last = next(self._answers, self._last)
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(writer, arrival)
        finally:
            self.in_flight -= 1

    async def until(self, true: Callable[[], bool], within: float = 5.0) -> bool:
        """Wait until something holds after an arrival, an answer or the end of a connection."""
        async with asyncio.timeout(within):
            while not true():
                self.changed.clear()
                await self.changed.wait()
        return True

    async def all_closed(self) -> bool:
        """True once no connection is open."""
        return await self.until(lambda: not self.connections)


class _Connection(asyncio.Protocol):
    """One connection: its request loop is cancelled as soon as the client goes away."""

    def __init__(self, fake: FakeUpstream) -> None:
        self._fake = fake
        self._reader = asyncio.StreamReader(limit=2**24)
        self._streams = asyncio.StreamReaderProtocol(self._reader)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._fake.connections.add(self)
        self._streams.connection_made(transport)
        loop = asyncio.get_running_loop()
        writer = asyncio.StreamWriter(transport, self._streams, self._reader, loop)
        self._task = loop.create_task(self._fake.serve(self._reader, writer))

    def data_received(self, data: bytes) -> None:
        self._streams.data_received(data)

    def eof_received(self) -> bool:
        self._streams.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._streams.connection_lost(exc)
        self._fake.connections.discard(self)
        self._fake.changed.set()
        self._task.cancel()

    def pause_writing(self) -> None:
        self._streams.pause_writing()

    def resume_writing(self) -> None:
        self._streams.resume_writing()

    def end(self) -> None:
        self._transport.abort()


async def _read_request(reader: asyncio.StreamReader) -> Arrival | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    line, *rest = head.split("\r\n")
    headers = {k.strip().lower(): v.strip() for k, _, v in (h.partition(":") for h in rest if h)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Arrival(time.monotonic(), line, headers, body)


@asynccontextmanager
async def upstream(script: Iterable[Answer] | Callable[[Arrival], Answer] = ()) -> AsyncIterator[FakeUpstream]:
    """A fake upstream on a free port of 127.0.0.1."""
    fake = FakeUpstream(script)
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(fake), "127.0.0.1", 0, backlog=4096)
    fake.port, fake.stop_listening = server.sockets[0].getsockname()[1], server.close
    try:
        yield fake
    finally:
        server.close()
        for connection in list(fake.connections):
            connection.end()
        await fake.all_closed()


def trickle(*pieces: bytes, gap: float, hang: float = 0.0) -> Answer:
    """Bytes with `gap` seconds between them, and then silence for `hang` seconds."""

    async def send(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
        for part in pieces:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(gap)
        await asyncio.sleep(hang)

    return send


def reset_after(data: bytes) -> Answer:
    """Bytes and then a TCP reset."""

    async def send(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(0.05)  # so that the bytes are read before the reset overtakes them
        writer.transport.abort()
        raise ConnectionResetError

    return send


def close_after(data: bytes) -> Answer:
    """Bytes and then an orderly close."""

    async def send(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
        writer.write(data)
        await writer.drain()
        raise ConnectionResetError

    return send
