"""Canaries in SQL, on both databases: numbers add up, and of all who would make a move one does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from siafu.errors import Conflict, InputError
from siafu.store.canaries import MIGRATIONS, SCHEMA, Canaries
from siafu.store.canary_records import Bounds, Move, Numbers, Plan
from siafu.store.database import Database

PLAN = Plan(
    old="@기존",
    new="@새것",
    salt="s",
    stages=(5, 50, 100),
    window_seconds=60.0,
    min_samples=500,
    bounds=Bounds(dearer=3.0, stop_dearer=4.0),
)
ON = Move(state="running", stage=1, reason="good")


@pytest.fixture
async def database(sql_url: str) -> AsyncIterator[Database]:
    database = Database(sql_url, MIGRATIONS, what="the canaries", schema=SCHEMA)
    yield database
    await database.aclose()


@pytest.fixture
def canaries(database: Database) -> Canaries:
    return Canaries(database)


async def test_a_canary_is_kept_whole(canaries: Canaries) -> None:
    assert (await canaries.look()).last is None
    started = await canaries.start(PLAN)
    seen = await canaries.look()
    assert seen.last == started and started.plan == PLAN and (started.percent, started.number) == (5, 1)
    assert 0 <= seen.now - started.began_at < 60
    moved = await canaries.move(started, Move(state="running", stage=2, tries=1, reference=1, reason="이유"))
    assert moved is not None and (moved.percent, moved.number, moved.tries, moved.reference) == (100, 2, 1, 1)
    assert [(each.number, each.percent, each.reason) for each in await canaries.moves(started.id)] == [
        (1, 5, "started"),
        (2, 100, "이유"),
    ]


async def test_one_canary_at_a_time(canaries: Canaries) -> None:
    started = await canaries.start(PLAN)
    with pytest.raises(InputError, match="is running"):
        await canaries.start(PLAN)
    promoted = await canaries.move(started, Move(state="promoted", stage=2, reason="x"))
    with pytest.raises(InputError, match="retire comes first"):
        await canaries.start(PLAN)
    assert promoted is not None
    await canaries.move(promoted, Move(state="retired", stage=2, reason="x"))
    assert (await canaries.start(PLAN)).id > started.id
    assert len((await canaries.look()).canaries) == 2


async def test_of_many_that_start_at_once_one_does(canaries: Canaries) -> None:
    found = await asyncio.gather(*(canaries.start(PLAN) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(each, InputError) for each in found) == 7


async def test_numbers_add_up_by_window_and_side(canaries: Canaries) -> None:
    id = (await canaries.start(PLAN)).id
    one = Numbers(calls=3, ok=2, limited=1, tasks=2, unpriced=1, usd_pico=5, usd_square=0.25, slots={-7: 1, 40: 1})
    await asyncio.gather(*(canaries.look({(id, 1, "new"): one, (id, 1, "old"): one}) for _ in range(10)))
    seen = await canaries.look({(id, 2, "new"): one})
    assert seen.new == seen.old == sum([one] * 9, one)
    assert seen.new.slots == {-7: 10, 40: 10}


async def test_the_old_side_of_an_earlier_window_stays_to_compare_with(canaries: Canaries) -> None:
    started = await canaries.start(PLAN)
    old = Numbers(calls=3, ok=3)
    await canaries.look({(started.id, 1, "old"): old})
    await canaries.move(started, Move(state="running", stage=2, reference=1, reason="x"))
    seen = await canaries.look({(started.id, 2, "new"): old})
    assert (seen.old, seen.new) == (old, old)
    assert seen.last is not None
    await canaries.move(seen.last, Move(state="rolled_back", reason="x"))
    seen = await canaries.look()
    assert (seen.old, seen.new) == (old, old)  # its last numbers can still be seen


async def test_history_cannot_be_changed(canaries: Canaries, database: Database) -> None:
    await canaries.start(PLAN)
    for sql in ("UPDATE canary_move SET reason = 'x'", "DELETE FROM canary_move"):
        with pytest.raises(Conflict):
            await database.run(lambda tx, sql=sql: tx.change(sql))  # type: ignore[misc]


def race(url: str, children: int) -> list[str]:
    """What each of as many processes says, all let go at once."""
    command = [sys.executable, str(Path(__file__).with_name("canary_child.py")), url]
    with ExitStack() as stack:
        started = []
        for _ in range(children):
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.enter_context(child)
            stack.callback(child.kill)
            started.append(child)
        pipes = [(child.stdin, child.stdout) for child in started if child.stdin and child.stdout]
        assert [out.readline() for _, out in pipes] == ["ready\n"] * children
        for into, _ in pipes:
            into.close()
        return [out.read().strip() for _, out in pipes]


async def test_of_processes_that_race_one_decides(canaries: Canaries, database: Database, sql_url: str) -> None:
    started = await canaries.start(PLAN)
    assert sorted(await asyncio.to_thread(race, sql_url, 3)) == ["lost", "lost", "won"]
    assert all(each is None for each in await asyncio.gather(*(canaries.move(started, ON) for _ in range(5))))
    assert [each.number for each in await canaries.moves(started.id)] == [1, 2]
    (row,) = await database.run(lambda tx: tx.rows("SELECT number, calls FROM canary_sums"))
    assert (row["number"], row["calls"]) == (1, 30)  # what the others saw is counted nevertheless


async def test_a_late_word_goes_to_the_window_it_is_about(canaries: Canaries) -> None:
    started = await canaries.start(PLAN)
    await canaries.move(started, ON)
    await canaries.look({(started.id, 1, "new"): Numbers(calls=5)})
    assert (await canaries.look()).new == Numbers()
