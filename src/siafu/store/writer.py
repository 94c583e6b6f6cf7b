"""Group commit: one thread writes everything that is waiting in one transaction, so a thousand tasks share one fsync.

The thread takes the whole queue, runs it in order, commits, and then tells each event loop once. An operation that
fails is undone alone; its neighbours commit. A fault of the store itself (disk full, I/O error, locked by another
program) ends the writer: everybody who waits, and everybody who comes later, gets a StoreError.

When many wait, the thread lets more of them gather before it begins: for half as long as the last commit took, at
most a millisecond.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import length_hint
from typing import Any, TypeVar

from siafu.errors import StoreError
from siafu.store.crash import crash_point
from siafu.store.faults import is_fatal, store_error

Result = TypeVar("Result")
Row = Sequence[Any]
_Operation = str | Callable[[sqlite3.Connection], Any]
_Future = asyncio.Future[Any]
# what to do, its row when it is a statement, and who waits for it
_Item = tuple[_Operation, Row, _Future | None]
_Outcome = tuple[Any, Exception | None]
_DONE: _Outcome = (None, None)
_CROWD = 8  # rows in a transaction; after so many it pays to wait a moment for more
_MAX_PAUSE = 0.001  # seconds


class Writer:
    """Owns `db` and its only writing thread. `where` names the store in messages.

    At most `max_queued` operations wait for the next transaction; over it, callers wait. Operations are committed in
    the order in which they were queued, and may come from any thread and from one event loop after another. The
    thread does not keep the interpreter alive: what was not confirmed when the process ends may be lost.
    """

    def __init__(self, db: sqlite3.Connection, where: str, *, max_queued: int = 10_000) -> None:
        self._db = db
        self._where = where
        self._max = max_queued
        self._queue: list[_Item] = []
        self._crowd: list[_Future] = []  # callers that found the queue full
        self._pause = 0.0  # seconds to let a crowd gather before the next transaction
        self._closing = False
        self._dead = ""
        self._untold = ""  # the first failure of a posted line, for `close`
        lock = threading.Lock()
        self._work = threading.Condition(lock)
        self._room = threading.Condition(lock)
        self._thread = threading.Thread(target=self._run, name="siafu-writer", daemon=True)
        self._thread.start()

    async def write(self, statement: str, row: Row) -> None:
        """Run one INSERT, UPDATE or DELETE; returns when it is durable.

        Raises: StoreError. When cancelled, the row may or may not be written.
        """
        await self._submit(statement, row)

    async def call(self, operation: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run `operation` on the connection, in the writer's thread; returns its value when its writes are durable.

        Whatever it raises is raised here, after its writes are undone; sqlite3's errors as StoreError. When cancelled,
        its writes may or may not be made. It must not commit or roll back.
        """
        result: Result = await self._submit(operation, ())
        return result

    def post(self, statement: str, row: Row) -> None:
        """Queue one statement that nobody waits for. If it fails, `close` says so.

        Blocks the thread while the queue is full, which lasts at most one transaction.

        Raises: StoreError when the writer is closed or dead.
        """
        with self._room:
            self._room.wait_for(lambda: len(self._queue) < self._max or self._dead or self._closing)
            self._put((statement, row, None))

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
            with self._work:
                if len(self._queue) < self._max:
                    self._put((operation, row, future))
                    break
                self._crowd.append(future)
            await future
        return await future

    def _put(self, item: _Item) -> None:
        if self._dead or self._closing:
            raise StoreError(self._dead or f"{self._where} is closed")
        self._queue.append(item)
        if len(self._queue) == 1:
            self._work.notify()

    # From here on: the writer's thread.

    def _run(self) -> None:
        batch: list[_Item] = []
        try:
            while batch := self._take():
                began = time.monotonic()
                outcomes = self._commit(batch)
                took = time.monotonic() - began
                self._pause = min(took / 2, _MAX_PAUSE) if len(batch) >= _CROWD else 0.0
                crash_point("after_commit")
                _tell((item[2], *outcome) for item, outcome in zip(batch, outcomes, strict=True))
        except BaseException as error:  # noqa: BLE001 - a thread that ends silently would leave its callers waiting
            self._die(batch, error)
        finally:
            self._db.close()

    def _take(self) -> list[_Item]:
        """Everything queued; empty only when the writer is closing."""
        with self._work:
            self._work.wait_for(lambda: self._queue or self._closing)
            if self._pause and not self._closing:
                self._work.wait(self._pause)  # nobody notifies a thread that has work, but `close`
            batch, self._queue = self._queue, []
            crowd, self._crowd = self._crowd, []
            self._room.notify_all()
        _tell((future, None, None) for future in crowd)
        return batch

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
        return store_error(error, self._where)

    def _die(self, batch: list[_Item], error: BaseException) -> None:
        known = store_error(error, self._where)
        with self._work:
            self._dead = str(known) if isinstance(known, StoreError) else f"{self._where}: the writer ended: {error!r}"
            batch = batch + self._queue
            self._queue = []
            crowd, self._crowd = self._crowd, []
            self._room.notify_all()
        if any(item[2] is None for item in batch):
            self._untold = self._untold or self._dead
        _tell((item[2], None, StoreError(self._dead)) for item in batch)
        _tell((future, None, None) for future in crowd)


def _tell(told: Iterable[tuple[_Future | None, Any, Exception | None]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Future, Any, Exception | None]]] = defaultdict(list)
    for future, value, fault in told:
        if future is not None:
            by_loop[future.get_loop()].append((future, value, fault))
    for loop, outcomes in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_resolve, outcomes)


def _resolve(outcomes: list[tuple[_Future, Any, Exception | None]]) -> None:
    for future, value, fault in outcomes:
        if future.done():  # its caller was cancelled
            continue
        if fault is None:
            future.set_result(value)
        else:
            future.set_exception(fault)
