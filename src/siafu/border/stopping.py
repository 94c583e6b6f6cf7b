"""When a server process has to end: at a signal, or with the process that started it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator

import msgspec

PARENT_CHECK = 0.5  # seconds
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
log = logging.getLogger("siafu")


class Stops(msgspec.Struct):
    """`asked`: the server shall finish what runs, and end. `hurry`: at once."""

    asked: asyncio.Event
    hurry: asyncio.Event

    def signal(self) -> None:
        """A signal: the first asks, a second one hurries."""
        (self.hurry if self.asked.is_set() else self.asked).set()


@contextlib.asynccontextmanager
async def stopping(parent_pid: int | None = None) -> AsyncIterator[Stops]:
    """SIGTERM, SIGINT and the end of our parent process `parent_pid`, None = nobody's, while the block runs."""
    loop, stops = asyncio.get_running_loop(), Stops(asyncio.Event(), asyncio.Event())
    for number in _SIGNALS:
        loop.add_signal_handler(number, stops.signal)
    watching = asyncio.create_task(_watch_parent(parent_pid, stops)) if parent_pid else None
    try:
        yield stops
    finally:
        if watching:
            watching.cancel()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _watch_parent(pid: int, stops: Stops) -> None:
    while os.getppid() == pid:  # noqa: ASYNC110 - no portable way to be told
        await asyncio.sleep(PARENT_CHECK)
    log.warning("siafu: process %d is not our parent (any more); stopping", pid)
    stops.asked.set()
