"""Rows of the hot statements are written many to a step, and nobody can tell but by the clock."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.errors import StoreError
from siafu.store.writer import Writer

ADD = "INSERT INTO mark (k, v) VALUES (?, NULL)"
SET = "UPDATE mark SET v = given.column1 FROM (VALUES (?, ?)) AS given WHERE k = given.column2 AND v IS NULL"
BULK = (ADD, SET)


class Held:
    """A writer whose next transaction takes everything that is queued inside the block."""

    def __init__(self, bulk: tuple[str, ...]) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.db.execute("CREATE TABLE mark (k INTEGER PRIMARY KEY, v INTEGER CHECK (v < 100)) STRICT")
        self.steps: list[str] = []
        self.writer = Writer(self.db, "memory", bulk=bulk)

    async def all_at_once(self, operations: list[tuple[Any, tuple[Any, ...]]]) -> list[Any]:
        """The outcome of each: None or its error."""
        began, go = threading.Event(), threading.Event()

        def hold(db: sqlite3.Connection) -> None:
            began.set()
            assert go.wait(20)
            db.set_trace_callback(lambda text: self.steps.append(text[:6]))

        held = asyncio.create_task(self.writer.call(hold))
        assert await asyncio.to_thread(began.wait, 20)
        asked = [
            asyncio.create_task(self.writer.write(what, row) if isinstance(what, str) else self.writer.call(what))
            for what, row in operations
        ]
        await asyncio.sleep(0)
        go.set()
        await held
        return await asyncio.gather(*asked, return_exceptions=True)

    async def rows(self) -> list[tuple[int, int | None]]:
        return await self.writer.call(lambda db: db.execute("SELECT k, v FROM mark ORDER BY k").fetchall())


@pytest.fixture
def held() -> Iterator[Held]:
    held = Held(BULK)
    yield held
    held.writer.close()


async def test_many_rows_take_few_steps(held: Held) -> None:
    mixed = [(ADD, (n,)) for n in range(50)] + [op for n in range(50, 100) for op in ((ADD, (n,)), (SET, (1, n - 50)))]
    assert await held.all_at_once(mixed) == [None] * 150
    assert held.steps.count("INSERT") == 3  # 64 + 32 + 4
    assert held.steps.count("UPDATE") == 3  # 32 + 16 + 2
    assert await held.rows() == [(n, 1 if n < 50 else None) for n in range(100)]


async def test_the_check_can_fail() -> None:
    held = Held(bulk=())
    await held.all_at_once([(ADD, (n,)) for n in range(20)])
    assert held.steps.count("INSERT") == 20
    held.writer.close()


async def test_rows_that_fail_fail_alone(held: Held) -> None:
    rows: list[Any] = [*range(40), 7, "x", 2**70, *range(40, 80), "half \ud83d", 80]
    outcomes = await held.all_at_once([(ADD, (row,)) for row in rows])
    assert [row for row, outcome in zip(rows, outcomes, strict=True) if outcome is None] == list(range(81))
    assert sum(isinstance(outcome, StoreError) for outcome in outcomes) == 4
    assert [k for k, _ in await held.rows()] == list(range(81))


async def test_of_two_updates_of_a_row_the_first_counts(held: Held) -> None:
    adds = [(ADD, (n,)) for n in range(8)]
    sets = [(SET, (value, n)) for value in (1, 2, 3) for n in range(8)]
    assert await held.all_at_once([*adds, *sets]) == [None] * 32
    assert await held.rows() == [(n, 1) for n in range(8)]


async def test_a_row_may_be_added_and_updated_in_one_transaction_behind_other_updates(held: Held) -> None:
    await held.all_at_once([(ADD, (0,))])
    await held.all_at_once([(SET, (5, 0)), (ADD, (1,)), (SET, (6, 1))])
    assert await held.rows() == [(0, 5), (1, 6)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("asaswc"), st.integers(0, 9)), max_size=60))
def test_outcomes_are_those_of_single_rows(script: list[tuple[str, int]]) -> None:
    """a: add, s: set, w: set to what the table refuses, c: count, which stands between what came before and after."""

    def counts(db: sqlite3.Connection) -> Any:
        return db.execute("SELECT COUNT(*), COUNT(v) FROM mark").fetchone()

    def operation(kind: str, n: int) -> tuple[Any, tuple[Any, ...]]:
        rows = {"a": (ADD, (n,)), "s": (SET, (n, n)), "w": (SET, (100, n))}
        return rows.get(kind, (counts, ()))

    def in_order(stretch: list[tuple[Any, tuple[Any, ...]]]) -> list[tuple[Any, tuple[Any, ...]]]:
        return sorted(stretch, key=lambda op: BULK.index(op[0]))

    async def play(bulk: tuple[str, ...], what: list[tuple[Any, tuple[Any, ...]]]) -> tuple[list[str], list[Any]]:
        held = Held(bulk)
        outcomes = [str(outcome) for outcome in await held.all_at_once(what)]
        rows = await held.rows()
        held.writer.close()
        return sorted(outcomes), rows

    one_by_one: list[tuple[Any, tuple[Any, ...]]] = []
    stretch: list[tuple[Any, tuple[Any, ...]]] = []
    operations = [operation(kind, n) for kind, n in script]
    for what in operations:
        if isinstance(what[0], str):
            stretch.append(what)
        else:
            one_by_one += [*in_order(stretch), what]
            stretch = []
    one_by_one += in_order(stretch)
    assert asyncio.run(play(BULK, operations)) == asyncio.run(play((), one_by_one))
