"""Group commit: everything that is waiting is written in one transaction, so a thousand tasks share one fsync.

Who asks on an event loop finds its rows written there, a few turns later: to hand them to a thread costs two waits
for the interpreter lock, each of up to 5 ms when the loop is busy, and a commit on a local disk is quicker than one of
them. A thread writes instead whenever the loop should not wait: a disk that was slow twice running, a file that another
program has locked, rows from other threads, and what is left at the end.

Whoever writes takes the whole queue, runs it, commits, and then tells each event loop once. An operation that
fails is undone alone; its neighbours commit. A fault of the store itself (disk full, I/O error, locked by another
program) ends the writer: everybody who waits, and everybody who comes later, gets a StoreError.

More rows are let gather before: on a loop while each of its turns brings some and few are there, by the thread when
many wait, for half as long as the last commit took, at most a millisecond.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, repeat
from operator import itemgetter, length_hint
from typing import Any, TypeVar

from siafu.errors import StoreError
from siafu.store.crash import crash_point
from siafu.store.faults import is_fatal, is_locked, store_error

Result = TypeVar("Result")
Row = Sequence[Any]
_Operation = str | Callable[[sqlite3.Connection], Any]
_Future = asyncio.Future[Any]
# what to do, its row when it is a statement, and who waits for it
_Item = tuple[_Operation, Row, _Future | None]
_Outcome = tuple[Any, Exception | None]
_DONE: _Outcome = (None, None)
_CROWD = 8  # rows; the thread waits a moment for more after so many in a transaction, a loop only for fewer
_MAX_PAUSE = 0.001  # seconds
_SWIFT = 0.005  # seconds that a loop may spend on a transaction: half of what the thread would have it wait
_SPELL = 32  # transactions that are the thread's after the loop was slow; doubled while it stays slow
_MAX_SPELL = 1024


class Writer:
    """Owns `db`, which nobody else uses, and writes to it from one place at a time. `where` names it in messages.

    At most `max_queued` operations wait for the next transaction; over it, callers wait. Operations are committed in
    the order in which they were queued, but for statements within one transaction (`_gathered`). They may come from
    any thread and from one event loop after another. The thread does not keep the interpreter alive: what was not
    confirmed when the process ends may be lost.
    """

    def __init__(self, db: sqlite3.Connection, where: str, *, max_queued: int = 10_000) -> None:
        self.commits = self.operations = 0  # so far
        self._db = db
        self._where = where
        self._max = max_queued
        self._queue: list[_Item] = []
        self._crowd: list[_Future] = []  # callers that found the queue full
        self._pause = 0.0  # seconds to let a crowd gather before the next transaction of the thread
        self._patience = self._wanted = int(db.execute("PRAGMA busy_timeout").fetchone()[0])  # milliseconds
        self._slow = 0  # transactions running that took a loop too long
        self._spell = _SPELL
        self._left = 1  # transactions that the thread makes before a loop may; the first opens a run, which takes long
        self._long = 0  # statements that no loop may run
        self._closing = False
        self._dead = ""
        self._untold = ""  # the first failure of a posted line, for `close`
        self._using = threading.Lock()  # held by who uses the connection; taken before the lock of the queue, if both
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run, name="siafu-writer", daemon=True)
        # who was asked to take what is queued; None: nobody, and nothing is
        self._asked: asyncio.AbstractEventLoop | threading.Thread | None = None
        self._thread.start()

    async def write(self, statement: str, row: Row) -> None:
        """Run one INSERT, UPDATE or DELETE; returns when it is durable.

        Raises: StoreError. When cancelled, the row may or may not be written.
        """
        await self._submit(statement, row)

    async def write_long(self, statement: str) -> None:
        """Run one statement for which an event loop may not stand still. As `write`, but in the thread; what is queued
        meanwhile waits for it.
        """
        self._long += 1
        try:
            await self._submit(statement, ())
        finally:
            self._long -= 1

    async def call(self, operation: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run `operation` on the connection, at once or in a thread; returns its value when its writes are durable.

        Whatever it raises is raised here, after its writes are undone; sqlite3's errors as StoreError. When cancelled,
        its writes may or may not be made. It must not commit or roll back, and be brief: the event loop may wait.
        """
        result: Result = await self._submit(operation, ())
        return result

    def post(self, statement: str, row: Row) -> None:
        """Queue one statement that nobody waits for. If it fails, `close` says so.

        Blocks the thread while the queue is full, which lasts at most one transaction.

        Raises: StoreError when the writer is closed or dead.
        """
        with self._lock:
            if len(self._queue) >= self._max:
                self._ask_thread()  # this may be the loop that was asked
                self._room.wait_for(lambda: len(self._queue) < self._max or self._dead or self._closing)
            self._put((statement, row, None), _running_loop())

    def close(self) -> None:
        """Commit everything queued and end the thread. Blocks; idempotent.

        Raises: StoreError when a posted line could not be written; only the first time.
        """
        with self._work:
            self._closing = True
            self._work.notify()
            self._room.notify_all()
        self._thread.join()
        untold, self._untold = self._untold, ""
        if untold:
            raise StoreError(f"a line that was queued could not be written: {untold}")

    async def _submit(self, operation: _Operation, row: Row) -> Any:
        loop = asyncio.get_running_loop()
        while True:
            future: _Future = loop.create_future()
            with self._lock:
                if len(self._queue) < self._max:
                    self._put((operation, row, future), loop)
                    break
                self._crowd.append(future)
            await future
        return await future

    def _put(self, item: _Item, loop: asyncio.AbstractEventLoop | None) -> None:
        if self._dead or self._closing:
            raise StoreError(self._dead or f"{self._where} is closed")
        self._queue.append(item)
        if self._asked is None and loop is not None and not (self._left or self._long):
            self._asked = loop
            loop.call_soon(loop.call_soon, self._gather, loop, 0)  # what this turn wakes asks in the next one
        elif self._asked not in (self._thread, loop) or loop is None:
            self._ask_thread()  # also when another loop was asked: it may have ended

    def _ask_thread(self) -> None:
        self._asked = self._thread
        self._work.notify()

    def _gather(self, loop: asyncio.AbstractEventLoop, seen: int) -> None:
        """Write, unless few rows wait and each turn of the loop brings more: one costs a tenth of a commit."""
        if seen < (waiting := len(self._queue)) < _CROWD:
            loop.call_soon(self._gather, loop, waiting)
        else:
            self._write_on_loop()

    def _write_on_loop(self) -> None:
        if self._left or self._long or not self._using.acquire(blocking=False):
            with self._work:
                if self._queue:
                    self._ask_thread()
            return
        try:
            if batch := self._take():
                self._wait_for_others(0)
                self._transact(batch, on_loop=True)
        finally:
            self._using.release()

    def _run(self) -> None:
        while self._work_comes():
            with self._using:
                if batch := self._take():
                    self._wait_for_others(self._wanted)
                    self._transact(batch, on_loop=False)
        with self._using:
            self._db.close()

    def _work_comes(self) -> bool:
        """Wait for something to write; False when there will be no more."""
        with self._work:
            self._work.wait_for(lambda: self._asked is self._thread or self._closing or self._dead)
            if self._pause and not self._closing:
                self._work.wait(self._pause)  # nobody notifies a thread that has work, but `close`
            return bool(self._queue) or not (self._closing or self._dead)

    # From here on: whoever holds `_using`, the thread or a loop.

    def _take(self) -> list[_Item]:
        """Everything queued."""
        with self._lock:
            batch, self._queue = self._queue, []
            crowd, self._crowd = self._crowd, []
            self._asked = None
            if len(batch) >= self._max:  # who posts may wait for this
                self._room.notify_all()
        if crowd:
            _tell(crowd, repeat(_DONE))
        return _gathered(batch)

    def _wait_for_others(self, milliseconds: int) -> None:
        """For how long to wait for a file that another program has locked."""
        if self._patience != milliseconds:
            self._db.execute(f"PRAGMA busy_timeout = {milliseconds}")
            self._patience = milliseconds

    def _transact(self, batch: list[_Item], *, on_loop: bool) -> None:
        """Write `batch` and tell who waits for it."""
        began = time.monotonic()
        try:
            outcomes = self._commit(batch)
        except BaseException as error:  # one that ended silently would leave its callers waiting
            if on_loop and is_locked(error) and not self._db.in_transaction:
                self._leave(batch)
            else:
                self._die(batch, error)
                if on_loop and not isinstance(error, Exception):
                    raise
            return
        self._pace(time.monotonic() - began, len(batch), on_loop)
        crash_point("after_commit")
        _tell([item[2] for item in batch], outcomes)

    def _pace(self, took: float, rows: int, on_loop: bool) -> None:
        """Who makes the next transactions, after one of so many rows took so many seconds."""
        if not on_loop:
            self._left = max(0, self._left - 1)
            self._pause = min(took / 2, _MAX_PAUSE) if rows >= _CROWD else 0.0
            return
        self._slow = self._slow + 1 if took > _SWIFT else 0
        if self._slow > 1:  # once may be the checkpoint that SQLite makes now and then
            self._left = self._spell
            self._spell = min(2 * self._spell, _MAX_SPELL)
            self._slow = 1  # the next try decides alone
        elif not self._slow:
            self._spell = _SPELL

    def _leave(self, batch: list[_Item]) -> None:
        """Leave to the thread, which can wait, what the loop could not begin."""
        with self._work:
            self._queue[:0] = batch
            self._left = max(self._left, 1)
            self._ask_thread()

    def _commit(self, batch: list[_Item]) -> list[_Outcome]:
        """Run `batch` in one transaction. Raises what is fatal; every other failure is an outcome."""
        outcomes: list[_Outcome] = [_DONE] * len(batch)
        self._db.execute("BEGIN IMMEDIATE")
        start = 0
        while start < len(batch):
            operation = batch[start][0]
            end = start + 1
            if isinstance(operation, str):
                while end < len(batch) and batch[end][0] is operation:
                    end += 1
                self._many(operation, batch, start, end, outcomes)
            else:
                outcomes[start] = self._one(operation)
            start = end
        crash_point("before_commit")
        self._db.execute("COMMIT")
        self.commits += 1
        self.operations += len(batch)
        for item, (_, fault) in zip(batch, outcomes, strict=True):
            if fault is not None and item[2] is None:
                self._untold = self._untold or str(fault)
        return outcomes

    def _many(self, statement: str, batch: list[_Item], start: int, end: int, outcomes: list[_Outcome]) -> None:
        """Run one statement for the rows from `start` to `end`. SQLite undoes a failing row by itself."""
        ahead = iter([item[1] for item in batch[start:end]])
        while left := length_hint(ahead):
            try:
                self._db.executemany(statement, ahead)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's
                fault = self._survive(error)
                if length_hint(ahead) == left:
                    next(ahead)  # the statement failed before it took a row
                outcomes[end - length_hint(ahead) - 1] = (None, fault)

    def _one(self, operation: Callable[[sqlite3.Connection], Any]) -> _Outcome:
        self._db.execute("SAVEPOINT one")
        try:
            outcome: _Outcome = (operation(self._db), None)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the caller's
            outcome = (None, self._survive(error))
            self._db.execute("ROLLBACK TO one")
        self._db.execute("RELEASE one")
        return outcome

    def _survive(self, error: Exception) -> Exception:
        """What to tell the caller of a failed operation. Raises `error` when the whole transaction is lost with it."""
        if is_fatal(error) or not self._db.in_transaction:
            raise error
        if isinstance(error, StopIteration):  # no future takes it, and its neighbours would hear nothing
            return RuntimeError(f"{self._where}: an operation raised {error!r}")
        return store_error(error, self._where)

    def _die(self, batch: list[_Item], error: BaseException) -> None:
        known = store_error(error, self._where)
        with self._work:
            self._dead = str(known) if isinstance(known, StoreError) else f"{self._where}: the writer ended: {error!r}"
            batch = batch + self._queue
            self._queue = []
            crowd, self._crowd = self._crowd, []
            self._work.notify()
            self._room.notify_all()
        if any(item[2] is None for item in batch):
            self._untold = self._untold or self._dead
        _tell([item[2] for item in batch], ((None, StoreError(self._dead)) for _ in batch))
        _tell(crowd, repeat(_DONE))


