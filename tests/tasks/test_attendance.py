"""What a worker says of itself while it runs, and its slots, which follow the work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from siafu.border.stopping import Stops
from siafu.errors import StoreError
from siafu.pace import slots as slots_module
from siafu.pace.clock import SystemClock
from siafu.pace.slots import Slots
from siafu.queue import attendance as module
from siafu.queue.attendance import Attendance
from siafu.queue.doorbell import Doorbell
from siafu.queue.worker import Outcome, Tally, Worker, WorkerOptions
from siafu.store.task_journal import TaskJournal
from siafu.store.task_records import Lease, Succeeded
from siafu.store.workers import Present, Workers
from store.task_house import KIND, House, new

SECONDS = 20.0


class Clock(SystemClock):
    """A host whose clock is a minute ahead."""

    def wall(self) -> float:
        return time.time() + 60.0


class Site:
    def __init__(self, house: House) -> None:
        self.house, self.workers, self.waiting = house, Workers(house.database), 0
        self.stops, self.go = Stops(asyncio.Event(), asyncio.Event()), asyncio.Event()

    def work(self, least: int, most: int, **options: Any) -> asyncio.Task[Tally]:
        async def handle(lease: Lease, journal: TaskJournal) -> Outcome:
            await self.go.wait()
            return Succeeded("1")

        attendance = Attendance(self.workers, Slots(least, most), lambda: self.waiting, Clock(), "0.1")
        wanted = WorkerOptions(**{"slots": least, "poll": 0.02, "lease": 15.0, **options})
        handlers: Any = {KIND: handle}
        worker = Worker("서버:7", self.house.store, handlers, Doorbell(), SystemClock(), wanted, attendance.run)
        return asyncio.create_task(worker.run(self.stops))

    async def seen(self, **wanted: Any) -> Present:
        """The worker, once it is seen so."""
        async with asyncio.timeout(SECONDS):
            while True:
                for found in await self.workers.all():
                    if all(getattr(found, name) == value for name, value in wanted.items()):
                        return found
                await asyncio.sleep(0.01)


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setattr(module, "EVERY", 0.03)
    monkeypatch.setattr(slots_module, "GROW", 0.01)
    found = Site(House(f"sqlite:///{tmp_path / 'tasks.db'}"))
    yield found
    await found.house.aclose()


async def test_a_worker_says_that_it_is_there_what_it_holds_and_when_it_stops(site: Site) -> None:
    await site.house.added(new(), new())
    run = site.work(4, 4)
    found = await site.seen(busy=2, state="alive")
    assert (found.name, found.slots, found.least, found.most, found.version) == ("서버:7", 4, 4, 4, "0.1")
    site.stops.signal()
    await site.seen(state="draining", busy=2)
    site.go.set()
    assert (await run).left == {"succeeded": 2}
    assert await site.workers.all() == []


async def test_a_clock_that_is_wrong_is_seen(site: Site) -> None:
    run = site.work(1, 1)
    async with asyncio.timeout(SECONDS):
        while not (found := await site.seen()).skew:
            await asyncio.sleep(0.01)
    assert 55 < found.skew < 65
    site.stops.signal()
    await run


async def test_slots_follow_the_work_and_not_beyond_what_the_endpoint_takes(site: Site) -> None:
    await site.house.added(*(new() for _ in range(40)))
    site.waiting = 1
    run = site.work(2, 16, poll=60.0)  # what it has more of is filled at once, not at the next look
    await site.seen(busy=2)
    await asyncio.sleep(0.2)
    await site.seen(busy=2, slots=2)  # calls wait for the endpoint: more slots would be of no use
    site.waiting = 0
    found = await site.seen(busy=16, slots=16)
    assert (found.least, found.most) == (2, 16)
    site.go.set()
    site.stops.signal()
    assert (await run).left == {"succeeded": 16}


async def test_a_database_that_is_away_is_told_again_when_it_is_back(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> Any:
        raise StoreError("away")

    with monkeypatch.context() as patch:
        patch.setattr(site.workers, "say", away)
        run = site.work(1, 1)
        await asyncio.sleep(0.2)
        assert await site.workers.all() == [] and not run.done()
    await site.seen(state="alive")
    site.stops.signal()
    await run


async def test_one_task_that_waits_twice_is_one_task() -> None:
    tally = Tally()
    for state in ("waiting", "ready", "waiting"):
        tally.note("t_1", state)
    tally.note("t_2", "waiting")
    tally.note("t_3", "failed")
    assert tally.left == {"waiting": 2, "failed": 1}
    tally.note("t_1", "succeeded")
    assert tally.left == {"waiting": 1, "failed": 1, "succeeded": 1}


def test_what_is_remembered_of_tasks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siafu.queue.worker.MAX_OPEN", 3)
    tally = Tally()
    for number in range(10):
        tally.note(f"t_{number}", "waiting")
    assert tally.left == {"waiting": 10} and len(tally._open) == 3
