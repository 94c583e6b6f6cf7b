"""What happens to tasks is noted once, by whoever it was done, and read in an order in which nothing comes too late."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from siafu.store import task_events
from siafu.store.database import Transaction
from siafu.store.task_events import AT_ONCE, TaskEvent, TaskViews, Whose
from siafu.store.task_records import Failed, HandedBack, Later, NewTask
from siafu.store.webhooks import WebhookQueue

from .task_house import House, new

ALL = 10**9


async def heard(house: House, after: int = 0) -> list[TaskEvent]:
    views = TaskViews(house.database)
    return await views.events(after=after, upto=await views.settle(), limit=ALL)


async def test_every_change_is_noted_in_its_order(house: House) -> None:
    views = TaskViews(house.database)
    before = await views.settle()
    first = await house.one()
    second = await house.one(needs=(first,))
    lease = await house.claimed()
    await house.store.end(first, lease.epoch, Failed(code="unreachable", message="", passing=True))
    house.pass_time(60)
    await house.sweep()
    lease = await house.claimed()
    await house.desk.cancel([first])
    await house.store.end(first, lease.epoch, HandedBack())
    await house.desk.retry([first, second])
    told = [(event.task, event.what, event.code, event.epoch) for event in await heard(house, before)]
    late = "unreachable"  # it stays until the task succeeds
    assert [each[1:] for each in told if each[0] == first] == [
        ("accepted", "", 0),
        ("leased", "", 1),
        ("waiting", late, 1),
        ("ready", late, 1),
        ("leased", late, 2),
        ("cancel_requested", late, 2),
        ("cancelled", "cancelled", 2),
        ("ready", "cancelled", 2),
    ]
    assert [each[1] for each in told if each[0] == second] == ["accepted", "cancelled", "blocked"]


async def test_looking_whether_a_task_must_wait_still_is_no_news(house: House) -> None:
    id = await house.one()
    for _ in range(3):
        lease = await house.claimed()
        await house.store.end(id, lease.epoch, Later(code="pending_approval"))
        house.pass_time(600)
        await house.sweep()
    await house.done(await house.claimed())
    told = [event.what for event in await heard(house) if event.task == id]
    assert told == ["accepted", "leased", "waiting", "succeeded"]


async def test_places_are_never_given_twice(house: House) -> None:
    await house.added(*[new() for _ in range(3)])
    (*_, last) = await heard(house)
    house.clear()
    assert await TaskViews(house.database).settle() == last.place
    await house.one()
    assert [event.place > last.place for event in await heard(house)] == [True]


async def test_more_than_one_transaction_gives_places(house: House) -> None:
    await house.added(*[new() for _ in range(AT_ONCE + 5)])
    found = await heard(house)
    assert [event.place for event in found] == list(range(found[0].place, found[0].place + AT_ONCE + 5))


def beside(house: House, work: Callable[[Transaction], Any]) -> tuple[threading.Event, threading.Thread]:
    """Do `work` in a transaction that stays open until the event is set; it has done its work on return."""
    done, go = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        work(tx)
        done.set()
        assert go.wait(20)

    thread = threading.Thread(target=house.database.transact, args=(slow,))
    thread.start()
    assert done.wait(20)
    return go, thread


async def test_what_is_committed_late_is_not_missed(tasks_url: str) -> None:
    """PostgreSQL: an event with a smaller number is committed after one with a greater one was read."""
    house = House(tasks_url)
    house.clear()
    slow, quick = await house.added(new(), new())
    (*_, last) = await heard(house)
    change = "UPDATE task SET state = 'waiting' WHERE id = :id"
    go, thread = await asyncio.to_thread(beside, house, lambda tx: tx.change(change, id=slow))
    house.database.transact(lambda tx: tx.change(change, id=quick))
    (first,) = await heard(house, last.place)
    assert first.task == quick
    raw = house.database.transact(lambda tx: tx.rows("SELECT MAX(id) AS id FROM task_event"))
    go.set()
    await asyncio.to_thread(thread.join)
    late = house.database.transact(
        lambda tx: tx.rows("SELECT id FROM task_event WHERE task = :t ORDER BY id DESC", t=slow)
    )
    assert late[0]["id"] < raw[0]["id"]  # a reader that went by these would have missed it
    (second,) = await heard(house, first.place)
    assert second.task == slow
    await house.aclose()


async def test_nobody_sees_what_is_not_theirs(house: House) -> None:
    views = TaskViews(house.database)
    ids = {
        whose: (await house.added(NewTask(kind="k", payload="{}", tenant=whose[0], customer=whose[1])))[0]
        for whose in (("a", "kim"), ("a", "lee"), ("b", "kim"), ("", ""))
    }
    last = await views.settle()
    for whose, own in {
        Whose(tenant="a"): {"kim", "lee"},
        Whose(tenant="a", customer="kim"): {"kim"},
        Whose(tenant="b", customer="lee"): set[str](),
        Whose(tenant="c"): set[str](),
    }.items():
        mine = {id for (tenant, customer), id in ids.items() if tenant == whose.tenant and customer in own}
        assert {task.id for task in (await views.page(whose, {}, limit=9, after=None))[0]} == mine
        told = await views.events_of(whose, {}, after=last - 4, upto=last, limit=9)
        assert {event.task for event in told} == mine
        assert all(whose.owns(event.tenant, event.customer) for event in told)
        assert (await views.these(list(ids.values()), whose)).keys() == mine


async def test_deliveries_are_made_once_and_held_until_taken(house: House) -> None:
    queue, views = WebhookQueue(house.database), TaskViews(house.database)
    name = f"hook {house.database.dialect} {await views.settle()}"
    await house.one()
    await house.done(await house.claimed())
    await views.settle()
    await queue.begin(name)  # what ended before is not told
    await queue.begin(name)
    id = await house.one(tenant="a", once="r/1", run="r")
    await house.done(await house.claimed())
    await views.settle()
    assert not await queue.collect(name, None)
    assert not await queue.collect(name, None)
    (delivery,) = await queue.claim(name, 5, 60.0)
    assert (delivery.task, delivery.what, delivery.attempts, delivery.tenant) == (id, "succeeded", 1, "a")
    assert await queue.claim(name, 5, 60.0) == []  # it is in somebody's hands
    await queue.failed(delivery.id, "connection\nreset\x00", 0.0, status=None)
    (told,) = await queue.told(id)
    assert (told.state, told.attempts, told.status, told.said) == ("waiting", 1, None, "connection reset\ufffd")
    (again,) = await queue.claim(name, 5, 0.0)
    assert (again.id, again.attempts) == (delivery.id, 2)
    (lapsed,) = await queue.claim(name, 5, 60.0)  # whoever had it has died
    assert (lapsed.id, lapsed.attempts) == (delivery.id, 3)
    await queue.done(delivery.id, 204)
    await queue.failed(delivery.id, "reset", 0.0, status=None)  # by the one who was thought dead
    assert await queue.claim(name, 5, 0.0) == []
    (told,) = await queue.told(id)
    assert (told.state, told.status, told.said, told.next_at) == ("sent", 204, "", None)


async def test_several_collect_at_once_and_each_end_is_one_delivery(house: House) -> None:
    queue, views = WebhookQueue(house.database), TaskViews(house.database)
    name = f"crowd {house.database.dialect} {await views.settle()}"
    await queue.begin(name)
    await house.added(*[new() for _ in range(20)])
    for lease in await house.claim(20):
        await house.done(lease)
    await views.settle()
    await asyncio.gather(*(queue.collect(name, None) for _ in range(6)))
    parts = await asyncio.gather(*(queue.claim(name, 5, 60.0) for _ in range(6)))
    found = [each.task for part in parts for each in part]
    assert len(found) == len(set(found)) == 20


async def test_a_page_looks_through_so_many_tasks_and_says_how_to_go_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_events, "SPAN", 3)
    await house.added(*[new(run="rare" if n in (0, 7, 8) else "often") for n in range(11)])
    views, mine = TaskViews(house.database), Whose(tenant="")
    for run, count in (("rare", 3), ("often", 8), ("none", 0)):
        found: list[str] = []
        after, pages = None, 0
        while True:
            page, more = await views.page(mine, {"run": run}, limit=2, after=after)
            found += [task.id for task in page]
            pages += 1
            if more is None:
                break
            after = more
        assert len(found) == len(set(found)) == count
        assert pages <= 8  # it comes to an end
