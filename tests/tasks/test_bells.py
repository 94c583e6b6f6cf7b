"""The contract of bells. Workers would look for themselves only when the test is over, where nothing else is said."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import pytest

from siafu.border.secrets import Secret
from siafu.pace.clock import SystemClock
from siafu.queue import redis_bell
from siafu.queue.doorbell import Doorbell, ringing
from siafu.queue.redis_bell import RedisBell
from siafu.queue.worker import Outcome
from siafu.store.task_journal import TaskJournal
from siafu.store.task_records import Lease, Succeeded
from store.task_house import new

from .site import SECONDS, Site, lasting, quick

NEVER = 10 * SECONDS
KINDS = ["within a process", "postgresql", "redis and postgresql", "redis and sqlite"]


@pytest.fixture(autouse=True)
def _patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """No ring is lost because the machine is busy."""
    monkeypatch.setattr(redis_bell, "SLOW", SECONDS)


class Town:
    """Tasks in one database; every site is as good as a process of its own, unless the bell is one of a process."""

    def __init__(self, url: str, redis: str, stack: AsyncExitStack) -> None:
        self._url, self._redis, self._stack = url, redis, stack
        self.one: Doorbell | None = None
        self.notices: list[str] = []
        self.count = 0

    async def site(self, *, listens: bool = True) -> Site:
        """A site whose bell works until the town ends."""
        site = Site(self._url)
        self._stack.push_async_callback(site.aclose)
        self.count += 1
        if self._redis:
            site.bell = bell = RedisBell(
                Secret(self._redis), "place", reader=f"r{self.count}" if listens else None, clock=SystemClock(),
                rng=Random(1), notice=self.notices.append,
            )  # fmt: skip
            await self._stack.enter_async_context(bell.open())
        elif self.one is not None:
            site.bell = self.one
        elif listens:
            heard = asyncio.Event()
            with site.bell.heard(heard.set):
                await self._stack.enter_async_context(ringing(site.bell, site.house.database))
                await heard.wait()
        site.house.store._rung = site.bell.ring
        return site


@pytest.fixture(params=KINDS)
async def town(request: pytest.FixtureRequest, tmp_path: object) -> AsyncIterator[Town]:
    kind = request.param
    url = request.getfixturevalue("postgres_url") if "postgresql" in kind else f"sqlite:///{tmp_path}/tasks.db"
    redis = request.getfixturevalue("redis_url") if "redis" in kind else ""
    async with asyncio.timeout(2 * SECONDS), AsyncExitStack() as stack:
        made = Town(url, redis, stack)
        made.one = Doorbell() if kind == KINDS[0] else None
        yield made
        assert made.notices == []


@asynccontextmanager
async def waiting(site: Site) -> AsyncIterator[None]:
    """Behind the block the site's workers have looked once more, and wait."""
    looked = asyncio.Event()
    before = site.bell.looked

    def told(free: int) -> None:
        before(free)
        looked.set()

    site.bell.looked = told  # type: ignore[method-assign]
    yield
    await looked.wait()
    site.bell.looked = before  # type: ignore[method-assign]


async def test_p4_a_submission_wakes_who_waits(town: Town) -> None:
    site, elsewhere = await town.site(), await town.site(listens=False)
    async with waiting(site):
        site.work(quick, poll=NEVER)
    for number in range(3):
        await elsewhere.house.one()
        await site.until("succeeded", number + 1)


async def test_a_burst_wakes_as_many_as_it_needs(town: Town) -> None:
    sites, elsewhere = [await town.site() for _ in range(3)], await town.site(listens=False)
    running, all_run = 0, asyncio.Event()

    async def work(lease: Lease, journal: TaskJournal) -> Outcome:
        nonlocal running
        running += 1
        if running == 6:
            all_run.set()
        await all_run.wait()
        return Succeeded("1")

    for site in sites:
        async with waiting(site):
            site.work(work, poll=NEVER, slots=2, lease=SECONDS)
    await elsewhere.house.added(*(new() for _ in range(6)))
    await elsewhere.until("succeeded", 6)
    await elsewhere.house.added(*(new() for _ in range(60)))
    await elsewhere.until("succeeded", 66)
    assert (running, sum(site.workers[0].tally.claimed for site in sites)) == (66, 66)


async def test_what_has_become_ready_wakes_others_too(town: Town) -> None:
    """One task frees four; who has ended it has a single slot, so others have to hear of them."""
    sites = [await town.site() for _ in range(2)]
    both, begun = asyncio.Event(), Counter[int]()

    def working(number: int) -> object:
        async def work(lease: Lease, journal: TaskJournal) -> Outcome:
            begun[number] += 1
            if lease.run == "freed":
                if len(begun) == 2:
                    both.set()
                await both.wait()
            return Succeeded("1")

        return work

    async with waiting(sites[0]):
        sites[0].work(working(0), poll=NEVER, slots=1, lease=SECONDS)  # type: ignore[arg-type]
    first = await sites[0].house.one()
    await sites[0].until("succeeded")
    async with waiting(sites[1]):
        sites[1].work(working(1), poll=NEVER, slots=1, lease=SECONDS)  # type: ignore[arg-type]
    begun.clear()
    parent = await sites[0].house.one(needs=(first,))
    await sites[0].house.added(*(new(run="freed", needs=(parent,)) for _ in range(4)))
    await sites[0].until("succeeded", 6)


async def test_g8_what_a_stopped_worker_hands_back_is_rung_for(town: Town) -> None:
    stopping, other = await town.site(), await town.site()
    async with waiting(stopping):
        run = stopping.work(lasting(NEVER), poll=NEVER, grace=0.0, slots=2, lease=SECONDS)
    await stopping.house.added(new(), new())
    await stopping.until("leased", 2)
    async with waiting(other):
        other.work(quick, poll=0.5)  # the row may still be locked at the ring, by the last renewal
    heard = asyncio.Event()
    with other.bell.heard(heard.set):
        stopping.stops.signal()
        assert (await run).left == Counter(ready=2)
        await heard.wait()
    await other.until("succeeded", 2)


async def test_a_bell_that_is_put_away_leaves_nothing_running(town: Town) -> None:
    async with AsyncExitStack() as stack:
        before = {task.get_name() for task in asyncio.all_tasks()}, {thread.name for thread in threading.enumerate()}
        inner = Town(town._url, town._redis, stack)
        inner.one = town.one
        site = await inner.site()
        site.bell.ring(["t_1"])
    after = {task.get_name() for task in asyncio.all_tasks()}, {thread.name for thread in threading.enumerate()}
    assert after[0] <= before[0] and "siafu-doorbell" not in after[1]
    site.bell.ring(["t_2"])  # late rings are nobody's
