"""What a worker says of itself while it runs, and how many slots it has by what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

from siafu.errors import StoreError
from siafu.pace.clock import Clock
from siafu.pace.slots import Slots
from siafu.queue.worker import Worker
from siafu.store.workers import Standing, Workers

EVERY = 2.0  # seconds between two words
QUICK = 1.0  # seconds within which an answer says what the database's clock shows
LEAVE_SECONDS = 2.0  # to say good-bye; whoever does not is stale soon


class Attendance:
    """Runs beside a worker, on its event loop: when that hangs, the worker falls silent. version: siafu's own. slots:
    sets the worker's. waiting: how many of its calls wait for an endpoint.
    """

    def __init__(self, workers: Workers, slots: Slots, waiting: Callable[[], int], clock: Clock, version: str) -> None:
        self._workers = workers
        self._slots = slots
        self._waiting = waiting
        self._clock = clock
        self._version = version
        self._skew = 0.0

    async def run(self, worker: Worker) -> None:
        """Until it is cancelled; then it says that the worker has ended. A database that is away is tried again."""
        worker.slots = self._slots.count
        try:
            while True:
                with contextlib.suppress(StoreError):  # the worker says so itself
                    ready = await self._say(worker)
                    now, waiting = self._clock.now(), self._waiting()
                    worker.slots = self._slots.look(now, ready=ready, busy=worker.busy, waiting=waiting)
                await self._clock.sleep(EVERY)
        finally:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._workers.leave(worker.name)

    async def _say(self, worker: Worker) -> int:
        standing = Standing(
            name=worker.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=self._version,
            slots=worker.slots,
            least=self._slots.least,
            most=self._slots.most,
            draining=worker.draining,
            skew=self._skew,
        )
        before = self._clock.wall()
        heard = await self._workers.say(standing, worker.kinds)
        after = self._clock.wall()
        if after - before <= QUICK:
            self._skew = (before + after) / 2 - heard.now
        return heard.ready
