"""When tasks were accepted and how they ended, without what they hold: for reports."""

# ruff: noqa: S608 - the names put into statements are our own

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from siafu.store.database import Database
from siafu.store.task_records import State

AT_ONCE = 5_000  # rows of one transaction


class TaskTimes(msgspec.Struct, frozen=True, kw_only=True):
    """As in `Task`."""

    id: str
    run: str
    once: str | None
    state: State
    code: str
    created_at: float
    ended_at: float | None


_COLUMNS = ", ".join(TaskTimes.__struct_fields__)


async def clock(database: Database) -> float:
    """The database's, in seconds since 1970. Raises: StoreError."""
    (row,) = await database.run(lambda tx: tx.rows("SELECT {now} AS now"))
    return float(row["now"])


async def task_times(
    database: Database, *, since: float, until: float, run: str | None = None, tenant: str | None = None
) -> AsyncIterator[list[TaskTimes]]:
    """All that were accepted from `since` on and before `until`, in pages, in no order. Raises: StoreError."""
    chosen: dict[str, Any] = {name: value for name, value in (("run", run), ("tenant", tenant)) if value is not None}
    where = "".join(f" AND {name} = :{name}" for name in chosen)
    sql = (
        f"SELECT {_COLUMNS} FROM task WHERE id > :after AND created_at >= :since AND created_at < :until{where} "
        "ORDER BY id LIMIT :most"
    )
    values = {"since": since, "until": until, "most": AT_ONCE, **chosen}
    after = ""
    while rows := await database.run(lambda tx, at=after: tx.rows(sql, after=at, **values)):  # type: ignore[misc]
        yield [TaskTimes(**row) for row in rows]
        after = rows[-1]["id"]
