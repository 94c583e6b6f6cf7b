"""Work items in SQL: accepted, claimed under a lease, ended once. SQLite and PostgreSQL.

Every rule rests on a unique key, a CHECK, or a row that is locked and then compared with its epoch, so READ COMMITTED
is enough. Leases run by the database's clock. A write by a worker whose lease was given to another changes nothing: it
is fenced, and counted.
"""

# ruff: noqa: S608 - the names put into statements are our own

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from siafu.border.text import clean
from siafu.errors import BacklogFull, Fenced
from siafu.store.crash import crash_point
from siafu.store.database import Database, Transaction
from siafu.store.records import JournalEntry
from siafu.store.task_backlog import MAX_OPEN, Backlog
from siafu.store.task_records import (
    AGED_SECONDS,
    MAX_PAYLOAD,
    TERMINAL,
    Accepted,
    Lapsed,
    Lease,
    Move,
    NewTask,
    NotAccepted,
    State,
    Task,
    Verdict,
    aged_claims,
    body_print,
    checked,
    move,
)
from siafu.store.task_turns import give_turns, line_up
from siafu.store.together import Together

CHANNEL = "siafu_tasks"
AT_ONCE = 100  # rows of one statement
MOST_MESSAGE = 2_000  # characters

_READY = "WHERE state = 'ready' AND kind = :kind AND lapses"
_NEXT = f"{_READY} < 2 ORDER BY priority, turn, created_at"
_OLDEST = f"{_READY} < 2 AND ready_at <= :aged ORDER BY ready_at"
_SUSPECT = f"{_READY} >= 2 ORDER BY priority, turn, created_at"
_NEEDING = "state = 'blocked' AND id IN (SELECT task FROM task_need WHERE needs = :id)"
_ENTRY, _TASK = JournalEntry.__struct_fields__, Task.__struct_fields__


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """What a look around has found. lost: tasks that the worker no longer holds; to_cancel: those it shall stop.
    moved: how many became ready or have ended.
    """

    lost: frozenset[str] = frozenset()
    to_cancel: frozenset[str] = frozenset()
    moved: int = 0


