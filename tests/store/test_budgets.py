"""Slices of a shared budget, on both databases: nothing is promised twice, and what a dead holder held comes back."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from siafu.store import budgets
from siafu.store.budgets import MIGRATIONS, SCHEMA, Budget, Budgets, Loan
from siafu.store.database import Database
from siafu.store.schema import open_reader
from siafu.store.sqlite import SqliteStore

from .rows import opened, settled

NOW = time.time()
DAY = Budget(name="day 2026-11-30", limit=1000, since=NOW - 43_200, until=NOW + 43_200)
Opener = Callable[..., Budgets]


@pytest.fixture
async def holder(sql_url: str) -> AsyncIterator[Opener]:
    async with AsyncExitStack() as stack:

        def open_one(name: str, journal: Path | None = None, seconds: float = 60.0) -> Budgets:
            database = Database(sql_url, MIGRATIONS, what="the budgets' database", schema=SCHEMA)
            stack.push_async_callback(database.aclose)
            return Budgets(database, name, journal, seconds)

        yield open_one


async def ask(holder: Budgets, spent: int = 0, held: int = 0, need: int = 0, want: int = 0) -> Loan:
    return await holder.sync(DAY, spent=spent, held=held, need=need, want=want)


async def test_two_holders_share_one_limit_and_give_back(holder: Opener) -> None:
    one, two = holder("one"), holder("two")
    assert await ask(one, need=100, want=700) == Loan(amount=700, left=1000)
    assert await ask(two, need=100, want=700) == Loan(amount=300, left=1000)
    assert await ask(two, held=300, need=1) == Loan(amount=300, left=1000)  # nothing is free
    assert await ask(one, spent=400) == Loan(amount=0, left=600)  # gives the rest back
    assert await ask(two, spent=300, need=300, want=300) == Loan(amount=300, left=300)
    assert await ask(two, spent=600) == Loan(amount=0, left=0)


async def test_a_need_is_met_whole_or_not_at_all(holder: Opener) -> None:
    """Else two processes that hold half of what both need would wait for each other."""
    one, two = holder("one"), holder("two")
    await ask(one, need=500)
    assert (await ask(two, need=700, want=900)).amount == 0
    assert (await ask(one, need=700)).amount == 700


async def test_a_cost_below_its_reservation_and_a_lowered_limit(holder: Opener) -> None:
    one = holder("one")
    await ask(one, need=900)
    low = Budget(name=DAY.name, limit=500, since=DAY.since, until=DAY.until)
    assert await one.sync(low, spent=100, held=800, need=10, want=10) == Loan(amount=800, left=400)


async def expired(one: Budgets, seconds: float) -> None:
    await asyncio.sleep(seconds * 2)


async def ledger(path: Path) -> None:
    """A journal in which the holder `gone-` spent 40, and has a call under way for which 500 is reserved."""
    run = SqliteStore(path).run("r")
    await run.begin("w")
    await run.ledger.open(opened("gone-1", opened_at=NOW))
    run.ledger.settle(settled("gone-1", usd_pico=40))
    await run.ledger.open(opened("gone-2", opened_at=NOW, reserved_pico=500))
    await run.ledger.open(opened("other-1", opened_at=NOW, reserved_pico=7))
    await run.ledger.open(opened("gone-3", opened_at=DAY.until, reserved_pico=7))
    await run.aclose()


async def test_what_a_dead_holder_held_comes_back_when_its_lease_ends(holder: Opener, tmp_path: Path) -> None:
    await ledger(tmp_path / "run.db")
    gone, other = holder("gone-", tmp_path / "run.db", 1.0), holder("other-")
    await ask(gone, need=900)
    assert (await ask(other, need=400)).amount == 0, "before its end"
    await expired(gone, 1.0)
    assert await ask(other, need=400, want=1000) == Loan(amount=460, left=460)  # 1000 - 40 - 500


async def test_without_its_ledger_the_slice_is_charged(holder: Opener, tmp_path: Path) -> None:
    await ledger(tmp_path / "run.db")
    gone, blind, other = holder("gone-", tmp_path / "run.db", 1.0), holder("blind", None, 1.0), holder("other-")
    await ask(gone, need=300)
    await ask(blind, need=200)
    (tmp_path / "run.db").rename(tmp_path / "run.bak-1.db")
    await ledger(tmp_path / "run.db")  # another file of the name, as after `--fresh`
    await expired(gone, 1.0)
    assert await ask(other, need=1) == Loan(amount=1, left=500)


async def test_the_ledger_of_a_dead_holder_is_not_read_on_the_event_loop(
    holder: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's ledger may have millions of lines, and its attempts have no index."""
    await ledger(tmp_path / "run.db")
    gone, other = holder("gone-", tmp_path / "run.db", 0.1), holder("other-")
    await ask(gone, need=900)
    await expired(gone, 0.1)
    read: list[threading.Thread] = []

    def reading(path: Path) -> sqlite3.Connection:
        read.append(threading.current_thread())
        return open_reader(path)

    monkeypatch.setattr(budgets, "open_reader", reading)
    assert (await ask(other, need=400)).left == 460
    assert read and threading.current_thread() not in read


async def test_a_holder_that_comes_back_sets_it_right(holder: Opener) -> None:
    late, other = holder("late", None, 0.1), holder("other")
    await ask(late, need=600)
    await expired(late, 0.1)
    assert (await ask(other, need=1)).left == 400
    assert await ask(late, spent=50, held=200) == Loan(amount=200, left=950)
    assert (await ask(other, need=700, want=1000)).amount == 750


async def test_racing_holders_never_hold_more_than_there_is(holder: Opener) -> None:
    holders = [holder(str(number)) for number in range(6)]

    async def work(one: Budgets) -> int:
        spent = 0
        while True:
            loan = await ask(one, spent=spent, need=17, want=29)
            if loan.left < 17:
                return spent
            spent += loan.amount

    assert 1000 - 17 < sum(await asyncio.gather(*map(work, holders))) <= 1000


async def test_budgets_of_days_long_past_are_forgotten_some_at_a_time(
    holder: Opener, sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "FORGOTTEN", 2)
    one = holder("one")
    days = [datetime.fromtimestamp(NOW - ago * 86_400, UTC).date().isoformat() for ago in (30, 20, 10, 9, 1, 0)]
    for name in ("client k", *(f"day {day} client k" for day in days)):
        await one.sync(Budget(name=name, limit=9, since=0, until=NOW), spent=1, held=0, need=1, want=1)
    database = Database(sql_url, MIGRATIONS, what="the budgets' database", schema=SCHEMA)
    old = f"day {days[0]} client k", f"day {days[1]} client k", f"day {days[2]} client k"
    change = "UPDATE budget_slice SET lease_until = 0 WHERE budget <> :used"  # the fourth day is in use
    await database.run(lambda tx: tx.change(change, used=f"day {days[3]} client k"))

    async def left() -> set[str]:
        rows = await database.run(lambda tx: tx.rows("SELECT name FROM budget"))
        slices = await database.run(lambda tx: tx.rows("SELECT budget FROM budget_slice"))
        assert {row["name"] for row in rows} == {row["budget"] for row in slices}
        return {row["name"] for row in rows}

    every = await left()
    await one.sync(Budget(name="a", limit=9, since=0, until=NOW), spent=0, held=0, need=0, want=0)
    assert await left() == every - {*old[:2]} | {"a"}
    await one.sync(Budget(name="b", limit=9, since=0, until=NOW), spent=0, held=0, need=0, want=0)
    assert await left() == every - {*old} | {"a", "b"}
    await database.aclose()
