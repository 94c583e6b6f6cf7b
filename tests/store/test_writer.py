"""The group-commit writer: order, isolation, backpressure, closing, and what happens when the store itself fails."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.errors import StoreError
from siafu.store.schema import open_file
from siafu.store.writer import Writer

INSERT = "INSERT INTO number (n) VALUES (?)"


def make(path: Path, **options: Any) -> Writer:
    db = open_file(path)
    db.execute("CREATE TABLE IF NOT EXISTS number (n INTEGER PRIMARY KEY) STRICT")
    return Writer(db, "test.db", **options)


@pytest.fixture
async def writer(tmp_path: Path) -> AsyncIterator[Writer]:
    writer = make(tmp_path / "w.db")
    yield writer
    await asyncio.to_thread(writer.close)


def numbers(path: Path) -> list[int]:
    db = sqlite3.connect(path)
    try:
        return [n for (n,) in db.execute("SELECT n FROM number ORDER BY n")]
    finally:
        db.close()


def stopper() -> tuple[Callable[[sqlite3.Connection], None], threading.Event, threading.Event]:
    """An operation that holds the writer up, the event that it has begun, and the event that lets it go on."""
    began, go = threading.Event(), threading.Event()

    def hold(db: sqlite3.Connection) -> None:
        began.set()
        assert go.wait(20)

    return hold, began, go


async def test_a_written_row_is_there_for_another_connection(writer: Writer, tmp_path: Path) -> None:
    await writer.write(INSERT, (7,))
    assert numbers(tmp_path / "w.db") == [7]


async def test_commits_are_synchronous_and_logged_ahead(writer: Writer) -> None:
    def pragmas(db: sqlite3.Connection) -> list[Any]:
        names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        return [db.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await writer.call(pragmas) == ["wal", 2, 1, 10_000]


async def test_many_callers_share_few_transactions(tmp_path: Path) -> None:
    begun = 0

    class Counting(sqlite3.Connection):
        def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            nonlocal begun
            begun += sql.startswith("BEGIN")
            return super().execute(sql, *rest)

    open_file(tmp_path / "w.db").close()
    db = sqlite3.connect(tmp_path / "w.db", isolation_level=None, check_same_thread=False, factory=Counting)
    db.execute("CREATE TABLE number (n INTEGER PRIMARY KEY) STRICT")
    writer = Writer(db, "test.db")
    hold, began, go = stopper()
    first = asyncio.create_task(writer.call(hold))
    await asyncio.to_thread(began.wait, 20)
    rest = [asyncio.create_task(writer.write(INSERT, (n,))) for n in range(1000)]
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(first, *rest)
    await asyncio.to_thread(writer.close)
    assert begun == 2
    assert numbers(tmp_path / "w.db") == list(range(1000))


@pytest.mark.parametrize(
    ("turns", "commits"),
    [
        ((0,), 1),
        ((0, 1, 2, 3, 4, 5), 1),  # each turn brings one
        ((0, 20), 2),  # they stopped coming
        ((0,) * 20 + (4, 5, 6), 2),  # a crowd does not wait for stragglers
        (tuple(range(200)), 25),  # nor does the first of an endless row
    ],
)
async def test_on_a_loop_few_rows_wait_as_long_as_each_turn_brings_more(
    writer: Writer, tmp_path: Path, turns: tuple[int, ...], commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siafu.store.writer._SWIFT", math.inf)  # however slow the disk is

    async def later(n: int, turn: int) -> None:
        for _ in range(turn):
            await asyncio.sleep(0)
        await writer.write(INSERT, (n,))

    await writer.write(INSERT, (1000,))  # the first is the thread's
    before = writer.commits
    await asyncio.gather(*(later(n, turn) for n, turn in enumerate(turns)))
    assert writer.commits - before == commits
    assert numbers(tmp_path / "w.db") == [*range(len(turns)), 1000]


async def test_a_failing_row_leaves_its_neighbours_alone(writer: Writer, tmp_path: Path) -> None:
    rows: list[Any] = [1, 2, 2, 3, "x", 4, 2**70, 5, "half \ud83d", 6]
    outcomes = await asyncio.gather(*(writer.write(INSERT, (n,)) for n in rows), return_exceptions=True)
    assert [n for n, outcome in zip(rows, outcomes, strict=True) if outcome is None] == [1, 2, 3, 4, 5, 6]
    assert all(isinstance(outcome, StoreError) for outcome in outcomes if outcome is not None)
    assert numbers(tmp_path / "w.db") == [1, 2, 3, 4, 5, 6]
    assert "64 bits" in str(outcomes[6]) and "surrogate" in str(outcomes[8])


async def test_a_wrong_statement_fails_for_each_of_its_rows_only(writer: Writer, tmp_path: Path) -> None:
    wrong = "INSERT INTO nowhere (n) VALUES (?)"
    statements = [INSERT, wrong, wrong, INSERT]
    outcomes = await asyncio.gather(
        *(writer.write(statement, (n,)) for n, statement in enumerate(statements)), return_exceptions=True
    )
    assert [isinstance(outcome, StoreError) for outcome in outcomes] == [False, True, True, False]
    assert numbers(tmp_path / "w.db") == [0, 3]


async def test_an_operation_that_raises_is_undone_and_its_caller_gets_the_error(writer: Writer, tmp_path: Path) -> None:
    def half(db: sqlite3.Connection) -> None:
        db.execute(INSERT, (100,))
        raise ZeroDivisionError("mine")

    before, broken, after = await asyncio.gather(
        writer.write(INSERT, (1,)), writer.call(half), writer.write(INSERT, (2,)), return_exceptions=True
    )
    assert (before, after) == (None, None)
    assert isinstance(broken, ZeroDivisionError)
    assert numbers(tmp_path / "w.db") == [1, 2]


async def test_an_operation_that_runs_out_of_values_keeps_nobody_waiting(writer: Writer, tmp_path: Path) -> None:
    calls = (writer.call(lambda db: next(iter(db.execute(INSERT, (1,))))), writer.write(INSERT, (2,)))
    async with asyncio.timeout(20):
        first, second = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(first, RuntimeError) and "StopIteration" in str(first) and second is None
    assert numbers(tmp_path / "w.db") == [2]


async def test_call_returns_the_value(writer: Writer) -> None:
    assert await writer.call(lambda db: db.execute("SELECT 6 * 7").fetchone()[0]) == 42


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ipcs"), st.integers(0, 5)), max_size=40))
def test_the_outcome_is_that_of_one_operation_after_the_other(script: list[tuple[str, int]]) -> None:
    """i: insert awaited, p: insert posted, c: a callable that adds 10 to a row, s: settle a row inserted before."""
    model: dict[int, int] = {}
    db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    db.execute("CREATE TABLE number (n INTEGER PRIMARY KEY, settled INTEGER NOT NULL DEFAULT 0) STRICT")
    writer = Writer(db, "memory")
    insert = "INSERT OR IGNORE INTO number (n) VALUES (?)"

    def move(n: int) -> Callable[[sqlite3.Connection], Any]:
        return lambda db: db.execute("UPDATE OR IGNORE number SET n = n + 10 WHERE n = ?", (n,))

    async def play() -> list[tuple[int, int]]:
        waiting = []
        inserted = set()
        for kind, n in script:
            if kind == "p":
                await asyncio.sleep(0)  # let those asked for before queue first
                writer.post(insert, (n,))
            elif kind == "i":
                waiting.append(asyncio.create_task(writer.write(insert, (n,))))
            elif kind == "c":
                waiting.append(asyncio.create_task(writer.call(move(n))))
            elif n in inserted:
                waiting.append(asyncio.create_task(writer.write("UPDATE number SET settled = 1 WHERE n = ?", (n,))))
            if kind in "ip":
                inserted.add(n)
        await asyncio.gather(*waiting)
        return await writer.call(lambda db: db.execute("SELECT n, settled FROM number").fetchall())

    for kind, n in script:
        if kind in "ip":
            model.setdefault(n, 0)
        elif kind == "s" and n in model:
            model[n] = 1
        elif kind == "c" and n in model and n + 10 not in model:
            model[n + 10] = model.pop(n)
    found = asyncio.run(play())
    writer.close()
    assert dict(found) == model


async def test_over_the_maximum_callers_wait_and_nothing_is_lost(tmp_path: Path) -> None:
    writer = make(tmp_path / "w.db", max_queued=2)
    hold, began, go = stopper()
    tasks = [asyncio.create_task(writer.call(hold))]
    await asyncio.to_thread(began.wait, 20)
    tasks += [asyncio.create_task(writer.write(INSERT, (n,))) for n in range(50)]
    await asyncio.sleep(0)

    def post() -> None:
        for n in range(50, 60):
            writer.post(INSERT, (n,))

    poster = threading.Thread(target=post)
    poster.start()
    assert len(writer._queue) == 2
    assert poster.is_alive()
    go.set()
    await asyncio.gather(*tasks)
    await asyncio.to_thread(poster.join, 20)
    await asyncio.to_thread(writer.close)
    assert numbers(tmp_path / "w.db") == list(range(60))


async def test_a_cancelled_caller_disturbs_nobody(tmp_path: Path) -> None:
    writer = make(tmp_path / "w.db", max_queued=2)
    hold, began, go = stopper()
    holder = asyncio.create_task(writer.call(hold))
    await asyncio.to_thread(began.wait, 20)
    tasks = [asyncio.create_task(writer.write(INSERT, (n,))) for n in range(6)]
    await asyncio.sleep(0)
    tasks[0].cancel()  # queued: its row may be written
    tasks[3].cancel()  # waits for room: its row is not queued
    await asyncio.sleep(0)
    go.set()
    outcomes = await asyncio.gather(holder, *tasks, return_exceptions=True)
    await asyncio.to_thread(writer.close)
    assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[1:]] == [1, 0, 0, 1, 0, 0]
    assert numbers(tmp_path / "w.db") == [0, 1, 2, 4, 5]


async def test_what_takes_long_is_run_by_the_thread_whoever_else_writes(tmp_path: Path) -> None:
    db = open_file(tmp_path / "w.db")
    db.execute("CREATE TABLE number (n INTEGER) STRICT")
    db.create_function("thread", 0, threading.get_ident)
    writer, mine = Writer(db, "test.db"), "INSERT INTO number VALUES (thread())"
    await writer.write(mine, ())  # the thread's, as the first
    await asyncio.gather(writer.write(mine, ()), writer.write_long(mine), writer.write(INSERT, (0,)))
    first, second, long = await writer.call(lambda db: [n for (n,) in db.execute("SELECT n FROM number WHERE n")])
    await asyncio.to_thread(writer.close)
    assert first == second == long != threading.get_ident()


async def test_close_commits_what_is_queued_and_ends_the_thread(tmp_path: Path) -> None:
    writer = make(tmp_path / "w.db")
    hold, began, go = stopper()
    holder = asyncio.create_task(writer.call(hold))
    await asyncio.to_thread(began.wait, 20)
    tasks = [asyncio.create_task(writer.write(INSERT, (n,))) for n in range(20)]
    await asyncio.sleep(0)
    for n in range(20, 30):
        writer.post(INSERT, (n,))
    closing = asyncio.create_task(asyncio.to_thread(writer.close))
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(closing, holder, *tasks)
    assert numbers(tmp_path / "w.db") == list(range(30))
    assert not writer._thread.is_alive()
    assert not (tmp_path / "w.db-wal").exists()
    writer.close()
    with pytest.raises(StoreError, match="closed"):
        await writer.write(INSERT, (99,))
    with pytest.raises(StoreError, match="closed"):
        writer.post(INSERT, (99,))


async def test_close_tells_of_a_posted_line_that_failed(tmp_path: Path) -> None:
    writer = make(tmp_path / "w.db")
    writer.post(INSERT, (1,))
    writer.post(INSERT, (1,))
    writer.post(INSERT, (2,))
    with pytest.raises(StoreError, match="could not be written"):
        writer.close()
    writer.close()
    assert numbers(tmp_path / "w.db") == [1, 2]


def test_f44_one_writer_serves_several_event_loops_one_after_another(tmp_path: Path) -> None:
    writer = make(tmp_path / "w.db")
    for n in range(3):
        asyncio.run(writer.write(INSERT, (n,)))
    writer.close()
    assert numbers(tmp_path / "w.db") == [0, 1, 2]


def test_a_loop_may_close_before_its_row_is_committed(tmp_path: Path) -> None:
    writer = make(tmp_path / "w.db")
    hold, began, go = stopper()

    async def leave_early() -> None:
        tasks = [asyncio.create_task(writer.call(hold)), asyncio.create_task(writer.write(INSERT, (1,)))]
        await asyncio.to_thread(began.wait, 20)
        assert not any(task.done() for task in tasks)

    asyncio.run(leave_early())
    go.set()
    asyncio.run(writer.write(INSERT, (2,)))
    writer.close()
    assert numbers(tmp_path / "w.db") == [1, 2]


async def everyone_is_told(writer: Writer, word: str) -> None:
    """All of a batch, those who wait for room, and those who come later get StoreError; nothing hangs."""
    async with asyncio.timeout(20):
        tasks = [asyncio.create_task(writer.write(INSERT, (n,))) for n in range(1000, 1050)]
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, StoreError) and word in str(outcome)
        with pytest.raises(StoreError, match=word):
            await writer.write(INSERT, (1,))
        with pytest.raises(StoreError, match=word):
            writer.post(INSERT, (1,))
        await asyncio.to_thread(writer.close)


async def test_a_full_disk_ends_the_writer_and_keeps_what_was_confirmed(tmp_path: Path) -> None:
    writer = make(tmp_path / "w.db", max_queued=10)
    await writer.write(INSERT, (1,))

    def fill(db: sqlite3.Connection) -> None:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages + 2}")
        db.execute("CREATE TABLE big (b BLOB)")
        db.execute("INSERT INTO big VALUES (zeroblob(1000000))")

    with pytest.raises(StoreError, match=r"disk is full.*run the same command again"):
        await writer.call(fill)
    await everyone_is_told(writer, "disk is full")
    assert numbers(tmp_path / "w.db") == [1]


async def test_a_lock_held_by_another_program_ends_the_writer(tmp_path: Path) -> None:
    writer = make(tmp_path / "w.db", max_queued=10)
    await writer.call(lambda db: db.execute("PRAGMA busy_timeout = 20"))
    browser = sqlite3.connect(tmp_path / "w.db", isolation_level=None)
    browser.execute("BEGIN IMMEDIATE")
    await everyone_is_told(writer, "another program has locked it")
    browser.close()
    assert numbers(tmp_path / "w.db") == []


async def test_a_bug_in_the_writer_leaves_nobody_waiting(tmp_path: Path) -> None:
    writer = make(tmp_path / "w.db", max_queued=10)

    def leave(db: sqlite3.Connection) -> None:
        raise SystemExit

    with pytest.raises(StoreError, match="the writer ended"):
        await writer.call(leave)
    await everyone_is_told(writer, "the writer ended")


async def test_lines_posted_to_a_dying_writer_are_reported_at_close(tmp_path: Path) -> None:
    writer = make(tmp_path / "w.db")
    hold, began, go = stopper()

    def break_off(db: sqlite3.Connection) -> None:
        hold(db)
        db.execute("ROLLBACK")  # as SQLite does by itself after some I/O errors
        db.execute("SELECT * FROM nowhere")

    broken = asyncio.create_task(writer.call(break_off))
    await asyncio.to_thread(began.wait, 20)
    writer.post(INSERT, (1,))
    go.set()
    with pytest.raises(StoreError):
        await broken
    with pytest.raises(StoreError, match="could not be written"):
        await asyncio.to_thread(writer.close)
    assert numbers(tmp_path / "w.db") == []


async def test_a_file_locked_by_another_program_does_not_hold_the_loop_up(writer: Writer, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "w.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(writer.write(INSERT, (1,)))
    behind = asyncio.create_task(writer.write(INSERT, (2,)))
    longest, until = 0.0, time.monotonic() + 0.5
    while (before := time.monotonic()) < until:
        await asyncio.sleep(0.001)
        longest = max(longest, time.monotonic() - before)
    assert not waiting.done() and not behind.done()
    assert longest < 0.4  # the lock lasts for 0.5
    other.execute("COMMIT")
    other.close()
    await asyncio.gather(waiting, behind)
    assert numbers(tmp_path / "w.db") == [1, 2]


def test_what_a_loop_left_behind_is_committed_by_the_next_caller_or_at_the_end(tmp_path: Path) -> None:
    writer = make(tmp_path / "w.db")

    async def post(n: int) -> None:
        writer.post(INSERT, (n,))  # and the loop ends, perhaps before it is committed

    asyncio.run(post(1))
    asyncio.run(writer.write(INSERT, (2,)))
    assert numbers(tmp_path / "w.db") == [1, 2]
    asyncio.run(post(3))
    writer.close()
    assert numbers(tmp_path / "w.db") == [1, 2, 3]


async def test_closing_in_another_thread_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    for turn in range(20):
        writer = make(tmp_path / f"{turn}.db")
        writing = [asyncio.create_task(writer.write(INSERT, (n,))) for n in range(300)]
        await asyncio.sleep(0.0005 * (turn % 4))
        await asyncio.to_thread(writer.close)
        outcomes = await asyncio.gather(*writing, return_exceptions=True)
        kept = [n for n, outcome in enumerate(outcomes) if outcome is None]
        assert set(kept) <= set(numbers(tmp_path / f"{turn}.db"))
        assert all(isinstance(outcome, StoreError) for outcome in outcomes if outcome is not None)