class TaskStore:
    """The tasks in one database, for one event loop. Opened with `task_schema.MIGRATIONS`; it stays its owner's to
    close, after `aclose`. rung: told when something may have become ready, or shall be stopped, once that is durable;
    with the ids of what was accepted, else none. most_open: tasks that may be open before none are accepted.
    new_id: gives an id that no task has had.
    """

    def __init__(
        self,
        database: Database,
        *,
        rung: Callable[[Collection[str]], None] = lambda tasks: None,
        most_open: int = MAX_OPEN,
        new_id: Callable[[], str] = lambda: f"t_{uuid.uuid4().hex}",
    ) -> None:
        self.together = Together(database)
        self._rung = rung
        self._new_id = new_id
        self._backlog = Backlog(self.together, most_open)

    async def aclose(self) -> None:
        await self.together.aclose()

    async def accept(self, tasks: Sequence[NewTask]) -> list[Accepted | NotAccepted]:
        """Take tasks over: what is returned as Accepted is durable, and will end exactly once. A `once` that is there
        already is the task of then, and nothing is added. Of tasks that are not accepted, nothing is kept.

        Raises: InputError for one that cannot be kept, or more than may ever be open; BacklogFull when there is no room
        for all of them, unless all are there already. Then none is accepted. StoreError; after that, or when cancelled,
        some may have been accepted: submit all again under the same `once`.
        """
        rows = [_row(checked(task), self._new_id()) for task in tasks]
        try:
            async with self._backlog.room(len(rows)):
                return await self._take(rows)
        except BacklogFull:
            if not await self.together.run(partial(_all_there, rows=rows)):
                raise
            return await self._take(rows)

    async def _take(self, rows: list[dict[str, Any]]) -> list[Accepted | NotAccepted]:
        found: list[Accepted | NotAccepted] = []
        for part in _parts(rows):
            answers = await self.together.run(partial(_accept, rows=part))
            crash_point("task_accepted")
            found += answers
            if ready := [each.id for each in answers if isinstance(each, Accepted) and each.state == "ready"]:
                self._rung(ready)
        return found

    async def claim(
        self, worker: str, kind: str, most: int, lease: float, *, before: int = 0, suspect: bool = True
    ) -> list[Lease]:
        """At most `most` ready tasks of a kind, leased to `worker` for `lease` seconds, the first one first. before:
        how many of that kind it has claimed so far, without suspects. suspect: one of them may be a suspect.
        """

        def work(tx: Transaction) -> list[Lease]:
            values = {"worker": worker, "kind": kind, "lease": lease}
            rows = _lease(tx, _SUSPECT, most=1, **values) if suspect else []
            aged = aged_claims(before, most - len(rows))
            rows += _lease(tx, _OLDEST, most=aged, aged=_now(tx) - AGED_SECONDS, **values) if aged else []
            rows += _lease(tx, _NEXT, most=most - len(rows), **values) if len(rows) < most else []
            return [_as_lease(row) for row in rows]

        found = await self.together.run(work)
        crash_point("task_claimed")
        return found

    async def tick(self, worker: str, held: Mapping[str, int], lease: float, *, renew: bool) -> Tick:
        """Sweep up what others have left, and look after what this worker holds: ids and epochs. renew: its leases hold
        for `lease` seconds from now on.
        """

        def work(tx: Transaction) -> Tick:
            lost = _renew(tx, worker, held, lease) if renew and held else frozenset[str]()
            sql = "SELECT id FROM task WHERE cancel_requested = 1 AND state = 'leased' AND worker = :worker"
            to_cancel = frozenset(row["id"] for row in tx.rows(sql, worker=worker))
            return Tick(lost=lost, to_cancel=to_cancel & held.keys(), moved=sweep(tx))

        found = await self.together.run(work)
        if found.moved:
            self._rung(())
        return found

    async def end(self, task: str, epoch: int, verdict: Verdict) -> State | None:
        """Say what came of a task that is leased under `epoch`; returns its state then. None: the lease is another's,
        or the task is gone; nothing was changed.
        """

        def work(tx: Transaction) -> tuple[State | None, int]:
            row = _held(tx, task, epoch, columns="*, {now} AS now")
            if row is None:
                return None, 0
            decided = move(as_task(row), verdict, row["now"])
            return decided.state, _move(tx, as_task(row), decided)

        state, freed = await self.together.run(work)
        crash_point("task_ended")
        if freed or state == "ready":
            self._rung(())
        return state

    async def any_left(self, kind: str) -> bool:
        """Whether tasks of a kind can go on without a person: some are ready, leased or due for another try."""
        sql = (
            "SELECT 1 AS one FROM task WHERE ended_at IS NULL AND kind = :kind "
            "AND (state IN ('ready', 'leased') OR (state = 'waiting' AND waits_for = '')) LIMIT 1"
        )
        return bool(await self.together.run(lambda tx: tx.rows(sql, kind=kind)))

    async def look_again(self, kind: str) -> None:
        """Have tasks of a kind ready at once that wait for a person or a tool."""
        sql = (
            "UPDATE task SET state = 'ready', ready_at = {now} "
            "WHERE state = 'waiting' AND waits_for <> '' AND kind = :kind"
        )
        await self.together.run(lambda tx: tx.change(sql, kind=kind))

    async def entries(self, task: str) -> list[JournalEntry]:
        """The journal of a task, by path and seq."""
        sql = f"SELECT {', '.join(_ENTRY)} FROM task_journal WHERE task = :task ORDER BY path, seq"
        rows = await self.together.database.run(lambda tx: tx.rows(sql, task=task))
        return [JournalEntry(**row) for row in rows]

    async def append(self, task: str, epoch: int, entry: JournalEntry) -> None:
        """Add to the journal of a task that is leased under `epoch`, in place of what stood there.

        Raises: Fenced when the lease is another's: whoever works under it has to stop.
        """
        values = {name: getattr(entry, name) for name in _ENTRY} | {"path": clean(entry.path)}

        def work(tx: Transaction) -> bool:
            # The row stays locked until this is committed, so the next holder of the lease reads all of it.
            if _held(tx, task, epoch, columns="id") is None:
                return False
            tx.change(_APPEND, task=task, **values)
            return True

        if not await self.together.run(work):
            raise Fenced(f"task {task} was given to another worker")
        crash_point("task_appended")


