"""The store in one SQLite file: what a run writes and what it reads back when it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from siafu.border.text import clean
from siafu.errors import StoreError
from siafu.store import sql
from siafu.store.crash import crash_point
from siafu.store.faults import checked_place, store_error
from siafu.store.lock import Lock
from siafu.store.records import (
    AttemptOpened,
    AttemptSettled,
    Claimed,
    ItemRecord,
    Journal,
    JournalEntry,
    Ledger,
    RunState,
)
from siafu.store.schema import LOOKUPS, inspect, open_file, open_memory, open_reader
from siafu.store.writer import Writer

Result = TypeVar("Result")


class SqliteStore:
    """A journal, ledger and results in the file at `path`; `:memory:` keeps them only as long as the run is open.

    The file, its folder and `<path>.lock` are made when a run begins. One process holds the file at a time, and one
    run at a time is open in it; runs of other names keep their rows beside it. Keep it on a local disk.
    max_queued: writes that wait for the next commit before callers wait. wall: seconds since 1970.
    """

    def __init__(self, path: str | Path, *, max_queued: int = 10_000, wall: Callable[[], float] = time.time) -> None:
        self.path = None if str(path) == ":memory:" else Path(path).resolve()
        self.wall = wall
        self._max_queued = max_queued
        self._guard = threading.Lock()
        self._opened: ExitStack | None = None
        self._writer: Writer | None = None
        self._indexed: Writer | None = None  # the one that has made the indexes of `index_tasks`
        self._reader: tuple[ThreadPoolExecutor, sqlite3.Connection] | None = None

    def run(self, name: str) -> SqliteRun:
        """The run called `name`, new or from earlier sessions; nothing is opened yet."""
        return SqliteRun(self, name)

    def open(self) -> None:
        """Open the file and take its lock. Blocks; does nothing when it is open.

        Raises: StoreBusy, StoreError; then nothing stays open.
        """
        with self._guard, ExitStack() as undo:
            if self._opened is not None:
                return
            db = open_memory() if self.path is None else self._open_file(self.path, undo)
            self._writer = Writer(db, str(self.path or ":memory:"), max_queued=self._max_queued)
            undo.callback(self._writer.close)
            if self.path is not None:
                self._reader = (ThreadPoolExecutor(1, "siafu-reader"), open_reader(self.path))
                undo.callback(self._reader[1].close)
                undo.callback(self._reader[0].shutdown)
            self._opened = undo.pop_all()

    @staticmethod
    def _open_file(path: Path, undo: ExitStack) -> sqlite3.Connection:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            checked_place(path, path)
            fresh = not path.exists() or path.stat().st_size == 0
        except OSError as error:
            raise StoreError(f"{path}: its folder cannot be used ({error.strerror}): choose another path") from error
        if not fresh:
            inspect(path)  # before anything is made beside a file that is not ours
        undo.callback(Lock(path).release)
        db = open_file(path)
        undo.callback(_same, path, path.stat().st_ino)
        return db

    def close(self) -> None:
        """Commit everything queued, close, let go of the lock. Blocks; idempotent.

        Raises: StoreError when a queued line could not be written, or the file is not there any more; all is closed
            nevertheless.
        """
        with self._guard:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.close()

    @property
    def writer(self) -> Writer:
        if self._writer is None:
            raise StoreError(f"{self.path or ':memory:'} is not open: begin the run first")
        return self._writer

    async def index_tasks(self) -> None:
        """Have journal and ledger indexed by task, also in a first session. Raises: StoreError."""
        if self._indexed is not self.writer:
            await asyncio.gather(*map(self.writer.write_long, LOOKUPS))  # seconds, for millions of rows
            self._indexed = self.writer

    async def read(self, query: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run `query` on a connection that reads what is committed, away from the event loop.

        Raises: StoreError.
        """
        if self._reader is None:
            return await self.writer.call(query)
        pool, db = self._reader
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, query, db)
        except sqlite3.Error as error:
            raise store_error(error, str(self.path)) from error
        except RuntimeError:  # the pool takes nothing any more
            raise StoreError(f"{self.path} is closed") from None


