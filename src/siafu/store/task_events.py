"""What a client may know of tasks: the tasks of its tenant in pages, and what happened to them, in one lasting order.

Every query carries whose tasks are meant, so nothing of others is found by any id or cursor.
"""

# ruff: noqa: S608 - the names put into statements are our own

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from siafu.border.text import clean
from siafu.store.database import Database, Transaction
from siafu.store.task_records import State

Cursor = tuple[float, str]  # created_at and id of a task
SPAN = 5_000  # tasks that are looked through for a page
AT_ONCE = 1000  # events that get their places in one transaction


class Whose(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of a tenant; customer: only those of this one, None = all."""

    tenant: str
    customer: str | None = None

    def owns(self, tenant: str, customer: str) -> bool:
        return tenant == self.tenant and self.customer in (None, customer)


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A task without its request. Fields as in `Task`; result: None in pages."""

    id: str
    kind: str
    run: str
    once: str | None
    priority: int
    state: State
    created_at: float
    deadline_at: float | None
    deliveries: int
    cancel_requested: int
    waits_for: str
    code: str
    message: str
    ended_at: float | None
    result: str | None = None


class TaskEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a task. place: in the order of all events; they only grow, with gaps. what:
    `accepted`, `cancel_requested`, or the state that the task got into. at: seconds since 1970. code: the error that
    the task had then, if any. epoch: how often it had been leased.
    """

    place: int
    task: str
    what: str
    at: float
    code: str
    epoch: int
    tenant: str
    customer: str
    run: str
    kind: str
    once: str | None


_SEEN = ", ".join(name for name in Seen.__struct_fields__ if name != "result")
_EVENT = ", ".join(
    f"{'task_told' if name in ('place', 'task', 'what', 'at', 'code', 'epoch') else 'task'}.{name}"
    for name in TaskEvent.__struct_fields__
)
_EVENTS = (
    f"SELECT {_EVENT} FROM task_told JOIN task ON task.id = task_told.task WHERE place > :after AND place <= :upto"
)


class TaskViews:
    """The tasks in a database, which stays its owner's to close. Raises (every method): StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def these(self, ids: Sequence[str], whose: Whose) -> dict[str, Seen]:
        """Those of some tasks that there are and that are `whose`, by id, with their results. ids: at most some 100."""
        where, values = _where(whose)
        named = {f"id{n}": clean(id) for n, id in enumerate(ids)}
        sql = f"SELECT {_SEEN}, result FROM task WHERE id IN ({', '.join(f':{name}' for name in named)}) AND {where}"
        rows = await self._database.run(lambda tx: tx.rows(sql, **named, **values))
        return {row["id"]: Seen(**row) for row in rows}

    async def page(
        self, whose: Whose, filters: Mapping[str, str], *, limit: int, after: Cursor | None
    ) -> tuple[list[Seen], Cursor | None]:
        """Tasks in the order in which they were accepted, from behind `after` on, and the place behind which there may
        be more; None = there are no more yet. A page of a few tasks among many others may be short, even empty.
        filters: values of `run`, `state` and `kind`.
        """
        where, values = _where(whose)
        if after is not None:
            where += " AND (created_at > :at OR (created_at = :at AND id > :id))"
            values |= {"at": after[0], "id": after[1]}
        chosen, wanted = _where(whose, **filters)  # which are those, too
        order = "ORDER BY created_at, id"

        def work(tx: Transaction) -> tuple[list[Seen], Cursor | None]:
            sql = f"SELECT created_at, id FROM task WHERE {where} {order} LIMIT 1 OFFSET :span"
            end = tx.row(sql, span=SPAN - 1, **values)
            until, bounds = "", dict[str, Any]()
            if end is not None:
                until = " AND (created_at < :until OR (created_at = :until AND id <= :last))"
                bounds = {"until": end["created_at"], "last": end["id"]}
            sql = f"SELECT {_SEEN} FROM task WHERE {where} AND {chosen}{until} {order} LIMIT :limit"
            found = [Seen(**row) for row in tx.rows(sql, limit=limit + 1, **(values | wanted | bounds))]
            if len(found) > limit:
                return found[:limit], (found[limit - 1].created_at, found[limit - 1].id)
            return found, None if end is None else (end["created_at"], end["id"])

        return await self._database.run(work)

    async def settle(self) -> int:
        """Give every committed event its place; returns the last one that was given."""
        while True:
            place, more = await self._database.run(_settle)
            if not more:
                return place

    async def events(self, *, after: int, upto: int, limit: int) -> list[TaskEvent]:
        """Everybody's events with places behind `after`, not behind `upto`."""
        return await self._events("", limit=limit, after=after, upto=upto)

    async def events_of(
        self, whose: Whose, filters: Mapping[str, str], *, after: int, upto: int, limit: int
    ) -> list[TaskEvent]:
        """The same of some tasks. filters: as in `page`, and `id`."""
        where, values = _where(whose, **filters)
        return await self._events(f" AND {where}", limit=limit, after=after, upto=upto, **values)

    async def _events(self, more: str, **values: Any) -> list[TaskEvent]:
        sql = f"{_EVENTS}{more} ORDER BY place LIMIT :limit"
        return [TaskEvent(**row) for row in await self._database.run(lambda tx: tx.rows(sql, **values))]


def last_place(tx: Transaction) -> int:
    """The last place that was given, ever: those of events that were removed are not given again."""
    if tx.dialect == "sqlite":
        row = tx.row("SELECT seq AS place FROM sqlite_sequence WHERE name = 'task_event'")
    else:
        row = tx.row("SELECT place FROM task_event_last")
    return 0 if row is None else int(row["place"])


def _settle(tx: Transaction) -> tuple[int, bool]:
    """The last place, and whether there may be more to give."""
    if tx.dialect == "sqlite":
        return last_place(tx), False
    if tx.row("SELECT 1 AS one FROM task_event WHERE place IS NULL LIMIT 1") is None:
        return last_place(tx), False
    (row,) = tx.rows("SELECT place FROM task_event_last {for_update}")  # the next statement sees what others gave
    given = tx.change(
        "UPDATE task_event SET place = :last + chosen.n FROM (SELECT id, ROW_NUMBER() OVER (ORDER BY id) AS n "
        "FROM (SELECT id FROM task_event WHERE place IS NULL ORDER BY id LIMIT :most) AS new) AS chosen "
        "WHERE task_event.id = chosen.id",
        last=row["place"], most=AT_ONCE,
    )  # fmt: skip
    tx.change("UPDATE task_event_last SET place = place + :given", given=given)
    return row["place"] + given, given == AT_ONCE


def _where(whose: Whose, **filters: str) -> tuple[str, dict[str, Any]]:
    filters |= {"tenant": whose.tenant} | ({} if whose.customer is None else {"customer": whose.customer})
    return " AND ".join(f"task.{name} = :is_{name}" for name in filters), {
        f"is_{name}": clean(value) for name, value in filters.items()
    }
