"""A store, a bell and workers, with leases of half a second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from siafu.border.stopping import Stops
from siafu.pace.clock import SystemClock
from siafu.queue.doorbell import Doorbell
from siafu.queue.worker import Outcome, Tally, Worker, WorkerOptions
from siafu.store.task_journal import TaskJournal
from siafu.store.task_records import Lease, Succeeded
from store.task_house import KIND, House

LEASE = 0.5
SECONDS = 30.0  # the longest that anything here may take


class Site:
    """A store, a bell, and workers with one handler."""

    def __init__(self, url: str) -> None:
        self.bell = Doorbell()
        self.house = House(url)
        self.house.store._rung = self.bell.ring
        self.stops = Stops(asyncio.Event(), asyncio.Event())
        self.workers: list[Worker] = []
        self.runs: list[asyncio.Task[Tally]] = []

    def work(self, handler: Callable[[Lease, TaskJournal], Awaitable[Outcome]], **options: Any) -> asyncio.Task[Tally]:
        options = {"slots": 4, "lease": LEASE, "poll": 0.1, "grace": 5.0, **options}
        name = f"w{len(self.workers)}"
        handlers: Any = dict.fromkeys(options.pop("kinds", (KIND,)), handler)
        worker = Worker(name, self.house.store, handlers, self.bell, SystemClock(), WorkerOptions(**options))
        self.workers.append(worker)
        self.runs.append(asyncio.create_task(worker.run(self.stops)))
        return self.runs[-1]

    async def until(self, state: str, number: int = 1) -> None:
        async with asyncio.timeout(SECONDS):
            while (await self.house.states())[state] != number:
                await asyncio.sleep(0.02)

    async def aclose(self) -> None:
        for run in self.runs:
            run.cancel()
        await asyncio.gather(*self.runs, return_exceptions=True)
        await self.house.aclose()


async def quick(lease: Lease, journal: TaskJournal) -> Outcome:
    return Succeeded('"done"')


def lasting(seconds: float) -> Any:
    async def work(lease: Lease, journal: TaskJournal) -> Outcome:
        await asyncio.sleep(seconds)
        return Succeeded('"done"')

    return work
