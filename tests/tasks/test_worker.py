"""A worker over a real store, with leases of half a second."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services import Postgres
from siafu.errors import Fenced, StoreError
from siafu.queue.doorbell import ringing
from siafu.queue.worker import Halt, Outcome
from siafu.store.records import JournalEntry
from siafu.store.task_journal import TaskJournal
from siafu.store.task_records import AGED_SHARE, MAX_PAYLOAD, Failed, Later, Lease, State, Succeeded
from siafu.store.tasks import Tick
from store.task_house import KIND, House, new

from .site import LEASE, SECONDS, Site, lasting, quick


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    opened = Site(f"sqlite:///{tmp_path / 'tasks.db'}")
    async with asyncio.timeout(2 * SECONDS):
        yield opened
    await opened.aclose()


async def test_it_fills_its_slots_and_no_more_and_ends_when_nothing_is_left(site: Site) -> None:
    running, most = 0, 0

    async def work(lease: Lease, journal: TaskJournal) -> Outcome:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return Succeeded('"done"')

    await site.house.added(*(new() for _ in range(30)))
    tally = await site.work(work, until_empty=True)
    assert (tally.claimed, tally.left, tally.fenced, most) == (30, Counter(succeeded=30), 0, 4)


async def test_a_task_is_claimed_in_the_transaction_that_ends_the_one_before(site: Site) -> None:
    await site.house.added(*(new() for _ in range(20)))
    before = site.house.store.together.commits
    run = site.work(quick, slots=1, lease=SECONDS, poll=SECONDS)
    await site.until("succeeded", 20)
    site.stops.signal()
    await run
    assert site.house.store.together.commits - before < 20 + 10, "apart, they are 40"


async def test_what_cannot_be_recorded_keeps_its_slot(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: Counter[str] = Counter()

    async def refused(task: str, epoch: int, verdict: object) -> State:
        tries[task] += 1
        await asyncio.sleep(0.01)
        raise StoreError("away")

    await site.house.added(*(new() for _ in range(12)))
    with monkeypatch.context() as patch:
        patch.setattr(site.house.store, "end", refused)
        run = site.work(quick, slots=2, until_empty=True)
        async with asyncio.timeout(SECONDS):
            while min(tries.values(), default=0) < 4:
                await asyncio.sleep(0.02)
        assert len(tries) == 4, "two, and two that were claimed before anything was known of that"
        assert (site.workers[0].busy, await site.house.states()) == (4, {"leased": 4, "ready": 8})
    assert (await run).left == Counter(succeeded=12)


async def test_f37_a_task_that_lasts_longer_than_the_lease_is_done_once(site: Site) -> None:
    begun: list[str] = []

    async def work(lease: Lease, journal: TaskJournal) -> Outcome:
        begun.append(lease.id)
        await asyncio.sleep(4 * LEASE)
        return Succeeded('"done"')

    ids = await site.house.added(new(), new())
    await asyncio.gather(site.work(work, until_empty=True), site.work(work, until_empty=True))
    assert sorted(begun) == sorted(ids)
    assert {(await site.house.task(id)).lease_epoch for id in ids} == {1}


async def test_g7_a_worker_whose_loop_is_stuck_loses_its_task_and_cannot_write(site: Site) -> None:
    """The other worker has a thread and a loop of its own."""
    wrote: list[BaseException | None] = []

    async def stuck(lease: Lease, journal: TaskJournal) -> Outcome:
        time.sleep(4 * LEASE)  # noqa: ASYNC251
        try:
            await journal.append("", JournalEntry(path="", seq=0, kind="model", fingerprint="f", outcome=b"1"))
            wrote.append(None)
        except Fenced as error:
            wrote.append(error)
            raise
        return Succeeded('"stuck"')

    def other_worker(url: str) -> None:
        async def run() -> None:
            other = Site(url)
            await other.until("leased")
            await other.work(quick, until_empty=True)
            await other.aclose()

        asyncio.run(run())

    await site.house.one()
    thread = threading.Thread(target=other_worker, args=(str(site.house.database._engine.url.database),))
    thread.start()
    tally = await site.work(stuck, until_empty=True)
    await asyncio.to_thread(thread.join)
    (task,) = await site.house.desk.find(_any(), limit=9)
    assert (task.result, task.lease_epoch, task.state) == ('"done"', 2, "succeeded")
    assert task.fenced >= 1 and tally.fenced == 1
    assert all(isinstance(each, Fenced) for each in wrote)


def _any() -> Any:
    from siafu.store.task_desk import Which  # noqa: PLC0415

    return Which()


async def test_a_cancellation_reaches_running_work(site: Site) -> None:
    id = await site.house.one()
    run = site.work(lasting(SECONDS), until_empty=True)
    await site.until("leased")
    assert await site.house.desk.cancel([id]) == 1
    assert (await run).left == Counter(cancelled=1)


async def test_a_deadline_ends_running_work(site: Site) -> None:
    await site.house.one(deadline=0.4)
    tally = await site.work(lasting(SECONDS), until_empty=True)
    assert tally.left == Counter(expired=1)


async def test_work_that_does_not_heed_its_cancellation_gives_its_slot_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not heard any more, whatever it says in the end."""
    monkeypatch.setattr("siafu.queue.worker.PUT_DOWN", 0.1)
    over, complaints = asyncio.Event(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def deaf(lease: Lease, journal: TaskJournal) -> Outcome:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                pass
        raise Fenced("late")

    await site.house.one(deadline=0.3)
    tally = await site.work(deaf, until_empty=True)
    over.set()
    assert tally.left == Counter(expired=1)
    await asyncio.sleep(0)
    gc.collect()
    assert complaints == []


async def test_f38_a_stopped_worker_lets_tasks_end_and_takes_no_more(site: Site) -> None:
    await site.house.added(*(new() for _ in range(6)))
    run = site.work(lasting(0.6))
    await site.until("leased", 4)
    site.stops.signal()
    tally = await run
    assert (tally.left, tally.cut) == (Counter(succeeded=4), 0)
    assert await site.house.states() == {"succeeded": 4, "ready": 2}


@pytest.mark.parametrize("signals", [1, 2])
async def test_g8_what_has_not_ended_is_handed_back_in_good_order(site: Site, signals: int) -> None:
    ids = await site.house.added(*(new() for _ in range(3)))
    run = site.work(lasting(SECONDS), grace=0.2 if signals == 1 else SECONDS)
    await site.until("leased", 3)
    for _ in range(signals):
        site.stops.signal()
    tally = await run
    assert (tally.left, tally.cut) == (Counter(ready=3), 3)
    assert [(await site.house.task(id)).deliveries for id in ids] == [0, 0, 0]


async def test_what_work_says_and_does_not_say(site: Site) -> None:
    outcomes: dict[str, Any] = {
        "fails": Failed(code="bad", message="bad"),
        "waits": Later(code="pending_approval"),
        "too long": Succeeded("1" * (MAX_PAYLOAD + 1)),
        "breaks": ZeroDivisionError("sk-" + "a1B2" * 12),
        "no store": StoreError("away"),
        "cancels itself": asyncio.CancelledError(),
    }

    async def work(lease: Lease, journal: TaskJournal) -> Outcome:
        found = outcomes[lease.run]
        if isinstance(found, BaseException):
            raise found
        answer: Outcome = found
        return answer

    ids = dict(zip(outcomes, await site.house.added(*(new(run=run) for run in outcomes)), strict=True))
    site.work(work, slots=10)
    await site.until("waiting", 4)
    tasks = {run: await site.house.task(id) for run, id in ids.items()}
    told = {run: (task.state, task.code or task.waits_for, task.deliveries) for run, task in tasks.items()}
    assert told == {
        "fails": ("failed", "bad", 1),
        "waits": ("waiting", "pending_approval", 0),
        "too long": ("failed", "too_large", 1),
        "breaks": ("waiting", "work_failed", 1),
        "no store": ("waiting", "store", 0),
        "cancels itself": ("waiting", "work_failed", 1),
    }
    assert tasks["breaks"].message == "ZeroDivisionError: ***"


async def test_a_worker_until_empty_looks_once_at_what_waits_for_a_person(site: Site) -> None:
    decided = False

    async def work(lease: Lease, journal: TaskJournal) -> Outcome:
        return Succeeded("1") if decided else Later(code="pending_approval")

    await site.house.one()
    assert (await site.work(work, until_empty=True)).left == Counter(waiting=1)
    assert (await site.work(work, until_empty=True)).left == Counter(waiting=1)
    decided = True
    assert (await site.work(work, until_empty=True)).left == Counter(succeeded=1)


async def test_a_worker_until_empty_begins_as_soon_as_the_store_answers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_again, asked = site.house.store.look_again, 0

    async def locked(kind: str) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            site.bell.ring()  # has it ask once more, and not again and again
        if asked < 4:
            raise StoreError("locked")
        await look_again(kind)

    monkeypatch.setattr(site.house.store, "look_again", locked)
    await site.house.one()
    began = time.monotonic()
    assert (await site.work(quick, until_empty=True, poll=0.2)).left == Counter(succeeded=1)
    assert time.monotonic() - began >= 0.4


async def test_two_kinds_in_one_slot_have_each_their_share_for_the_oldest(site: Site) -> None:
    begun: list[tuple[str, int]] = []

    async def work(lease: Lease, journal: TaskJournal) -> Outcome:
        begun.append((lease.kind, lease.priority))
        return Succeeded("1")

    for kind in (KIND, "other"):
        await site.house.added(*(new(kind=kind, priority=1) for _ in range(20)))
        site.house.pass_time(120, await site.house.one(kind=kind, priority=3))
    await site.work(work, slots=1, kinds=(KIND, "other"), until_empty=True)
    for kind in (KIND, "other"):
        assert [priority for name, priority in begun if name == kind].index(3) < AGED_SHARE


async def test_work_whose_task_was_lost_and_won_again_is_stopped_and_the_new_one_is_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is heard of after the task has come back."""
    again, ended = asyncio.Event(), []

    async def work(lease: Lease, journal: TaskJournal) -> Outcome:
        if lease.epoch == 2:
            again.set()
        try:
            await asyncio.sleep(LEASE / 4 if lease.epoch == 2 else SECONDS)
        except asyncio.CancelledError:
            ended.append(lease.epoch)
            raise
        return Succeeded("1")

    async def lost(worker: str, held: dict[str, int], *_: Any, **__: Any) -> Tick:
        if 1 not in held.values():
            return Tick()
        await again.wait()
        return Tick(lost=frozenset(held))

    leases: list[Lease] = []
    claim = site.house.store.claim

    async def twice(*values: Any, **more: Any) -> list[Lease]:
        if leases and not again.is_set():
            return [msgspec.structs.replace(leases[0], epoch=2)]
        leases.extend(found := await claim(*values, **more))
        return found

    async def heard(task: str, epoch: int, verdict: Any) -> State:
        return "succeeded"

    for name, mine in (("claim", twice), ("tick", lost), ("end", heard)):
        monkeypatch.setattr(site.house.store, name, mine)
    await site.house.one()
    run = site.work(work, slots=2, poll=0.01, lease=SECONDS)
    await again.wait()
    while site.workers[0].tally.left != Counter(succeeded=1):
        await asyncio.sleep(0.01)
    site.stops.signal()
    assert (await run).fenced == 1 and ended == [1]


async def test_when_nothing_can_be_paid_for_the_worker_ends_and_keeps_the_tasks(site: Site) -> None:
    async def work(lease: Lease, journal: TaskJournal) -> Outcome:
        return Halt("budget_reached", "the budget is reached")

    await site.house.added(*(new() for _ in range(20)))
    tally = await site.work(work)
    assert tally.halt == Halt("budget_reached", "the budget is reached")
    assert await site.house.states() == {"ready": 20}


async def test_a_bell_wakes_it_and_a_lost_ring_costs_a_look(site: Site) -> None:
    site.work(quick, poll=SECONDS)
    await asyncio.sleep(0.2)
    await site.house.one()
    await site.until("succeeded")
    site.house.store._rung = lambda tasks: None
    site.work(quick, poll=0.1)
    await site.house.one()
    await site.until("succeeded", 2)


async def test_without_its_store_it_goes_on_looking_and_says_so_once(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away, claim = True, site.house.store.claim

    async def flaky(*values: Any, **more: Any) -> Any:
        if away:
            raise StoreError("the database is away")
        return await claim(*values, **more)

    monkeypatch.setattr(site.house.store, "claim", flaky)
    await site.house.one()
    with caplog.at_level(logging.WARNING, "siafu"):
        run = site.work(quick, until_empty=True, poll=0.02)
        await asyncio.sleep(0.3)
        away = False
        assert (await run).left == Counter(succeeded=1)
    assert len([record for record in caplog.records if "is away" in record.message]) == 1


async def test_a_worker_that_cannot_renew_its_lease_stops_the_work_and_may_get_it_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else may have the task by then. Here the same worker gets it, while its first work is still ending."""
    stopped, back = asyncio.Event(), asyncio.Event()

    async def work(lease: Lease, journal: TaskJournal) -> Outcome:
        if lease.epoch == 1:
            try:
                await asyncio.sleep(SECONDS)
            except asyncio.CancelledError:
                stopped.set()
                await back.wait()
                raise
        back.set()
        await asyncio.sleep(2 * LEASE)
        return Succeeded("1")

    async def away(*_: Any, **__: Any) -> Any:
        raise StoreError("away")

    id = await site.house.one()
    run = site.work(work, until_empty=True)
    await site.until("leased")
    with monkeypatch.context() as patch:
        patch.setattr(site.house.store, "tick", away)
        began = time.monotonic()
        await stopped.wait()
        assert time.monotonic() - began > LEASE / 2
        assert (await site.house.states())["leased"] == 1
    assert ((await run).left, (await run).fenced) == (Counter(succeeded=1), 1)
    assert (await site.house.task(id)).lease_epoch == 2


async def test_a_process_that_stood_still_keeps_what_nobody_took_meanwhile(site: Site) -> None:
    async def work(lease: Lease, journal: TaskJournal) -> Outcome:
        await asyncio.sleep(LEASE / 2)
        time.sleep(3 * LEASE)  # noqa: ASYNC251
        await asyncio.sleep(LEASE)
        return Succeeded("1")

    id = await site.house.one()
    assert (await site.work(work, until_empty=True)).left == Counter(succeeded=1)
    assert (await site.house.task(id)).lease_epoch == 1


async def test_a_fault_of_its_own_ends_the_worker_and_is_told(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not go on without renewing its leases."""

    async def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(site.house.store, "tick", broken)
    with pytest.raises(ExceptionGroup) as told:
        await site.work(quick)
    assert told.group_contains(ZeroDivisionError)


async def test_a_cancelled_worker_gives_up_and_leaves_its_leases_to_lapse(site: Site) -> None:
    await site.house.one()
    run = site.work(lasting(SECONDS))
    await site.until("leased")
    run.cancel()
    await asyncio.wait({run})
    assert (await site.house.states())["leased"] == 1
    assert not [task for task in asyncio.all_tasks() if "siafu task" in task.get_name()]


async def test_a_bell_in_postgresql_wakes_workers_of_other_processes_and_survives_the_loss_of_its_connection(
    postgres: Postgres, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siafu.queue.doorbell.RECONNECT", 0.1)
    site, submitter = Site(postgres_url), House(postgres_url)
    async with asyncio.timeout(SECONDS), ringing(site.bell, site.house.database):
        rings = 0

        def count() -> None:
            nonlocal rings
            rings += 1

        async def rung(before: int) -> None:
            while rings == before:
                await asyncio.sleep(0.01)

        with site.bell.heard(count):
            await rung(0)  # it listens
            site.work(quick, poll=SECONDS)
            await submitter.one()
            await site.until("succeeded")
            before = rings
            with postgres.connect() as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' "
                    "AND datname = %s",
                    [site.house.database._engine.url.database],
                )
            await rung(before)  # it listens again
            id = await submitter.one()
            await site.until("succeeded", 2)
            assert (await submitter.task(id)).state == "succeeded"
    await submitter.aclose()
    await site.aclose()
