"""What metrics and reports read of tasks and effects, on every database they are kept in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from siafu.errors import StoreError
from siafu.observe.figures import Family, Labels
from siafu.store.commits import commit_families, ledger_families
from siafu.store.database import Database
from siafu.store.effect_schema import MIGRATIONS
from siafu.store.figures import effect_families, task_families
from siafu.store.sqlite import SqliteStore
from siafu.store.task_records import MOST_DELIVERIES, Failed
from siafu.store.task_times import clock, task_times

from .task_house import House, new

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def rows(families: Any, name: str) -> dict[Labels, Any]:
    (family,) = [family for family in families if family.name == name]
    assert isinstance(family, Family)
    return dict(family.rows)


async def test_open_tasks_the_oldest_of_them_and_the_dead(house: House) -> None:
    ask = task_families(house.database)
    assert rows(await ask(), "siafu_tasks_oldest_ready_seconds") == {(): 0}
    first, *_ = await house.added(*(new() for _ in range(5)))
    house.pass_time(90, first)
    dying = await house.one(priority=1)
    for _ in range(MOST_DELIVERIES):
        lease = await house.claimed()
        await house.store.end(lease.id, lease.epoch, Failed(code="no", message="no", passing=True))
        house.pass_time(60, dying)
        await house.sweep()
    await house.claim(2)
    families = await ask()
    assert rows(families, "siafu_tasks") == {("ready",): 3, ("leased",): 2, ("blocked",): 0, ("waiting",): 0}
    assert rows(families, "siafu_tasks_dead") == {(): 1}
    await house.claim(1)
    (age,) = rows(await ask(), "siafu_tasks_oldest_ready_seconds").values()
    assert 0 <= age < 60


async def test_an_old_ready_task_is_told_by_its_age(house: House) -> None:
    await house.added(new(), new())
    house.pass_time(600)
    (age,) = rows(await task_families(house.database)(), "siafu_tasks_oldest_ready_seconds").values()
    assert 600 <= age < 660


async def test_commits_are_fewer_than_what_is_in_them(house: House) -> None:
    before = commit_families("tasks", house.store.together)
    await asyncio.gather(*(house.store.any_left("k") for _ in range(50)))
    after = commit_families("tasks", house.store.together)
    commits, writes = (
        rows(after, name)["tasks",] - rows(before, name)["tasks",]
        for name in ("siafu_store_commits", "siafu_store_writes")
    )
    assert writes == 50
    assert 1 <= commits < 10


async def test_a_ledger_tells_of_its_commits_while_it_is_open() -> None:
    store = SqliteStore(":memory:")
    run = store.run("r")
    assert ledger_families(store) == []
    await run.begin("")
    assert rows(ledger_families(store), "siafu_store_commits")["ledger",] >= 1
    await run.aclose()


async def test_a_trace_goes_with_its_task_and_a_forged_one_does_not(house: House) -> None:
    await house.added(new("한", trace=PARENT), new("두", trace="00-\n'; DROP TABLE task"), new("세"))
    leases = await house.claim(3)
    assert sorted(lease.trace for lease in leases) == ["", "", PARENT]


async def test_unsettled_effects_by_state(sql_url: str) -> None:
    database = Database(sql_url, MIGRATIONS, what="the test's effects", schema="effects")
    insert = (
        "INSERT INTO effect (id, key, tool, tenant, customer, run, task, step, agent, role, arguments, "
        "arguments_sha256, fingerprint, state, day, result, created_at, updated_at) VALUES (:id, :id, 't', '', '', "
        "'', '', '', '', '', '', '', '', :state, 1, 'x', 1, 1)"
    )
    for number, state in enumerate(("unknown", "unknown", "succeeded", "manual_review")):
        database.transact(lambda tx, id=str(number), state=state: tx.change(insert, id=id, state=state))  # type: ignore[misc]
    found = rows(await effect_families(database)(), "siafu_effects")
    assert {labels: count for labels, count in found.items() if count} == {("unknown",): 2, ("manual_review",): 1}
    assert ("succeeded",) not in found
    await database.aclose()
    with pytest.raises(StoreError):
        await effect_families(database)()


async def test_times_are_read_in_pages_by_when_tasks_were_accepted(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siafu.store.task_times.AT_ONCE", 2)
    ids = await house.added(*(new(f"k{n}", run="월요일" if n < 3 else "", tenant=f"{n % 2}") for n in range(5)))
    house.pass_time(7200, ids[0])
    now = await clock(house.database)

    async def found(**which: Any) -> set[str]:
        pages = [page async for page in task_times(house.database, until=now + 1, **which)]
        assert all(len(page) <= 2 for page in pages)
        return {task.id for page in pages for task in page}

    assert await found(since=now - 3600) == set(ids[1:])
    assert await found(since=now - 86400) == set(ids)
    assert await found(since=now - 86400, run="월요일") == set(ids[:3])
    assert await found(since=now - 86400, run="월요일", tenant="1") == {ids[1]}
    assert await found(since=now + 0.5) == set()
