"""Work items in SQL: accepted, claimed under a lease, ended once. SQLite and PostgreSQL.

Every rule rests on a unique key, a CHECK, or a row that is locked and then compared with its epoch, so READ COMMITTED
is enough. Leases run by the database's clock. A write by a worker whose lease was given to another changes nothing: it
is fenced, and counted.
"""

# ruff: noqa: S608 - the names put into statements are our own

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from siafu.border.text import clean
from siafu.errors import BacklogFull, Fenced
from siafu.store.crash import crash_point
from siafu.store.database import Database, Transaction
from siafu.store.records import JournalEntry
from siafu.store.task_accept import AT_ONCE, accept, all_there, new_row, payload_size
from siafu.store.task_backlog import MAX_OPEN, Backlog
from siafu.store.task_records import (
    AGED_SECONDS,
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
    checked,
    move,
)
from siafu.store.task_sql import MOST_ROWS, as_json, now, parts, ring
from siafu.store.task_turns import give_back, line_up
from siafu.store.together import Together

MOST_MESSAGE = 2_000  # characters

_READY = "WHERE state = 'ready' AND kind = :kind AND lapses"
_SUSPECT = f"{_READY} >= 2 ORDER BY priority, turn, created_at"
# The clock in a subquery: else PostgreSQL does not look for it in an index.
_OLDEST = f"{_READY} < 2 AND ready_at <= (SELECT {{now}} - :aged_seconds) ORDER BY ready_at"
_NEXT = f"{_READY} < 2 AND id NOT IN (SELECT id FROM oldest) ORDER BY priority, turn, created_at"
_NEEDING = "state = 'blocked' AND id IN (SELECT task FROM task_need WHERE needs = :id)"
_ENTRY, _TASK = JournalEntry.__struct_fields__, Task.__struct_fields__
# Without what is large and decides nothing: many may be looked at together.
_DECIDING = ", ".join(f"'' AS {name}" if name in ("payload", "result") else name for name in _TASK) + ", {now} AS now"


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
        self._backlog = Backlog(self.together, most_open)
        self._new_id = new_id

    async def aclose(self) -> None:
        await self.together.aclose()

    async def accept(self, tasks: Sequence[NewTask]) -> list[Accepted | NotAccepted]:
        """Take tasks over: what is returned as Accepted is durable, and will end exactly once. A `once` that is there
        already is the task of then, and nothing is added. Of tasks that are not accepted, nothing is kept.

        Raises: InputError for one that cannot be kept, or more than may ever be open; BacklogFull when there is no room
        for all of them, unless all are there already. Then none is accepted. StoreError; after that, or when cancelled,
        some may have been accepted: submit all again under the same `once`.
        """
        rows = [new_row(checked(task), self._new_id()) for task in tasks]
        try:
            async with self._backlog.room(len(rows)):
                return await self._take(rows)
        except BacklogFull:
            known = await self.together.run(partial(all_there, rows=rows))
            if known is None:
                raise
            return known

    async def _take(self, rows: list[dict[str, Any]]) -> list[Accepted | NotAccepted]:
        found: list[Accepted | NotAccepted] = []
        for part in parts(rows, AT_ONCE, payload_size):
            answers = await self.together.share(accept, part)
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
            aged = aged_claims(before, most)
            rows = tx.rows(
                _claim(), worker=worker, kind=kind, lease=lease, suspects=int(suspect), aged_seconds=AGED_SECONDS,
                aged=aged, fewer=aged - aged_claims(before, most - 1), most=most,
            )  # fmt: skip
            rows.sort(key=lambda row: (row["lapses"] < 2, row["priority"], row["turn"], row["created_at"]))
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
        state, news = await self.together.share(_end, (task, epoch, verdict))
        crash_point("task_ended")
        if news:
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
        if not await self.together.share(_append, (task, epoch, entry)):
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


_FINISH = (
    "UPDATE task SET state = {given.state}, ended_at = {now}, lease_until = NULL, deps_left = 0, code = {given.code}, "
    "message = {given.message}, result = {given.result}, waits_for = '' FROM {given} "
    "WHERE task.id = {given.id} AND task.id IN :ids AND ended_at IS NULL "
    "RETURNING id, state, EXISTS (SELECT 1 FROM task_need WHERE needs = task.id) AS needed"
)


