"""What people do with work items: look, cancel, try again, put away."""

# ruff: noqa: S608 - the names put into statements are our own

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from siafu.border.text import SHOWN, clean, first_of, preview
from siafu.errors import InputError
from siafu.store.database import Database, Transaction
from siafu.store.task_records import Move, Task, full_name, name_of
from siafu.store.task_schema import NAME_IN_KEY
from siafu.store.task_sql import ring
from siafu.store.task_turns import give_back, line_up
from siafu.store.tasks import as_task, finish
from siafu.store.webhooks import WebhookQueue
from siafu.store.workers import HEARD, Workers

T = TypeVar("T")
AT_ONCE = 500  # rows of one transaction
_ID = re.compile(r"t_[0-9a-f]{0,32}")
_NEEDS = "SELECT state FROM task JOIN task_need ON task_need.needs = task.id WHERE task_need.task = :id"
# What a task waits for that only a person changes; all else may pass by itself.
BY_PEOPLE = ("pending_approval", "tool_changed", "tool_disabled")
ENDED_BADLY = ("failed", "cancelled", "expired", "dead_letter")
_NEED_GONE = "need_gone"  # the code of what can never begin again


class Which(msgspec.Struct, frozen=True, kw_only=True):
    """Chooses tasks; None = any."""

    run: str | None = None
    state: str | None = None
    tenant: str | None = None
    customer: str | None = None


