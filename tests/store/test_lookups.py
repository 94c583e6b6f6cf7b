"""A first session writes no index that it does not read; a run that goes on looks its tasks up by one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from siafu.store import key_spending, sql
from siafu.store.sqlite import SqliteStore

from .rows import entry, item, opened, settled

BY_TASK = [sql.ENTRIES, sql.SPENT_ON, sql.JOURNALED]


async def written(path: Path) -> None:
    run = SqliteStore(path).run("r")
    await run.begin("w")
    for task in ("주문-1", "주문-2"):
        await run.ledger.open(opened(task, task=task))
        await run.journal.append(task, entry())
    await run.aclose()


def plan(path: Path, query: str, values: tuple[object, ...] = (1, "주문-1")) -> str:
    with closing(sqlite3.connect(path)) as db:
        return " ".join(row[-1] for row in db.execute(f"EXPLAIN QUERY PLAN {query}", values))


@pytest.mark.parametrize("query", BY_TASK)
async def test_a_run_that_goes_on_reads_by_index(tmp_path: Path, query: str) -> None:
    path = tmp_path / "run.db"
    await written(path)
    assert "_of_task (run=? AND task=?)" not in plan(path, query)
    run = SqliteStore(path).run("r")
    assert (await run.begin("w")).session == 2
    await run.aclose()
    assert "_of_task (run=? AND task=?)" in plan(path, query)


async def test_what_a_client_key_was_charged_is_read_by_index_from_the_first_session_on(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "serve.db")
    run = store.run("serve")
    await run.begin("")
    for task in ("key_1/q1", "key_1/q2", "key_2/q1"):
        await run.ledger.open(opened(task, task=task, reserved_pico=5))
    asked = key_spending._CHARGED.replace("?1", "1").replace("?2", "'k/'").replace("?3", "'k0'").replace("?4", "0")
    assert "_of_task (run=? AND task>?" not in plan(tmp_path / "serve.db", asked, ())
    assert await key_spending.charged_now(store, run=run.id, key="key_1", since=0.0) == (0, 10)
    assert "_of_task (run=? AND task>? AND task<?)" in plan(tmp_path / "serve.db", asked, ())
    await run.aclose()


async def test_budgets_of_items_read_by_index_from_the_first_session_on(tmp_path: Path) -> None:
    run = SqliteStore(tmp_path / "run.db").run("r")
    await run.begin("w")
    await run.ledger.open(opened("a", task="주문-1"))
    run.ledger.settle(settled("a", usd_pico=7))
    assert "_of_task" not in plan(tmp_path / "run.db", sql.SPENT_ON)
    await run.record(item("주문-1"))  # durable with or after what was settled
    assert await run.ledger.spent_on("주문-1") == {"a": 7}
    assert "_of_task (run=? AND task=?)" in plan(tmp_path / "run.db", sql.SPENT_ON)
    await run.aclose()


async def test_a_journal_is_read_by_index_in_a_first_session_too(tmp_path: Path) -> None:
    """By items that wait for a person, and go on in the session in which they began."""
    run = SqliteStore(tmp_path / "run.db").run("r")
    await run.begin("w")
    await run.journal.append("주문-1", entry())
    assert "_of_task" not in plan(tmp_path / "run.db", sql.ENTRIES)
    assert await run.journal.entries("주문-1") == [entry()]
    assert "_of_task (run=? AND task=?)" in plan(tmp_path / "run.db", sql.ENTRIES)
    await run.aclose()


async def test_of_an_entry_that_came_twice_the_last_counts_in_both_sessions(tmp_path: Path) -> None:
    run = SqliteStore(tmp_path / "run.db").run("r")
    await run.begin("w")
    for outcome in (b"1", b"2"):
        await run.journal.append("t", entry(1, outcome=outcome))
        await run.journal.append("t", entry(0, outcome=outcome))
    seen = [(e.seq, e.outcome) for e in await run.journal.entries("t")]
    await run.aclose()
    again = SqliteStore(tmp_path / "run.db").run("r")
    await again.begin("w")
    assert seen == [(e.seq, e.outcome) for e in await again.journal.entries("t")] == [(0, b"2"), (1, b"2")]
    await again.aclose()