def finish(tx: Transaction, ending: Sequence[tuple[Task, Move]]) -> set[str]:
    """End tasks for good, those that have not ended: what needs them can begin, or is cancelled with them. They are
    locked already, so nobody comes to need them meanwhile. Returns those of them whose end leaves others one need less.
    """
    left, freeing = list(ending), set[str]()
    while left:
        needed: dict[str, str] = {}
        for part in parts(left, MOST_ROWS, lambda each: len(each[1].result or "")):
            rows = [{"id": task.id, "state": decided.state, **_told(decided)} for task, decided in part]
            found = tx.rows(_FINISH, given=as_json(rows), ids=[row["id"] for row in rows])
            needed |= {row["id"]: row["state"] for row in found if row["needed"]}
        left = []
        for id, state in sorted(needed.items()):
            if state != "succeeded":
                left += _ending_with(tx, id)
            elif _free(tx, id):
                freeing.add(id)
    if freeing:
        ring(tx)
    return freeing


def _free(tx: Transaction, ended: str) -> int:
    """What needs a task needs one less; returns how many that are."""
    columns = "id, kind, priority, tenant, deps_left"
    rows = tx.rows(f"SELECT {columns} FROM task WHERE {_NEEDING} ORDER BY created_at, id {{for_update}}", id=ended)
    line_up(tx, [row for row in rows if row["deps_left"] == 1])
    if rows:
        tx.change(
            "UPDATE task SET deps_left = deps_left - 1, ready_at = {now}, "
            f"state = CASE WHEN deps_left = 1 THEN 'ready' ELSE 'blocked' END WHERE {_NEEDING}",
            id=ended,
        )
    return len(rows)


def _ending_with(tx: Transaction, ended: str) -> list[tuple[Task, Move]]:
    """Those that need a task which did not succeed."""
    gone = Move(state="cancelled", code="need_failed", message=f"it needs the task {ended}, which did not succeed")
    rows = tx.rows(f"SELECT * FROM task WHERE {_NEEDING} ORDER BY id {{for_update}}", id=ended)
    return [(as_task(row), gone) for row in rows]


def sweep(tx: Transaction) -> int:
    """Take back what has lapsed, start what is due, end what is too late; returns how many tasks that were."""
    at = now(tx)  # as a value: PostgreSQL does not look for its clock in an index
    lost = locked(tx, "state = 'leased' AND lease_until < :at ORDER BY lease_until LIMIT 100", at=at)
    _move(tx, [(task, move(task, Lapsed(), at)) for task in lost])
    late = "ended_at IS NULL AND deadline_at < :at AND state <> 'leased' ORDER BY deadline_at LIMIT 100"
    too_late = Move(state="expired", code="deadline_reached", message="not done before its deadline")
    ending = [(task, too_late) for task in locked(tx, late, at=at)]
    finish(tx, ending)
    give_back(tx, [task for task, _ in ending])
    due = tx.rows(
        "WITH due AS MATERIALIZED (SELECT id FROM task WHERE state = 'waiting' AND ready_at <= :at ORDER BY ready_at "
        "LIMIT 1000 {for_update} {skip_locked}) UPDATE task SET state = 'ready' WHERE id IN (SELECT id FROM due) "
        "RETURNING id",
        at=at,
    )
    return len(lost) + len(ending) + len(due)


_LEASED = "id, lease_epoch, kind, run, tenant, customer, payload, priority, turn, created_at, lapses, code, trace"


def _claim() -> str:
    """In one statement, as each is a message to the server and back: a suspect, what has been ready the longest, and,
    with what is left of `most`, who is next. fewer: by how many the second are fewer beside a suspect.
    """

    def locked(name: str, which: str, most: str) -> str:
        return f"{name} AS MATERIALIZED (SELECT id FROM task {which} LIMIT {most} {{for_update}} {{skip_locked}})"

    suspects, oldest = "(SELECT COUNT(*) FROM suspect)", "(SELECT COUNT(*) FROM oldest)"
    return (
        f"WITH {locked('suspect', _SUSPECT, ':suspects')}, "
        f"{locked('oldest', _OLDEST, f':aged - :fewer * {suspects}')}, "
        f"{locked('next', _NEXT, f':most - {suspects} - {oldest}')}, "
        "chosen AS (SELECT id FROM suspect UNION ALL SELECT id FROM oldest UNION ALL SELECT id FROM next) "
        "UPDATE task SET state = 'leased', lease_epoch = lease_epoch + 1, deliveries = deliveries + 1, "
        "worker = :worker, lease_until = {now} + :lease WHERE id IN (SELECT id FROM chosen) "
        f"RETURNING {_LEASED}, deadline_at - {{now}} AS seconds_left"
    )


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