_APPEND = (
    f"INSERT INTO task_journal (task, {', '.join(_ENTRY)}) VALUES (:task, {', '.join(f':{name}' for name in _ENTRY)}) "
    "ON CONFLICT (task, path, seq) DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in _ENTRY[2:])
)


def as_task(row: Mapping[str, Any]) -> Task:
    """A row of all columns."""
    return Task(**{name: row[name] for name in _TASK})


def locked(tx: Transaction, where: str, **values: Any) -> list[Task]:
    """The tasks with `where`, locked until the transaction ends; without those that others have locked."""
    return [
        as_task(row) for row in tx.rows(f"SELECT * FROM task WHERE {where} {{for_update}} {{skip_locked}}", **values)
    ]


def finish(tx: Transaction, task: Task, decided: Move) -> int:
    """End a task for good, unless it has ended: what needs it can begin, or is cancelled with it. Returns how many have
    one need less now.
    """
    ending, freed = [(task, decided)], 0
    while ending:
        task, decided = ending.pop()
        ended = tx.change(
            "UPDATE task SET state = :state, ended_at = {now}, lease_until = NULL, deps_left = 0, code = :code, "
            "message = :message, result = :result, waits_for = '' WHERE id = :id AND ended_at IS NULL",
            id=task.id, state=decided.state, **_told(decided),
        )  # fmt: skip
        if not ended:
            continue
        if decided.state == "succeeded":
            freed = _free(tx, task.id)
            continue
        rows = tx.rows(f"SELECT * FROM task WHERE {_NEEDING} ORDER BY id {{for_update}}", id=task.id)
        gone = Move(
            state="cancelled", code="need_failed", message=f"it needs the task {task.id}, which did not succeed"
        )
        ending += [(as_task(row), gone) for row in rows]
    return freed


def _free(tx: Transaction, id: str) -> int:
    """What needs the task `id` needs one less; returns how many that are."""
    columns = "id, kind, priority, tenant, deps_left"
    rows = tx.rows(f"SELECT {columns} FROM task WHERE {_NEEDING} ORDER BY created_at, id {{for_update}}", id=id)
    if not rows:
        return 0
    line_up(tx, [row for row in rows if row["deps_left"] == 1])
    tx.change(
        "UPDATE task SET deps_left = deps_left - 1, ready_at = {now}, "
        f"state = CASE WHEN deps_left = 1 THEN 'ready' ELSE 'blocked' END WHERE {_NEEDING}",
        id=id,
    )
    ring(tx)
    return len(rows)


def ring(tx: Transaction) -> None:
    """Tell listeners in other processes, once this is committed; on PostgreSQL only."""
    if tx.dialect == "postgresql":
        tx.rows(f"SELECT pg_notify('{CHANNEL}', '')")


def sweep(tx: Transaction) -> int:
    """Take back what has lapsed, start what is due, end what is too late; returns how many tasks that were."""
    at, moved = _now(tx), 0  # as a value: PostgreSQL does not look for its clock in an index
    for task in locked(tx, "state = 'leased' AND lease_until < :at ORDER BY lease_until LIMIT 100", at=at):
        _move(tx, task, move(task, Lapsed(), at))
        moved += 1
    late = "ended_at IS NULL AND deadline_at < :at AND state <> 'leased' ORDER BY deadline_at LIMIT 100"
    for task in locked(tx, late, at=at):
        finish(tx, task, Move(state="expired", code="deadline_reached", message="not done before its deadline"))
        moved += 1
    due = tx.rows(
        "WITH due AS MATERIALIZED (SELECT id FROM task WHERE state = 'waiting' AND ready_at <= :at ORDER BY ready_at "
        "LIMIT 1000 {for_update} {skip_locked}) UPDATE task SET state = 'ready' WHERE id IN (SELECT id FROM due) "
        "RETURNING id",
        at=at,
    )
    return moved + len(due)


def _row(task: NewTask, id: str) -> dict[str, Any]:
    values = msgspec.structs.asdict(task)
    return {**values, "id": id, "turn": 0, "print": body_print(task), "needs": sorted(set(task.needs))}


