"""Time as an argument. `SystemClock` for running, `VirtualClock` for tests without waiting."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic seconds; the base of every deadline."""
        ...

    def wall(self) -> float:
        """Seconds since 1970 (UTC), for records and for dates that upstreams send."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait at least `seconds`; a value <= 0 only yields to other tasks."""
        ...


class SystemClock:
    """The machine's clock."""

    now = staticmethod(time.monotonic)  # the functions themselves: a call asks a dozen times
    wall = staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class VirtualClock:
    """A clock that stands still until every task waits on it, then jumps to the next wake-up.

    It can only see waits made through `sleep`; work on real sockets or threads does not hold it back, so use it for
    logic without them. Time starts at 1,000,000 s (monotonic) and 2026-01-01 00:00 UTC (wall).
    """

    def __init__(self) -> None:
        self._now = 1_000_000.0
        self._offset = 1_767_225_600.0 - self._now
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._driver: asyncio.Task[None] | None = None

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self._offset

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        await future

    async def _drive(self) -> None:
        while self._sleepers:
            for _ in range(50):  # let everything that can run settle before time moves
                await asyncio.sleep(0)
            due, _, future = heapq.heappop(self._sleepers)
            if future.done():  # its waiter was cancelled
                continue
            self._now = max(self._now, due)
            future.set_result(None)