_FENCED = "UPDATE task SET fenced = fenced + 1 WHERE id = :id"


def _renew(tx: Transaction, worker: str, held: Mapping[str, int], lease: float) -> frozenset[str]:
    """Make the leases of `held` last; returns those that are no longer the worker's. Counted when another has had it
    since: else its end, which has just been recorded, would be, too.
    """
    names = {f"id{n}": id for n, id in enumerate(held)}
    sql = (
        "UPDATE task SET lease_until = {now} + :lease WHERE worker = :worker AND state = 'leased' "
        f"AND id IN ({', '.join(f':{name}' for name in names)}) RETURNING id, lease_epoch"
    )
    kept = {(row["id"], row["lease_epoch"]) for row in tx.rows(sql, worker=worker, lease=lease, **names)}
    lost = frozenset(id for id, epoch in held.items() if (id, epoch) not in kept)
    for id in lost:
        tx.change(f"{_FENCED} AND lease_epoch <> :epoch", id=id, epoch=held[id])
    return lost


def _end(tx: Transaction, ends: list[tuple[str, int, Verdict]]) -> list[tuple[State | None, bool]]:
    """The states of tasks after what their workers say of them, None: the lease is another's; and whether something may
    have become ready by it.
    """
    decided: dict[str, tuple[Task, Move]] = {}
    told: list[str | None] = []
    held = _held(tx, [(id, epoch) for id, epoch, _ in ends], columns=_DECIDING)
    for row, (id, _, verdict) in zip(held, ends, strict=True):
        told.append(None if row is None or id in decided else id)
        if row is not None and id not in decided:
            task = as_task(row)
            decided[id] = task, move(task, verdict, row["now"])
    news = _move(tx, list(decided.values()))
    return [(None, False) if id is None else (decided[id][1].state, id in news) for id in told]


def _append(tx: Transaction, appended: list[tuple[str, int, JournalEntry]]) -> list[bool]:
    """Whether each was added. The rows stay locked until this is committed, so the next holder of a lease reads all."""
    held = _held(tx, [(id, epoch) for id, epoch, _ in appended], columns="id, lease_epoch")
    for row, (id, _, entry) in zip(held, appended, strict=True):
        if row is not None:
            values = {name: getattr(entry, name) for name in _ENTRY} | {"path": clean(entry.path)}
            tx.change(_APPEND, task=id, **values)
    return [row is not None for row in held]


def _held(tx: Transaction, asked: list[tuple[str, int]], *, columns: str) -> list[Mapping[str, Any] | None]:
    """The rows that are leased under these epochs, locked; None for one that is another's now, which is counted."""
    sql = f"SELECT {columns} FROM task WHERE id IN :ids AND state = 'leased' ORDER BY id {{for_update}}"
    leased = {(row["id"], row["lease_epoch"]): row for row in tx.rows(sql, ids=[id for id, _ in asked])}
    for id, epoch in asked:
        if (id, epoch) not in leased:
            tx.change(_FENCED, id=id)
    return [leased.get(each) for each in asked]


def _move(tx: Transaction, decided: Sequence[tuple[Task, Move]]) -> set[str]:
    """What becomes of tasks that were leased. Returns those by which something may have become ready."""
    ready = {task.id for task, each in decided if each.state == "ready"}
    for task, each in decided:
        if each.state not in TERMINAL:
            tx.change(
                _PUT_BACK,
                id=task.id, state=each.state, seconds=each.seconds, waits_for=clean(each.waits_for),
                deliveries=task.deliveries - (not each.counted), lapsed=int(each.lapsed), **_told(each),
            )  # fmt: skip
    if ready:
        ring(tx)
    return ready | finish(tx, [(task, each) for task, each in decided if each.state in TERMINAL])


_PUT_BACK = (
    "UPDATE task SET state = :state, ready_at = {now} + :seconds, lease_until = NULL, deliveries = :deliveries, "
    "lapses = lapses + :lapsed, code = :code, message = :message, result = COALESCE(:result, result), "
    "waits_for = :waits_for, waits_since = CASE WHEN :waits_for = '' THEN NULL ELSE COALESCE(waits_since, {now}) END "
    "WHERE id = :id"
)


def _told(decided: Move) -> dict[str, str | None]:
    """What is kept of it, in words that every store takes: one bad letter would fail all in its transaction."""
    result = None if decided.result is None else clean(decided.result)
    return {"code": clean(decided.code), "message": clean(decided.message)[:MOST_MESSAGE], "result": result}