class TaskDesk:
    """The people's side of the tasks in a database, which stays its owner's to close. rung: told when something may
    have become ready, or shall be stopped; as in `TaskStore`. workers: who works on them. deliveries: what webhooks are
    told of them. Raises (every method): StoreError.
    """

    def __init__(self, database: Database, rung: Callable[[Collection[str]], None] = lambda tasks: None) -> None:
        self.workers = Workers(database)
        self.deliveries = WebhookQueue(database)
        self._database = database
        self._rung = rung

    async def one(self, text: str) -> Task:
        """The task with this id, else the only one whose id begins so or that was submitted under this name (`NAME` or
        `RUN/NAME`).

        Raises: InputError when there is none, or it may be several.
        """
        found: list[Task] = []
        if _ID.fullmatch(begin := text.strip()):
            sql = "SELECT * FROM task WHERE id >= :begin AND id < :end ORDER BY id LIMIT :most"
            found = await self._rows(sql, begin=begin, end=begin + "g", most=SHOWN + 1)  # g is behind the hex digits
            if found and found[0].id == begin:
                return found[0]
        found = list({task.id: task for task in (*found, *await self._named(clean(text)))}.values())
        if not found:
            raise InputError(f"there is no task {preview(text, 60)!r}; see: siafu tasks list")
        if len(found) > 1:
            told = first_of([f"{task.id} ({preview(full_name(task.once, task.run), 60)})" for task in found])
            raise InputError(
                f"several tasks are meant by {preview(text, 60)!r}: {told}; say more of the id, or RUN/NAME; "
                "see: siafu tasks list"
            )
        return found[0]

    async def _named(self, text: str) -> list[Task]:
        """Tasks that have this name, one more at most than are shown."""
        words = text.split("/")
        names = ["/".join(words[at:]) for at in range(len(words))]  # both runs and names may hold slashes

        def work(tx: Transaction) -> list[str]:
            name = NAME_IN_KEY[tx.dialect]
            sql = f"SELECT id, once, run FROM task WHERE once IS NOT NULL AND ({name}) IN :names ORDER BY id"
            return [
                row["id"]
                for row in tx.rows(sql, names=names)
                if text in (found := name_of(row["once"], row["run"]), f"{row['run']}/{found}")
            ]

        ids = (await self._database.run(work))[: SHOWN + 1]
        return await self._rows("SELECT * FROM task WHERE id IN :ids ORDER BY id", ids=ids) if ids else []

    async def find(self, which: Which, *, limit: int, after: Task | None = None) -> list[Task]:
        """Tasks in the order in which they were accepted, from behind `after` on; None = from the first."""
        place: dict[str, Any] = {} if after is None else {"at": after.created_at, "id": after.id}
        behind = "" if after is None else " AND (created_at > :at OR (created_at = :at AND id > :id))"
        where, values = _where(which)
        sql = f"SELECT * FROM task WHERE {where}{behind} ORDER BY created_at, id LIMIT :limit"
        return await self._rows(sql, limit=limit, **place, **values)

    async def ended(self, which: Which, *, limit: int, after: Task | None = None) -> list[Task]:
        """Tasks that have ended, in that order, from behind `after` on."""
        place: dict[str, Any] = {} if after is None else {"at": after.ended_at, "id": after.id}
        behind = "" if after is None else " AND (ended_at > :at OR (ended_at = :at AND id > :id))"
        where, values = _where(which)
        sql = f"SELECT * FROM task WHERE ended_at IS NOT NULL AND {where}{behind} ORDER BY ended_at, id LIMIT :limit"
        return await self._rows(sql, limit=limit, **place, **values)

    async def counts(self, which: Which) -> dict[str, int]:
        """How many there are, by state."""
        where, values = _where(which)
        sql = f"SELECT state, COUNT(*) AS n FROM task WHERE {where} GROUP BY state"
        return {row["state"]: row["n"] for row in await self._database.run(lambda tx: tx.rows(sql, **values))}

    async def moving(self, which: Which) -> bool:
        """Whether a task is left that can go on without a person: ready, leased, to be tried again, or waiting for
        what may pass while a worker is there to see it.
        """
        where, values = _where(which)
        sql = (
            "SELECT 1 AS one FROM task WHERE ended_at IS NULL AND (state IN ('ready', 'leased') "
            "OR (state = 'waiting' AND (waits_for = '' OR (waits_for NOT IN :people "
            f"AND EXISTS (SELECT 1 FROM worker WHERE seen_at > {{now}} - :heard))))) AND {where} LIMIT 1"
        )
        more: dict[str, Any] = {"people": list(BY_PEOPLE), "heard": HEARD}
        return bool(await self._database.run(lambda tx: tx.rows(sql, **more, **values)))

    async def waits(self, which: Which) -> dict[str, int]:
        """How many wait, by the code of what for; "" = for their next try after an error."""
        where, values = _where(which)
        sql = (
            "SELECT waits_for, COUNT(*) AS n FROM task "
            f"WHERE ended_at IS NULL AND state = 'waiting' AND {where} GROUP BY waits_for"
        )
        return {row["waits_for"]: row["n"] for row in await self._database.run(lambda tx: tx.rows(sql, **values))}

    async def journal(self, id: str) -> list[dict[str, Any]]:
        """The steps of a task, without what was said in them: path, seq, kind and usd_pico."""
        sql = "SELECT path, seq, kind, usd_pico FROM task_journal WHERE task = :id ORDER BY path, seq"
        return [dict(row) for row in await self._database.run(lambda tx: tx.rows(sql, id=id))]

    async def needs(self, id: str) -> list[dict[str, str]]:
        """What a task needed that had not succeeded when it was accepted: id and state of each."""
        sql = (
            "SELECT id, state FROM task JOIN task_need ON task_need.needs = task.id "
            "WHERE task_need.task = :id ORDER BY created_at, id"
        )
        return [dict(row) for row in await self._database.run(lambda tx: tx.rows(sql, id=id))]

    async def tenants(self, customer: str) -> dict[str, int]:
        """How many tasks customers of this name have, by tenant."""
        sql = "SELECT tenant, COUNT(*) AS n FROM task WHERE customer = :customer GROUP BY tenant ORDER BY tenant"
        rows = await self._database.run(lambda tx: tx.rows(sql, customer=clean(customer)))
        return {row["tenant"]: row["n"] for row in rows}

    async def known(self, tenant: str, onces: Sequence[str]) -> dict[str, str]:
        """The ids of the tasks of a tenant that were submitted under these keys; others are left out."""

        def work(tx: Transaction) -> dict[str, str]:
            sql = "SELECT id FROM task WHERE tenant = :tenant AND once = :once"
            found = ((once, tx.row(sql, tenant=clean(tenant), once=clean(once))) for once in onces)
            return {once: row["id"] for once, row in found if row is not None}

        return await self._database.run(work) if onces else {}

    async def prints(self, tenant: str, onces: Sequence[str]) -> dict[str, str]:
        """What the tasks of a tenant under these keys share with any that is sent again (`body_print`)."""

        def work(tx: Transaction) -> dict[str, str]:
            sql = "SELECT once, print FROM task WHERE tenant = :tenant AND once IN :onces"
            return {row["once"]: row["print"] for row in tx.rows(sql, tenant=clean(tenant), onces=list(onces))}

        return await self._database.run(work) if onces else {}

    async def ended_of(self, ids: Collection[str]) -> set[str]:
        """Those of these tasks that have ended, or are gone."""
        wanted = sorted(ids)
        sql = "SELECT 1 AS one FROM task WHERE id = :id AND ended_at IS NULL"

        def work(tx: Transaction, part: Sequence[str]) -> set[str]:
            return {id for id in part if not tx.rows(sql, id=id)}

        parts = (wanted[at : at + AT_ONCE] for at in range(0, len(wanted), AT_ONCE))
        return set[str]().union(*[await self._database.run(partial(work, part=part)) for part in parts])

    async def failed_of(self, ids: Collection[str]) -> set[str]:
        """Those of these tasks that have ended otherwise than well: what needs them is not accepted."""
        sql = "SELECT id FROM task WHERE id IN :ids AND state IN :bad"
        values = {"ids": sorted(ids), "bad": list(ENDED_BADLY)}
        return {row["id"] for row in await self._database.run(lambda tx: tx.rows(sql, **values))} if ids else set()

    async def cancel(self, ids: Sequence[str]) -> int:
        """End tasks that have not begun, and have those stopped that a worker holds; returns how many have not ended
        yet of those that were open. What has ended stays as it is.
        """

        def work(tx: Transaction) -> int:
            tasks = [task for task in _each(tx, ids) if task.ended_at is None]
            running = [task.id for task in tasks if task.state == "leased"]
            for id in running:
                tx.change("UPDATE task SET cancel_requested = 1 WHERE id = :id", id=id)
            idle = [task for task in tasks if task.state != "leased"]
            finish(tx, [(task, Move(state="cancelled", code="cancelled")) for task in idle])
            give_back(tx, idle)
            ring(tx)
            return len(running)

        asked = await self._database.run(work)
        self._rung(())
        return asked

    async def retry(self, ids: Sequence[str]) -> int:
        """Have tasks that ended otherwise than well begin again, with all they have journaled; returns how many.
        Deadlines that are over hold no longer. What needs one that did not succeed is left; retry that one first. If
        that one was removed, it is left for good.
        """

        def work(tx: Transaction) -> tuple[int, list[str]]:
            again, ready = 0, list[str]()
            for task in sorted(_each(tx, ids), key=lambda task: task.created_at):
                states = tx.rows(_NEEDS, id=task.id)
                lacking = task.code == _NEED_GONE or any(need["state"] in ENDED_BADLY for need in states)
                if task.state in ENDED_BADLY and not lacking:
                    left = sum(need["state"] != "succeeded" for need in states)
                    if not left:
                        line_up(tx, [msgspec.structs.asdict(task)])
                        ready.append(task.id)
                    again += tx.change(
                        "UPDATE task SET state = :state, ready_at = {now}, ended_at = NULL, deliveries = 0, "
                        "lapses = 0, deps_left = :left, cancel_requested = 0, waits_since = NULL, "
                        "deadline_at = CASE WHEN deadline_at > {now} THEN deadline_at ELSE NULL END WHERE id = :id",
                        id=task.id, state="blocked" if left else "ready", left=left,
                    )  # fmt: skip
            ring(tx)
            return again, ready

        again, ready = await self._database.run(work)
        self._rung(ready)
        return again

    async def purge(self, which: Which, seconds: float) -> int:
        """Remove tasks that ended `seconds` ago or more, with all that is known of them; returns how many. Their keys
        are free again.
        """
        where, values = _where(which)
        sql = (
            f"SELECT id, state FROM task WHERE ended_at IS NOT NULL AND ended_at <= :until AND {where} "
            "ORDER BY ended_at, id LIMIT :most {for_update}"
        )

        def work(tx: Transaction) -> int:
            (clock,) = tx.rows("SELECT {now} AS now")
            return _remove(tx, tx.rows(sql, until=clock["now"] - seconds, most=AT_ONCE, **values))

        removed = 0
        while True:
            found = await self._database.run(work)
            removed += found
            if found < AT_ONCE:
                return removed

    async def forget(self, customer: str, tenant: str) -> int:
        """Remove all tasks of one customer, those that are under way too: whoever works on one is fenced, and stops
        when it next renews its lease. Returns how many.
        """

        def work(tx: Transaction) -> int:
            values: dict[str, Any] = {"customer": clean(customer), "tenant": clean(tenant), "most": AT_ONCE}
            rows = tx.rows(
                "SELECT * FROM task WHERE customer = :customer AND tenant = :tenant ORDER BY id LIMIT :most "
                "{for_update}",
                **values,
            )
            tasks = [task for task in map(as_task, rows) if task.ended_at is None]
            # what needs them must not wait for ever
            finish(tx, [(task, Move(state="cancelled", code="customer_forgotten")) for task in tasks])
            give_back(tx, tasks)
            return _remove(tx, rows)

        removed = 0
        while found := await self._database.run(work):
            removed += found
        return removed

    async def _rows(self, sql: str, **values: Any) -> list[Task]:
        return [as_task(row) for row in await self._database.run(lambda tx: tx.rows(sql, **values))]


def _each(tx: Transaction, ids: Sequence[str]) -> list[Task]:
    """Those that there are, locked."""
    found = (tx.row("SELECT * FROM task WHERE id = :id {for_update}", id=id) for id in sorted(ids))
    return [as_task(row) for row in found if row is not None]


def _remove(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> int:
    """Remove tasks that have ended; returns how many. What needed one that did not succeed can never begin again."""
    if not rows:
        return 0
    needs = "state <> 'succeeded' AND ended_at IS NOT NULL AND id IN (SELECT task FROM task_need WHERE needs = :id)"
    for row in rows:
        if row["state"] != "succeeded":
            message = f"it needs the task {row['id']}, which did not succeed, and was removed"
            sql = f"UPDATE task SET code = :code, message = :message WHERE {needs}"
            tx.change(sql, id=row["id"], code=_NEED_GONE, message=message)
    return tx.change("DELETE FROM task WHERE id IN :ids", ids=[row["id"] for row in rows])


def _where(which: Which) -> tuple[str, dict[str, str]]:
    values = {name: clean(value) for name, value in msgspec.structs.asdict(which).items() if value is not None}
    return " AND ".join(f"{name} = :{name}" for name in values) or "1 = 1", values
