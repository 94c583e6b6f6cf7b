"""The statements of a run, and its operations that take more than one. Columns are named like the fields of the
records, so a statement is made from the record it writes or reads.
"""

# ruff: noqa: S608 - the names put into statements are those of our own records

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from operator import attrgetter

from siafu.store.records import AttemptOpened, AttemptSettled, Claimed, ItemRecord, JournalEntry, RunState
from siafu.store.schema import LOOKUPS

ITEM = ItemRecord.__struct_fields__
ENTRY = JournalEntry.__struct_fields__
OPENED = tuple(name for name in AttemptOpened.__struct_fields__ if name != "run")
SETTLED = tuple(name for name in AttemptSettled.__struct_fields__ if name != "attempt")

item_row, entry_row, opened_row = attrgetter(*ITEM), attrgetter(*ENTRY), attrgetter(*OPENED)
settled_row = attrgetter(*SETTLED)


def _insert(table: str, columns: Sequence[str]) -> str:
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"


def _replacing(columns: Sequence[str]) -> str:
    return ", ".join(f"{name} = excluded.{name}" for name in columns)


OPEN = _insert("attempt", ("id", "run", *OPENED))
SETTLE = f"UPDATE attempt SET {', '.join(f'{name} = ?' for name in SETTLED)} WHERE id = ? AND outcome IS NULL"
APPEND = _insert("journal", ("run", "task", *ENTRY))
RECORD = _insert("item", ("run", "session", *ITEM)) + f" ON CONFLICT (run, key) DO UPDATE SET {_replacing(ITEM[1:])}"
# SQLite takes the other columns from the row of the maximum.
ENTRIES = f"""
SELECT {", ".join(ENTRY)}, MAX(id) FROM journal WHERE run = ? AND task = ? GROUP BY path, seq ORDER BY path, seq
"""
SPENT_ON = "SELECT agent, COALESCE(SUM(usd_pico), 0) FROM attempt WHERE run = ? AND task = ? GROUP BY agent"
KNOWN = f"SELECT session, {', '.join(ITEM)} FROM item WHERE run = ? AND key = ?"
JOURNALED = "SELECT EXISTS (SELECT 1 FROM journal WHERE run = ? AND task = ?)"
# An item that has a result keeps the fingerprint of the input that led to it, until the next result.
CLAIM = """
INSERT INTO item (run, session, key, input_print) VALUES (?, ?, ?, ?) ON CONFLICT (run, key) DO UPDATE SET
session = excluded.session, input_print = CASE WHEN status IS NULL THEN excluded.input_print ELSE input_print END
"""


def begin(db: sqlite3.Connection, *, name: str, work_print: str, now: float) -> tuple[int, int, RunState]:
    """Begin a session of the run: its id, the id of the ledger's last line, and what earlier sessions left."""
    db.execute("INSERT INTO run (name, created_at) VALUES (?, ?) ON CONFLICT (name) DO NOTHING", (name, now))
    run, session = db.execute(
        "SELECT id, (SELECT COALESCE(MAX(session), 0) + 1 FROM session WHERE run = run.id) FROM run WHERE name = ?",
        (name,),
    ).fetchone()
    db.execute(
        "INSERT INTO session (run, session, pid, work_print, began_at) VALUES (?, ?, ?, ?, ?)",
        (run, session, os.getpid(), work_print, now),
    )
    if session > 1:
        for index in LOOKUPS:
            db.execute(index)
    in_flight, in_flight_pico = db.execute(
        "SELECT COUNT(*), COALESCE(SUM(reserved_pico), 0) FROM attempt WHERE run = ? AND outcome IS NULL", (run,)
    ).fetchone()
    db.execute(
        "UPDATE attempt SET outcome = 'abandoned', code = 'lost_in_crash', settled_at = ?, usd_pico = reserved_pico"
        " WHERE run = ? AND outcome IS NULL",
        (now, run),
    )
    (spent_pico,) = db.execute("SELECT COALESCE(SUM(usd_pico), 0) FROM attempt WHERE run = ?", (run,)).fetchone()
    finished, failed, changed, changed_pico = db.execute(
        "SELECT COUNT(*) FILTER (WHERE status = 'ok'), COUNT(*) FILTER (WHERE status = 'error'),"
        " COUNT(*) FILTER (WHERE status = 'ok' AND ?2 <> '' AND work_print NOT IN ('', ?2)),"
        " COALESCE(SUM(usd_pico) FILTER (WHERE status = 'ok' AND ?2 <> '' AND work_print NOT IN ('', ?2)), 0)"
        " FROM item WHERE run = ?1",
        (run, work_print),
    ).fetchone()
    (last,) = db.execute("SELECT COALESCE(MAX(id), 0) FROM attempt").fetchone()
    return (
        run,
        last,
        RunState(
            session=session,
            finished=finished,
            failed=failed,
            changed=changed,
            changed_pico=changed_pico,
            spent_pico=spent_pico,
            in_flight=in_flight,
            in_flight_pico=in_flight_pico,
        ),
    )


def claim(db: sqlite3.Connection, *, run: int, session: int, items: Sequence[tuple[str, str]]) -> list[Claimed]:
    claimed = []
    for key, input_print in items:
        known = db.execute(KNOWN, (run, key)).fetchone()
        journaled = session > 1 and db.execute(JOURNALED, (run, key)).fetchone()[0]
        db.execute(CLAIM, (run, session, key, input_print))
        found = dict(zip(ITEM, known[1:], strict=True)) if known else {}
        claimed.append(
            Claimed(
                key=key,
                record=ItemRecord(**found) if found.get("status") else None,
                duplicate=bool(known) and known[0] == session,
                journaled=bool(journaled),
            )
        )
    return claimed