def _same(path: Path, number: int) -> None:
    """Raises: StoreError when the file at `path` is not the one with this number of an inode any more."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_ino == number:
            return
    raise StoreError(f"{path} was deleted or replaced while it was in use: what was written meanwhile is not kept")


class SqliteRun:
    """`RunStore` over one run of a `SqliteStore`. `id` and `session` are known from `begin` on."""

    def __init__(self, store: SqliteStore, name: str) -> None:
        self._store = store
        self._name = name
        self.id = self.session = self.last_line = 0
        self.journal: Journal = SqliteJournal(store, self)
        self.ledger: Ledger = SqliteLedger(store, self)

    async def begin(self, work_print: str) -> RunState:
        """As `RunStore.begin`. Once for each `SqliteRun`."""
        if self.session:
            raise StoreError(f"the run {self._name!r} has begun already: ask the store for a new one")
        try:
            await asyncio.to_thread(self._store.open)
            begin = partial(sql.begin, name=self._name, work_print=work_print, now=self._store.wall())
            self.id, self.last_line, state = await self._store.writer.call(begin)
        except BaseException:
            await asyncio.to_thread(self._store.close)
            raise
        self.session = state.session
        return state

    async def claim(self, items: Sequence[tuple[str, str]]) -> list[Claimed]:
        return await self._store.writer.call(partial(sql.claim, run=self.id, session=self.session, items=items))

    async def record(self, item: ItemRecord) -> None:
        item = msgspec.structs.replace(item, message=clean(item.message))
        await self._store.writer.write(sql.RECORD, (self.id, self.session, *sql.item_row(item)))
        crash_point("after_record")

    async def aclose(self) -> None:
        """As `RunStore.aclose`. Raises: StoreError when a settled line could not be written."""
        if self.session:
            with contextlib.suppress(StoreError):  # closed before, or dead: then its callers were told
                self._store.writer.post(
                    "UPDATE session SET ended_at = ? WHERE run = ? AND session = ?",
                    (self._store.wall(), self.id, self.session),
                )
        await asyncio.to_thread(self._store.close)


class SqliteJournal:
    """`Journal` of one run."""

    def __init__(self, store: SqliteStore, run: SqliteRun) -> None:
        self._store = store
        self._run = run

    async def entries(self, task: str) -> list[JournalEntry]:
        def query(db: sqlite3.Connection) -> list[JournalEntry]:
            rows = db.execute(sql.ENTRIES, (self._run.id, task)).fetchall()
            return [JournalEntry(**dict(zip(sql.ENTRY, row, strict=False))) for row in rows]

        await self._store.index_tasks()
        return await self._store.read(query)

    async def append(self, task: str, entry: JournalEntry) -> None:
        await self._store.writer.write(sql.APPEND, (self._run.id, task, *sql.entry_row(entry)))
        crash_point("after_append")


class SqliteLedger:
    """`Ledger` of one run: lines are kept under it, whatever label `AttemptOpened.run` carries.

    A line is settled once; a second settlement of the same attempt changes nothing. Lines are numbered here, not by
    the database, so that to settle one needs no index on the attempt's own name.
    """

    def __init__(self, store: SqliteStore, run: SqliteRun) -> None:
        self._store = store
        self._run = run
        self._lines: dict[str, int] = {}  # not yet settled, by attempt

    async def open(self, line: AttemptOpened) -> None:
        if line.attempt in self._lines:
            raise StoreError(f"the attempt {line.attempt} is open already")
        self._run.last_line += 1
        self._lines[line.attempt] = number = self._run.last_line
        try:
            await self._store.writer.write(sql.OPEN, (number, self._run.id, *sql.opened_row(line)))
        except StoreError:
            del self._lines[line.attempt]
            raise
        crash_point("after_open")

    def settle(self, line: AttemptSettled) -> None:
        if (number := self._lines.pop(line.attempt, None)) is not None:
            self._store.writer.post(sql.SETTLE, (*sql.settled_row(line), number))

    async def spent_on(self, task: str) -> Mapping[str, int]:
        await self._store.index_tasks()
        return dict(await self._store.read(lambda db: db.execute(sql.SPENT_ON, (self._run.id, task)).fetchall()))
