"""What the databases hold, as metrics. Each question is answered from an index over what has not ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from siafu.observe.figures import Family, SlowSource
from siafu.store.database import Database, Transaction
from siafu.store.task_records import OPEN

_UNSETTLED = ("open", "pending_approval", "dispatching", "unknown", "waiting", "manual_review")  # states of effects


def task_families(database: Database) -> SlowSource:
    """Of a database with `task_schema.MIGRATIONS`."""

    def work(tx: Transaction) -> tuple[Sequence[Any], int]:
        sql = (
            "SELECT state, COUNT(*) AS n, {now} - MIN(ready_at) AS age FROM task WHERE ended_at IS NULL GROUP BY state"
        )
        (dead,) = tx.rows("SELECT COUNT(*) AS n FROM task WHERE state = 'dead_letter'")
        return tx.rows(sql), int(dead["n"])

    async def ask() -> list[Family]:
        rows, dead = await database.run(work)
        counts = {row["state"]: row["n"] for row in rows}
        age = max((row["age"] for row in rows if row["state"] == "ready"), default=0.0)
        states = [((state,), float(counts.get(state, 0))) for state in OPEN]
        return [
            Family("siafu_tasks", "gauge", "Tasks that have not ended, by state", ("state",), states),
            Family("siafu_tasks_dead", "gauge", "Tasks that were given up: siafu dead list", (), [((), dead)]),
            Family(
                "siafu_tasks_oldest_ready_seconds", "gauge", "For how long the oldest ready task has been ready", (),
                [((), max(0.0, age))],
            ),
        ]  # fmt: skip

    return ask


def effect_families(database: Database) -> SlowSource:
    """Of a database with `effect_schema.MIGRATIONS`."""
    names = ", ".join(f"'{state}'" for state in _UNSETTLED)
    sql = f"SELECT state, COUNT(*) AS n FROM effect WHERE state IN ({names}) GROUP BY state"  # noqa: S608 - our own

    async def ask() -> list[Family]:
        counts = {row["state"]: row["n"] for row in await database.run(lambda tx: tx.rows(sql))}
        rows = [((state,), float(counts.get(state, 0))) for state in _UNSETTLED]
        return [Family("siafu_effects", "gauge", "Effects of tools that are not settled, by state", ("state",), rows)]

    return ask
