"""How a parent sees that a worker process hangs: its event loop sends a beat through a pipe, until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import msgspec

from siafu.observe.figures import Family
from siafu.pace.clock import Clock

BEAT = 0.5  # seconds from one beat to the next
TICK = 1.0  # seconds between two looks for beats


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker process is told that a parent keeps. pulse: the file descriptor that its beats go to; None = nobody
    looks. died, hung: how often a process in its place had to be started again, and why.
    """

    pulse: int | None = None
    died: int = 0
    hung: int = 0

    def families(self) -> list[Family]:
        """As metrics; those of the next process in its place go on from them."""
        rows = [(("died",), float(self.died)), (("hung",), float(self.hung))]
        about = "Worker processes in this one's place that a parent had to start again, by why"
        return [Family("siafu_worker_restarts", "counter", about, ("reason",), rows)]

    @contextlib.asynccontextmanager
    async def beating(self, clock: Clock) -> AsyncIterator[None]:
        """Beat while the block runs, on its event loop."""
        if self.pulse is None:
            yield
            return
        task = asyncio.create_task(_beat(self.pulse, clock), name="siafu pulse")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            os.close(self.pulse)


async def _beat(pulse: int, clock: Clock) -> None:
    os.set_blocking(pulse, False)
    while True:
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # the parent stands still, or is gone
            os.write(pulse, b".")
        await clock.sleep(BEAT)


async def stands_still(pulse: int, start: float, seconds: float, clock: Clock) -> float:
    """Look for beats: once there was none for `start` seconds, and after the first one for `seconds`, these; 0 when
    there will be none, as the process ends. While this process stands still itself, no time passes for the other.
    """
    os.set_blocking(pulse, False)
    tick = min(TICK, seconds / 4)
    limit, still = start, 0.0
    while still < limit:
        await clock.sleep(tick)
        try:
            beats = os.read(pulse, 65_536)
        except BlockingIOError:
            still += tick
            continue
        if not beats:
            return 0.0
        limit, still = seconds, 0.0
    return limit