def _parts(rows: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """As many rows as one statement may hold: AT_ONCE, and not much more than MAX_PAYLOAD in all."""
    part: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        part.append(row)
        size += len(row["payload"])
        if len(part) == AT_ONCE or size > MAX_PAYLOAD:
            yield part
            part, size = [], 0
    if part:
        yield part


def _accept(tx: Transaction, rows: list[dict[str, Any]]) -> list[Accepted | NotAccepted]:
    """Rows of one (tenant, once) in one list are one task."""
    found: list[Accepted | NotAccepted | None] = []
    first: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        there = _there(tx, row) or _missing(tx, row)
        if there is None:
            twin = first.setdefault((row["tenant"], row["once"] or row["id"]), row)
            there = None if twin is row else _known(twin, row)
        found.append(there)
    new = [row for row, there in zip(rows, found, strict=True) if there is None]
    give_turns(tx, [row for row in new if row["state"] == "ready"])
    added = _insert(tx, new)
    for at, row in enumerate(rows):
        if found[at] is None and row["id"] in added:
            found[at] = Accepted(id=row["id"], state=row["state"], fresh=True)
    return [there or _there(tx, row) for row, there in zip(rows, found, strict=True)]  # type: ignore[misc]


def _there(tx: Transaction, row: dict[str, Any]) -> Accepted | NotAccepted | None:
    """What its key stands for; None = nothing yet."""
    if row["once"] is None:
        return None
    sql = "SELECT id, state, print FROM task WHERE tenant = :tenant AND once = :once"
    found = tx.row(sql, tenant=row["tenant"], once=row["once"])
    return None if found is None else _known(found, row)


def _known(first: Mapping[str, Any], row: Mapping[str, Any]) -> Accepted | NotAccepted:
    """The answer for `row`, whose key stands for `first`."""
    if first["print"] != row["print"]:
        return NotAccepted(code="key_reused", id=first["id"])
    return Accepted(id=first["id"], state=first["state"], fresh=False)


def _all_there(tx: Transaction, rows: list[dict[str, Any]]) -> bool:
    return all(_there(tx, row) is not None for row in rows)


def _missing(tx: Transaction, row: dict[str, Any]) -> NotAccepted | None:
    """Why its needs cannot be met; None = they can, and how many are left stands in the row then."""
    row["deps_left"], row["open_needs"] = 0, []
    for need in row["needs"]:
        sql = "SELECT state FROM task WHERE id = :id AND tenant = :tenant {for_update}"  # it does not end meanwhile
        found = tx.row(sql, id=need, tenant=row["tenant"])
        if found is None:
            return NotAccepted(code="need_unknown", id=need)
        if found["state"] not in TERMINAL:
            row["open_needs"].append(need)
        elif found["state"] != "succeeded":
            return NotAccepted(code="need_failed", id=need)
    row["deps_left"] = len(row["open_needs"])
    row["state"] = "blocked" if row["deps_left"] else "ready"
    return None


_INSERTED = (
    "id", "kind", "run", "tenant", "customer", "once", "payload", "print", "priority", "turn", "state", "deps_left",
    "created_at", "ready_at", "deadline_at", "trace",
)  # fmt: skip


def _insert(tx: Transaction, rows: list[dict[str, Any]]) -> set[str]:
    """The ids that were added; those left out were added by others in this moment, under the same key."""
    if not rows:
        return set()
    now = _now(tx)
    for n, row in enumerate(rows):
        row["created_at"] = row["ready_at"] = now + n * 1e-6  # lists keep the order in which they were submitted
        row["deadline_at"] = None if row["deadline"] is None else now + row["deadline"]
    lines = (f"({', '.join(f':{name}{n}' for name in _INSERTED)})" for n in range(len(rows)))
    values = {f"{name}{n}": row[name] for n, row in enumerate(rows) for name in _INSERTED}
    sql = f"INSERT INTO task ({', '.join(_INSERTED)}) VALUES {', '.join(lines)} "
    added = {row["id"] for row in tx.rows(sql + "ON CONFLICT (tenant, once) DO NOTHING RETURNING id", **values)}
    ring(tx)
    for row in rows:
        for need in row["open_needs"] if row["id"] in added else ():
            tx.change("INSERT INTO task_need (needs, task) VALUES (:needs, :task)", needs=need, task=row["id"])
    return added


def _lease(tx: Transaction, which: str, **values: Any) -> list[Mapping[str, Any]]:
    sql = (
        f"WITH chosen AS MATERIALIZED (SELECT id FROM task {which} LIMIT :most {{for_update}} {{skip_locked}}) "
        "UPDATE task SET state = 'leased', lease_epoch = lease_epoch + 1, deliveries = deliveries + 1, "
        "worker = :worker, lease_until = {now} + :lease WHERE id IN (SELECT id FROM chosen) "
        "RETURNING *, deadline_at - {now} AS seconds_left"
    )
    return sorted(tx.rows(sql, **values), key=lambda row: (row["priority"], row["turn"], row["created_at"]))


def _as_lease(row: Mapping[str, Any]) -> Lease:
    return Lease(
        id=row["id"],
        epoch=row["lease_epoch"],
        kind=row["kind"],
        run=row["run"],
        tenant=row["tenant"],
        customer=row["customer"],
        payload=row["payload"],
        priority=row["priority"],
        seconds_left=row["seconds_left"],
        retried=row["code"] != "",
        begun=row["lease_epoch"] > 1,
        suspect=row["lapses"] >= 2,
        trace=row["trace"],
    )


def _renew(tx: Transaction, worker: str, held: Mapping[str, int], lease: float) -> frozenset[str]:
    """Make the leases of `held` last; returns those that are no longer the worker's, which is counted."""
    names = {f"id{n}": id for n, id in enumerate(held)}
    sql = (
        "UPDATE task SET lease_until = {now} + :lease WHERE worker = :worker AND state = 'leased' "
        f"AND id IN ({', '.join(f':{name}' for name in names)}) RETURNING id, lease_epoch"
    )
    kept = {(row["id"], row["lease_epoch"]) for row in tx.rows(sql, worker=worker, lease=lease, **names)}
    lost = frozenset(id for id, epoch in held.items() if (id, epoch) not in kept)
    for id in lost:
        _count_fenced(tx, id)
    return lost


def _held(tx: Transaction, task: str, epoch: int, *, columns: str) -> Mapping[str, Any] | None:
    """The row that is leased under `epoch`, locked; None when it is another's now, which is counted."""
    sql = f"SELECT {columns} FROM task WHERE id = :id AND lease_epoch = :epoch AND state = 'leased' {{for_update}}"
    row = tx.row(sql, id=task, epoch=epoch)
    if row is None:
        _count_fenced(tx, task)
    return row


def _count_fenced(tx: Transaction, task: str) -> None:
    tx.change("UPDATE task SET fenced = fenced + 1 WHERE id = :id", id=task)


def _move(tx: Transaction, task: Task, decided: Move) -> int:
    """Returns how many tasks have one need less now."""
    if decided.state in TERMINAL:
        return finish(tx, task, decided)
    tx.change(
        "UPDATE task SET state = :state, ready_at = {now} + :seconds, lease_until = NULL, deliveries = :deliveries, "
        "lapses = lapses + :lapsed, "
        "code = :code, message = :message, result = COALESCE(:result, result), waits_for = :waits_for, "
        "waits_since = CASE WHEN :waits_for = '' THEN NULL ELSE COALESCE(waits_since, {now}) END WHERE id = :id",
        id=task.id, state=decided.state, seconds=decided.seconds, waits_for=clean(decided.waits_for),
        deliveries=task.deliveries - (not decided.counted), lapsed=int(decided.lapsed), **_told(decided),
    )  # fmt: skip
    if decided.state == "ready":
        ring(tx)
    return 0


def _told(decided: Move) -> dict[str, str | None]:
    """What is kept of it, in words that every store takes: one bad letter would fail all in its transaction."""
    result = None if decided.result is None else clean(decided.result)
    return {"code": clean(decided.code), "message": clean(decided.message)[:MOST_MESSAGE], "result": result}


def _now(tx: Transaction) -> float:
    return float(tx.rows("SELECT {now} AS now")[0]["now"])