def _gathered(batch: list[_Item]) -> list[_Item]:
    """`batch` with the rows of each statement together and in their order, which halves what they cost. Statements
    go by their text: an INSERT comes before the UPDATE of what it inserts. None passes a callable.
    """
    gathered: list[_Item] = []
    kinds = map(type, map(itemgetter(0), batch))
    for kind, group in groupby(zip(kinds, batch, strict=True), itemgetter(0)):
        items = [item for _, item in group]
        if kind is str:
            items.sort(key=itemgetter(0))
        gathered += items
    return gathered


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _tell(futures: Iterable[_Future | None], outcomes: Iterable[_Outcome]) -> None:
    """Give each future its outcome: at once on the loop that runs here, by a message to its loop elsewhere."""
    here = _running_loop()
    elsewhere: dict[asyncio.AbstractEventLoop, list[tuple[_Future, _Outcome]]] = defaultdict(list)
    for future, outcome in zip(futures, outcomes, strict=False):
        if future is None:
            continue
        if (loop := future.get_loop()) is here:
            _resolve(future, outcome)
        else:
            elsewhere[loop].append((future, outcome))
    for loop, told in elsewhere.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_resolve_all, told)


def _resolve_all(told: Iterable[tuple[_Future, _Outcome]]) -> None:
    for future, outcome in told:
        _resolve(future, outcome)


def _resolve(future: _Future, outcome: _Outcome) -> None:
    value, fault = outcome
    if future.done():  # its caller was cancelled
        return
    if fault is None:
        future.set_result(value)
    else:
        future.set_exception(fault)
