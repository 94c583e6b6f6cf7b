"""What may happen to a Redis, by name: each is broken while its block runs, and whole again behind it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from bad_network import BadNetwork, Weather, bad_network
from services import Server, free_port, redis_command, running_redis


class Town:
    """A Redis, and a bad network in front of it. stream: where notes are."""

    def __init__(self, server: Server, network: BadNetwork, stream: str) -> None:
        self.server, self.network, self.stream = server, network, stream

    def url(self, fault: str) -> str:
        """Where to reach it, so that `fault` counts."""
        return f"redis://127.0.0.1:{self.network.at if fault in IN_THE_NETWORK else self.server.port}/0"

    def command(self, *words: str) -> bytes:
        return redis_command(self.server.port, *words)


Fault = Callable[[Town], AbstractAsyncContextManager[None]]
FAULTS: dict[str, Fault] = {}
IN_THE_NETWORK = ("slow", "black hole", "connections reset")
AT_ONCE = ("restarted without its data", "restarted with its data", "FLUSHALL", "stream deleted", "group destroyed",
           "clients disconnected")  # fmt: skip


def fault(name: str) -> Callable[[Callable[[Town], AsyncIterator[None]]], Fault]:
    def named(way: Callable[[Town], AsyncIterator[None]]) -> Fault:
        FAULTS[name] = found = asynccontextmanager(way)
        return found

    return named


def commands(name: str, breaks: str, mends: str = "") -> None:
    """A fault that Redis is told to have; KEY stands for the stream, several commands are separated by ;"""

    @fault(name)
    async def told(town: Town) -> AsyncIterator[None]:
        for words in (breaks, mends):
            for command in filter(None, words.split(";")):
                answer = town.command(*command.replace("KEY", town.stream).split())
                assert not answer.startswith(b"-") or b"requires the key to exist" in answer, answer
            if words == breaks:
                yield


commands("FLUSHALL", "FLUSHALL")
commands("stream deleted", "DEL KEY")
commands("group destroyed", "XGROUP DESTROY KEY workers")
commands("clients disconnected", "CLIENT KILL TYPE normal")
commands("another thing under its name", "DEL KEY;SET KEY x", "DEL KEY")
commands(
    "out of memory",
    "CONFIG SET maxmemory-policy noeviction;CONFIG SET maxmemory 1",
    "CONFIG SET maxmemory 0",
)
commands("paused", "CLIENT PAUSE 600000 WRITE", "CLIENT UNPAUSE")
commands("no rights", "ACL SETUSER default -@stream", "ACL SETUSER default +@all")
commands("read-only", f"REPLICAOF 127.0.0.1 {free_port()}", "REPLICAOF NO ONE")


@fault("killed")
async def killed(town: Town) -> AsyncIterator[None]:
    town.server.kill()
    yield
    town.server.start()


@fault("restarted without its data")
async def restarted(town: Town) -> AsyncIterator[None]:
    town.server.kill()
    town.server.start()
    yield


@fault("restarted with its data")
async def recovered(town: Town) -> AsyncIterator[None]:
    """The server begins with its append-only file, loading it."""
    town.command("CONFIG", "SET", "appendfsync", "always")
    town.command("CONFIG", "SET", "appendonly", "yes")
    deadline = time.monotonic() + 20
    while b"aof_rewrite_in_progress:1" in town.command("INFO", "persistence"):
        assert time.monotonic() < deadline
    command = town.server._command
    town.server._command = lambda port: [*command(port), "--appendonly", "yes"]
    town.server.kill()
    town.server.start()
    town.server._command = command
    yield


@fault("stopped")
async def stopped(town: Town) -> AsyncIterator[None]:
    os.kill(town.server.pid, signal.SIGSTOP)
    yield
    os.kill(town.server.pid, signal.SIGCONT)


@asynccontextmanager
async def a_town(stream: str) -> AsyncIterator[Town]:
    with running_redis() as server:
        async with bad_network(server.port) as network:
            yield Town(server, network, stream)


def weather(name: str, bad: Weather) -> None:
    @fault(name)
    async def changed(town: Town) -> AsyncIterator[None]:
        for now in (bad, Weather()):
            town.network.weather = now
            for link in town.network.links:
                link.weather = now
            if now is bad:
                yield


weather("slow", Weather(latency=1.0))
weather("black hole", Weather(deaf=True))
weather("connections reset", Weather(passes=0, then="reset"))
