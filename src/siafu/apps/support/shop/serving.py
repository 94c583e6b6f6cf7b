"""Starting and stopping the shop's server process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PARENT_CHECK = 0.5  # seconds
log = logging.getLogger(__name__)


@asynccontextmanager
async def stop_wanted(parent_pid: int | None = None) -> AsyncIterator[asyncio.Event]:
    """An event that is set at SIGTERM, SIGINT, or when `parent_pid` is no longer our parent process."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    watching = asyncio.create_task(_watch_parent(parent_pid, stop)) if parent_pid else None
    try:
        yield stop
    finally:
        if watching:
            watching.cancel()
        for number in signals:
            loop.remove_signal_handler(number)


async def _watch_parent(pid: int, stop: asyncio.Event) -> None:
    while os.getppid() == pid:  # noqa: ASYNC110 - no portable way to be told
        await asyncio.sleep(PARENT_CHECK)
    log.warning("siafu shop: process %d is not our parent (any more); stopping", pid)
    stop.set()
