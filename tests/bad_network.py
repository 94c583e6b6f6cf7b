"""A TCP proxy that does to connections what networks and dying servers do to them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Literal

END = -1  # of the bytes that may pass: all of them


@dataclass(frozen=True, kw_only=True)
class Weather:
    """What happens to a connection. Seconds and bytes.

    latency: before each piece of an answer. piece: bytes that pass at a time, as many as come when None. gap: after
    each. passes: bytes of answers that pass before `then` happens. deaf: nothing that a client sends gets through.
    """

    latency: float = 0.0
    piece: int | None = None
    gap: float = 0.0
    passes: int = END
    then: Literal["hang", "reset", "close"] = "hang"
    deaf: bool = False


class _Link:
    """One connection, on both sides."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter, weather: Weather) -> None:
        self.client = client
        self.server = server
        self.weather = weather
        self.passed = 0

    async def answers(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(2**16):
            for start in range(0, len(data), self.weather.piece or len(data)):
                weather = self.weather
                await asyncio.sleep(weather.latency)
                part = data[start : start + (weather.piece or len(data))]
                if weather.passes != END and self.passed + len(part) >= weather.passes:
                    await self._end(part[: weather.passes - self.passed], weather)
                self.passed += len(part)
                self.client.write(part)
                await self.client.drain()
                await asyncio.sleep(weather.gap)

    async def questions(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(2**16):
            if not self.weather.deaf:
                self.server.write(data)
                await self.server.drain()

    async def _end(self, last: bytes, weather: Weather) -> None:
        if last:
            self.client.write(last)
            await self.client.drain()
            await asyncio.sleep(0.02)  # so that it is read before a reset overtakes it
        if weather.then == "hang":
            await asyncio.Event().wait()
        if weather.then == "reset":
            linger = struct.pack("ii", 1, 0)
            self.client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        raise ConnectionResetError


@dataclass
class BadNetwork:
    """A proxy in front of `port`. `weather` is that of connections to come."""

    port: int
    weather: Weather = field(default_factory=Weather)
    came: int = 0
    links: set[_Link] = field(default_factory=set)
    at: int = 0  # its own port

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.at}/v1"

    def forget(self) -> None:
        """What comes on a connection that is open leads nowhere from now on."""
        for link in self.links:
            link.weather = Weather(deaf=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.came += 1
        try:
            behind, server = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return  # there is nobody; the client learns it
        link = _Link(writer, server, self.weather)
        self.links.add(link)
        ways = [asyncio.create_task(link.answers(behind)), asyncio.create_task(link.questions(reader))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self.links.discard(link)
            server.close()


@contextlib.asynccontextmanager
async def bad_network(port: int, weather: Weather | None = None) -> AsyncIterator[BadNetwork]:
    """A proxy on a free port of 127.0.0.1."""
    proxy = BadNetwork(port, weather or Weather())
    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(proxy.serve(reader, writer))
        serving[task] = writer
        task.add_done_callback(lambda ended: serving.pop(ended).close())

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    proxy.at = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for writer in serving.values():
            writer.transport.abort()
        await asyncio.gather(*serving, return_exceptions=True)
