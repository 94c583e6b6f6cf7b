"""The database that all processes of a simulation share: SQLite in memory with the real statements, in virtual time.

As with a file, one transaction runs at a time, others wait for it, and what has not committed when its process is
killed is rolled back. How long each takes, and which fail, the seed decides.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import msgspec

from siafu.errors import StoreError, StoreLocked
from siafu.store.database import _ONLY, LEAST_WAIT, WAIT_SECONDS, Transaction, Values
from siafu.store.dialect import Dialect, spoken
from siafu.store.task_schema import MIGRATIONS

from .machine import Machine, Process

T = TypeVar("T")
STEADY = 0.15  # seconds that a transaction may hold the database up without being called a disturbance


class Weather(msgspec.Struct):
    """How likely it is that a transaction goes wrong. slow: it takes up to `slowest` seconds. broken: nothing of it is
    kept. unheard: it is kept, and its caller is told that it is not known. overtaken: it is done once more.
    """

    slow: float = 0.0
    slowest: float = 3.0
    broken: float = 0.0
    unheard: float = 0.0
    overtaken: float = 0.0


class Watched(Protocol):
    """What is told of every change of a row of `table`; then whether it holds."""

    def changed(self, table: str, *values: Any) -> None: ...
    def committed(self, process: Process) -> None: ...
    def rolled_back(self) -> None: ...
    def wrong(self, what: str) -> None: ...


class Disk:
    """columns: of each table whose changes `watch` shall see. disturbed_at: when somebody last had to wait, or was
    told an error.
    """

    def __init__(
        self, machine: Machine, watch: Watched, weather: Weather, columns: Mapping[str, Sequence[str]]
    ) -> None:
        self.machine, self.watch, self.weather = machine, watch, weather
        self.disturbed_at = machine.now
        self.away_until = 0.0  # it cannot be reached
        self.ahead = 0.0  # seconds that its clock is ahead of the others
        self.closed = False
        self.holder: Connection | None = None
        self.waiting: list[Connection] = []
        self.db, ears = _memory(tuple((table, tuple(names)) for table, names in columns.items()))
        ears.changed = lambda *_: None
        for table in ("task", "task_turn", "worker", "webhook", "sqlite_sequence"):  # others go with them
            self.db.execute(f"DELETE FROM {table}")
        ears.clock, ears.changed = self.clock, watch.changed

    def clock(self) -> float:
        """Seconds since 1970, in milliseconds as SQLite has them."""
        return round(self.machine.now + self.ahead, 3)

    def calm_since(self) -> float:
        """Since when it answers quickly; infinite when it does not now."""
        held_up = self.holder is not None and self.machine.now - self.holder.began_at > STEADY
        return float("inf") if held_up else self.disturbed_at

    def release(self, *, calm: bool) -> None:
        assert self.holder is not None
        if not calm or self.machine.now - self.holder.began_at > STEADY:
            self.disturbed_at = self.machine.now
        self.holder = None
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            each.process.in_thread(self.machine.between(0.0, 0.005), each.begin)


class _Ears:
    """Whom the functions of the database belong to now."""

    clock: Callable[[], float]
    changed: Callable[..., None]


@lru_cache
def _memory(tables: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[sqlite3.Connection, _Ears]:
    """One for all simulations of this process, as they come one after the other: its tables and statements take as long
    to make as a short simulation.
    """
    db, ears = sqlite3.connect(":memory:", isolation_level=None, cached_statements=500), _Ears()
    db.create_function("virtual_now", 0, lambda: ears.clock())
    db.create_function("changed", -1, lambda *values: ears.changed(*values))
    db.execute("PRAGMA foreign_keys = ON")
    for step in MIGRATIONS:
        for statement in step:
            if not (only := _ONLY.match(statement)) or only[1] == "sqlite":
                db.execute(sql_of(statement[only.end() if only else 0 :]))
    for table, names in tables:
        for event, row in (("INSERT", "NEW"), ("UPDATE", "NEW"), ("DELETE", "OLD")):
            values = ", ".join([f"'{table if row == 'NEW' else '-' + table}'", *(f"{row}.{name}" for name in names)])
            db.execute(
                f"CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON {table} BEGIN SELECT changed({values}); END"
            )
    return db, ears


class _Job(msgspec.Struct):
    work: Callable[[Transaction], Any]
    future: asyncio.Future[Any]
    until: float


class Connection:
    """What `Database` is to one process: transactions in a thread, one after the other."""

    dialect: Dialect = "sqlite"

    def __init__(self, disk: Disk, process: Process) -> None:
        self.disk, self.process, self.began_at = disk, process, 0.0
        self._jobs: deque[_Job] = deque()
        self._stuck = False
        process.on_death.append(self._lost)

    async def run(self, work: Callable[[Transaction], T], *, seconds: float | None = None, whole: bool = False) -> T:
        if self.disk.closed:
            raise StoreError("the simulation is over")
        loop, now = asyncio.get_running_loop(), self.disk.machine.now
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.append(_Job(work, future, now + min(WAIT_SECONDS, WAIT_SECONDS if seconds is None else seconds)))
        if len(self._jobs) == 1:
            self._turn()
        return await future

    def _turn(self) -> None:
        """The next job: what it will be told, when it gets to it."""
        now = self.disk.machine.now
        self._jobs[0].until = max(self._jobs[0].until, now + (0.001 if self._stuck else LEAST_WAIT))
        self.process.in_thread(self.disk.machine.between(0.0, 0.001), self.begin)

    def begin(self) -> None:
        """Take the database, when it is free."""
        if not self._jobs:  # it is over
            return
        job = self._jobs[0]
        if job.future.cancelled():
            self._next()
        elif self.disk.machine.now < self.disk.away_until:
            self.disk.disturbed_at = self.disk.away_until
            self._tell(job, StoreError("it cannot be reached"))
        elif self.disk.holder is not None:
            if self not in self.disk.waiting:
                self.disk.waiting.append(self)
                left = max(0.0, job.until - self.disk.machine.now)
                self.process.in_thread(left, lambda: self._in_vain(job))
        else:
            self.disk.holder, self.began_at, self._stuck = self, self.disk.machine.now, False
            self._perform(job)

    def _in_vain(self, job: _Job) -> None:
        if self in self.disk.waiting and self._jobs[0] is job and self.disk.machine.now >= job.until:
            self.disk.waiting.remove(self)
            self.disk.disturbed_at = self.disk.machine.now
            self._stuck = True
            self._tell(job, StoreLocked("another process holds the database"))

    def _perform(self, job: _Job) -> None:
        machine, weather = self.disk.machine, self.disk.weather
        self.disk.db.execute("BEGIN IMMEDIATE")
        try:
            value = job.work(_Transaction(self.disk.db))  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - a fault of the code under test, whatever it is
            self._undo(calm=False)
            self.disk.watch.wrong(f"{self.process.name}: a transaction raised {error!r}")
            return
        if machine.rng.random() < weather.overtaken:
            machine.note(self.process.name, "is overtaken, and does its transaction again")
            self._undo(calm=True)
            self.process.in_thread(machine.between(0.0, 0.05), self.begin)
            return
        slow = machine.rng.random() < weather.slow
        took = machine.between(0.1, weather.slowest) if slow else machine.between(0.0002, 0.01)
        self.process.in_thread(took, lambda: self._commit(job, value))

    def _commit(self, job: _Job, value: Any) -> None:
        if self.disk.holder is not self:  # it is over
            return None
        fate = self.disk.machine.rng.random() - self.disk.weather.broken
        if fate < 0:
            self.disk.machine.note(self.process.name, "cannot commit")
            self._undo(calm=False)
            return self._tell(job, StoreError("the disk is full"))
        self.disk.db.execute("COMMIT")
        unheard = fate < self.disk.weather.unheard
        self.disk.release(calm=not unheard)
        self.disk.watch.committed(self.process)
        if unheard:
            self.disk.machine.note(self.process.name, "is not told of its commit")
            return self._tell(job, StoreError("the connection was lost"))
        return self._tell(job, value)

    def _undo(self, *, calm: bool) -> None:
        self.disk.db.execute("ROLLBACK")
        self.disk.watch.rolled_back()
        self.disk.release(calm=calm)

    def _tell(self, job: _Job, value: Any) -> None:
        def told() -> None:
            if job.future.done():
                return
            if isinstance(value, StoreError):
                job.future.set_exception(value)
            else:
                job.future.set_result(value)

        self.process.in_thread(self.disk.machine.between(0.0, 0.001), lambda: self.process.call_soon_threadsafe(told))
        self._next()

    def _next(self) -> None:
        self._jobs.popleft()
        if self._jobs:
            self._turn()

    def _lost(self) -> None:
        if self.disk.holder is self:
            self._undo(calm=True)

    def close(self) -> None:
        """Nothing is written any more; who waits is told so."""
        self._lost()
        for job in self._jobs:
            job.future.cancel()
        self._jobs.clear()


class _Transaction:
    """`Transaction` without SQLAlchemy."""

    dialect: Dialect = "sqlite"

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def change(self, sql: str, /, **values: Values) -> int:
        return max(self._execute(sql, values).rowcount, 0)

    def rows(self, sql: str, /, **values: Values) -> list[Mapping[str, Any]]:
        cursor = self._execute(sql, values)
        names = [each[0] for each in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def _execute(self, sql: str, values: Mapping[str, Values]) -> sqlite3.Cursor:
        lists = {name: value for name, value in values.items() if isinstance(value, list)}
        if not lists:
            return self._db.execute(sql_of(sql), values)
        each = {f"{name}_{n}": one for name, value in lists.items() for n, one in enumerate(value)}
        return self._db.execute(with_lists(sql, *((name, len(lists[name])) for name in lists)), {**values, **each})

    def row(self, sql: str, /, **values: Values) -> Mapping[str, Any] | None:
        found = self.rows(sql, **values)
        return found[0] if found else None


@lru_cache(4096)
def with_lists(sql: str, *lists: tuple[str, int]) -> str:
    """lists: values that are lists, and how long they are."""
    text = sql_of(sql)
    for name, length in lists:
        text = re.sub(rf":{name}\b", f"({', '.join(f':{name}_{n}' for n in range(length))})", text)
    return text


@lru_cache(1024)
def sql_of(sql: str) -> str:
    """The statement as SQLite is given it, with the virtual clock."""
    return spoken(sql.replace("{now}", "virtual_now()"), "sqlite")
