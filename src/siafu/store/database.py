"""One SQL door for SQLite and PostgreSQL: for what is rare and must be right on both.

SQL is text with `:name` parameters, and words in braces as `store.dialect` has them.

A transaction is durable when it returns. Nothing slow, such as a network call, belongs inside one: others wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import lru_cache, partial
from math import isnan
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from sqlalchemy import Connection, Engine, QueuePool, TextClause, bindparam, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError, TimeoutError

from siafu.border.secrets import redact
from siafu.border.text import clean, preview
from siafu.errors import ConfigError, Conflict, StoreError, StoreLocked
from siafu.store.address import database_name, database_place
from siafu.store.dialect import Dialect, spoken
from siafu.store.faults import checked_place, store_error
from siafu.store.schema import still

Value: TypeAlias = str | int | float | bytes | None
Values: TypeAlias = Value | Sequence[Value]
T = TypeVar("T")

WAIT_SECONDS = 10.0  # for a lock, for a free connection, for the server to answer a new connection
LEAST_WAIT = 0.25  # for a lock, by what has waited long for its turn; unless the one before it has waited in vain
ATTEMPTS = 6  # of a transaction that the database ended in favour of another
POSTGRESQL_THREADS = 8

_ONLY = re.compile(r"\s*\{(sqlite|postgresql)\}")
_MIGRATION_LOCK = 0x73696166  # "siaf": one migration at a time in a PostgreSQL database

# Waits have an end, also on the server; a commit is on its disk before it returns, whatever its settings say.
_SESSION = f"""SELECT set_config('lock_timeout', '{WAIT_SECONDS:.0f}s', false),
    set_config('statement_timeout', '60s', false), set_config('idle_in_transaction_session_timeout', '60s', false),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on'
        ELSE current_setting('synchronous_commit') END, false)"""

_WRONG_TYPE = {3091, sqlite3.SQLITE_MISMATCH}  # 3091: SQLITE_CONSTRAINT_DATATYPE, which Python does not name
_REPEATABLE = {"40001", "40P01"}  # serialization failure, deadlock
_LOCKED = "55P03"
_THERE: dict[Dialect, str] = {  # whether the table of applied versions is
    "sqlite": "EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'siafu_schema')",
    "postgresql": "to_regclass('siafu_schema') IS NOT NULL",
}
_NEWER = " was written by a newer version: update siafu, or choose another database"
_AGAIN = "; then run the same command again: everything confirmed so far is kept"
_ADVICE = {  # the longest prefix of the SQLSTATE counts
    "": "the statement was refused",
    "connection": "it cannot be reached: check that PostgreSQL runs there, and all parts of its address" + _AGAIN,
    "08": "the connection was lost: check that PostgreSQL runs" + _AGAIN,
    "28": "the user or password is refused: check them in its address",
    "3D": "there is no such database: create it (createdb), or correct the name in its address",
    "25006": "it is read-only: give the address of the primary server",
    "42501": "the user lacks a right: let it create tables, or let its owner open the database once",
    "53": "PostgreSQL lacks room (disk, memory or connections)" + _AGAIN,
    _LOCKED: "another transaction held a row for too long: look for one that hangs" + _AGAIN,
    "57P": "PostgreSQL is stopping or starting: wait for it" + _AGAIN,
}  # fmt: skip


class Database:
    """An open database, safe to use from any number of threads.

    url: a path, `sqlite:///PATH` (four slashes for an absolute one) or `postgresql://user:password@host/name`.
    migrations: one entry a version, each a list of single statements; never edited once released, only added to.
    what: names it in messages ("the shop's database"). schema: the name under which its applied versions are counted,
    so that several may live in one database. Blocks while it connects and migrates; several processes may do so at
    once. A SQLite file is made readable by its owner alone, and belongs on a local disk.

    Raises: ConfigError for an address that cannot be used; StoreError when the database cannot be opened, belongs to
    another program or was written by a newer version. No message holds a password.
    """

    dialect: Dialect

    def __init__(self, url: str | Path, migrations: Sequence[Sequence[str]], *, what: str, schema: str) -> None:
        place = database_place(url, what)
        self._where = database_name(place, what)
        if isinstance(place, Path):
            self.dialect = "sqlite"
            _make_file(place, self._where)
            self._engine = _sqlite(place, self._patience)
        else:
            self.dialect = "postgresql"
            self._engine = _postgresql(place, what)
        self._threads = ThreadPoolExecutor(1 if self.dialect == "sqlite" else POSTGRESQL_THREADS, "siafu-database")
        self._closed = False
        self._waits = threading.local()  # until when the transaction of this thread waits for a lock
        self._stuck = False  # the last one has waited in vain
        try:
            self.transact(lambda transaction: _migrate(transaction, migrations, schema, self._where))
        except BaseException:
            self.close()
            raise

    def transact(self, work: Callable[[Transaction], T], *, until: float | None = None, whole: bool = False) -> T:
        """Call `work` in one transaction, in this thread; what it returns, once that is durable. until: when it stops
        to wait for a lock, on `time.monotonic`; None = in 10 seconds. whole: no Conflict is caught in `work`, so none
        of its statements needs a way back of its own (on PostgreSQL, two messages each).

        When `work` raises, nothing is kept. It is called again when the database ends the transaction in favour of
        another (PostgreSQL: a deadlock), or a connection from earlier turns out to be lost, so it does nothing but use
        its transaction, and begins no other.

        Raises: StoreLocked when others (a process that was stopped) hold it for longer; StoreError, also when `work`
        swallows one that is no Conflict; what `work` raises.
        """
        self._waits.until = time.monotonic() + WAIT_SECONDS if until is None else until
        for attempt in range(1, ATTEMPTS):
            try:
                return self._once(work, whole)
            except _Overtaken:
                time.sleep(random.uniform(0.0, 0.01 * 2**attempt))
        return self._once(work, whole)

    def _once(self, work: Callable[[Transaction], T], whole: bool) -> T:
        if self._closed:
            raise StoreError(f"{self._where} is closed")
        try:
            with self._engine.begin() as connection:
                transaction = Transaction(connection, self.dialect, self._where, whole=whole)
                if self.dialect == "postgresql" and (most := self._patience()) < (WAIT_SECONDS - 1.0) * 1000:
                    transaction.rows("SELECT set_config('lock_timeout', :most, true)", most=f"{most}ms")
                result = work(transaction)
                if transaction.failed is not None:
                    raise transaction.failed
            self._stuck = False
            return result
        except SQLAlchemyError as error:  # at BEGIN or COMMIT
            told = _told(error, self._where)
            self._stuck = isinstance(told, StoreLocked)
            raise told from error

    def _patience(self) -> int:
        """Milliseconds that the transaction of this thread may wait for a lock."""
        return int(max(self._waits.until - time.monotonic(), 0.001 if self._stuck else LEAST_WAIT) * 1000)

    async def run(self, work: Callable[[Transaction], T], *, seconds: float | None = None, whole: bool = False) -> T:
        """`transact` in a thread of this database. seconds: for which a lock is waited for, together with the turn;
        None = 10.

        Cancelled before it has begun, it never begins; cancelled later, it goes on to its end without the caller.
        """
        until = time.monotonic() + min(WAIT_SECONDS, WAIT_SECONDS if seconds is None else seconds)
        transact = partial(self.transact, work, until=until, whole=whole)
        try:
            waiting = asyncio.get_running_loop().run_in_executor(self._threads, transact)
        except RuntimeError as error:  # the threads take no more work
            raise StoreError(f"{self._where} is closed") from error
        return await waiting

    def listen(self, channel: str, heard: Callable[[], None], ended: Callable[[], bool]) -> None:
        """PostgreSQL alone: call `heard` in this thread, once it listens and after every NOTIFY on `channel`, until
        `ended`, which is asked twice a second. Blocks. Raises: StoreError when there is no connection, or it is lost.
        """
        try:
            with self._engine.connect() as connection, contextlib.ExitStack() as stack:
                driver: Any = connection.connection.driver_connection
                stack.callback(connection.invalidate)  # nobody else gets it
                driver.autocommit = True
                driver.execute(f"LISTEN {channel}")
                heard()
                while not ended():
                    for _ in driver.notifies(timeout=0.5, stop_after=1):
                        heard()
        except (SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as error:
            raise StoreError(f"{self._where}: nobody listens ({redact(preview(str(error), 300))})") from error

    def close(self) -> None:
        """Finish what `run` has been given, and close. Blocks; idempotent. `transact` is not called meanwhile."""
        self._threads.shutdown()
        self._closed = True
        self._engine.dispose()

    async def aclose(self) -> None:
        """`close` off the event loop."""
        await asyncio.to_thread(self.close)


def look(url: str | Path, *, what: str, schema: str, versions: int) -> tuple[str, int | None]:
    """Where the database is, and how many of its migrations it has; None = it is new. Makes and changes nothing, and
    needs no more than the right to read. Blocks. versions: how many migrations this program knows.

    Raises: as `Database`.
    """
    place = database_place(url, what)
    where = database_name(place, what)
    if isinstance(place, Path):
        if not place.exists():
            return where, None
        _inspect(place, where)
        to_read = f"{place.as_uri()}?mode={still(place) or 'ro'}"
        engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(to_read, uri=True), hide_parameters=True)
    else:
        engine = _postgresql(place, what)
    try:
        with engine.connect() as connection:
            reading = Transaction(connection, "sqlite" if isinstance(place, Path) else "postgresql", where)
            found = reading.row(f"SELECT 1 WHERE {_THERE[reading.dialect]}")
            found = found and reading.row("SELECT version FROM siafu_schema WHERE name = :name", name=schema)
    except SQLAlchemyError as error:
        raise _told(error, where) from error
    finally:
        engine.dispose()
    if found and found["version"] > versions:
        raise StoreError(where + _NEWER)
    return where, found["version"] if found else None


class Transaction:
    """What `work` has in its hands; of no use afterwards.

    A value is text, an integer of at most 64 bits, a float, bytes or None. Booleans are 0 and 1 on both databases. A
    list of values, which has at least one, stands behind IN: `id IN :ids`.

    Raises (every method): Conflict when a constraint forbids the change; it alone may be caught inside `work`, unless
    the transaction is a `whole`; `work` then goes on as if that statement had not been. StoreError for everything else;
    the transaction is lost with it.
    """

    def __init__(self, connection: Connection, dialect: Dialect, where: str, *, whole: bool = False) -> None:
        self.dialect: Dialect = dialect
        self._whole = whole
        self._begun = False
        self.failed: StoreError | None = None
        self._connection = connection
        self._where = where

    def change(self, sql: str, /, **values: Values) -> int:
        """The number of rows changed."""
        return self._execute(sql, values)[1]

    def rows(self, sql: str, /, **values: Values) -> list[Mapping[str, Any]]:
        """All rows, also of INSERT, UPDATE and DELETE with RETURNING."""
        return self._execute(sql, values)[0]

    def row(self, sql: str, /, **values: Values) -> Mapping[str, Any] | None:
        """The first row; None when there is none."""
        found = self.rows(sql, **values)
        return found[0] if found else None

    def _execute(self, sql: str, values: Mapping[str, Values]) -> tuple[list[Mapping[str, Any]], int]:
        if self.failed is not None:
            raise self.failed  # SQLite may have ended the transaction, and would keep this statement by itself
        lists = tuple(name for name, value in values.items() if isinstance(value, list | tuple))
        statement = _statement(sql, self.dialect, lists)
        for name, value in values.items():
            if fault := _fault(value):
                self.failed = StoreError(f"{self._where}: {name} {fault}")
                raise self.failed
        bound = {name: int(value) if isinstance(value, bool) else value for name, value in values.items()}
        # PostgreSQL gives up the whole transaction at the first error, unless it can go back to a savepoint.
        alone = self.dialect == "sqlite" or self._whole or _reads(sql)
        try:
            with contextlib.nullcontext() if alone else self._connection.begin_nested():
                result = self._connection.execute(statement, bound)
                self._begun = True
                if not result.returns_rows:
                    return [], max(result.rowcount, 0)
                found: list[Mapping[str, Any]] = [_plain(row) for row in result.mappings()]
                return found, len(found)
        except SQLAlchemyError as error:
            told = _told(error, self._where)
            if not self._begun and isinstance(error, DBAPIError) and error.connection_invalidated:
                told = _Overtaken(told.message)  # the pool gives another one now
            if self._whole or not isinstance(told, Conflict):
                self.failed = told
            raise told from error


class _Overtaken(StoreError):
    """The database ended the transaction so that another could go on, or the connection was lost before it began."""


def _make_file(path: Path, where: str) -> None:
    """Make the file, for its owner alone; one that is there is only looked at."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        _inspect(path, where)
    except OSError as error:
        raise StoreError(f"{where} cannot be made ({error.strerror}): choose another path") from error


def _inspect(path: Path, where: str) -> None:
    checked_place(path, where)
    try:
        address = f"{path.as_uri()}?mode={still(path) or 'rw'}"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=WAIT_SECONDS)) as db:
            names = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
    except sqlite3.Error as error:
        raise store_error(error, where) from error
    if names and "siafu_schema" not in names:
        raise StoreError(f"{where} is a database of another program, so it was left untouched: choose another path")


def _sqlite(path: Path, patience: Callable[[], int]) -> Engine:
    """One connection, which threads take in turn: SQLite has one writer at a time anyway. patience: milliseconds."""
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        connect_args={"isolation_level": None, "timeout": WAIT_SECONDS, "check_same_thread": False},
        poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=WAIT_SECONDS, hide_parameters=True,
    )  # fmt: skip

    def prepare(db: sqlite3.Connection, _: object) -> None:
        _write_ahead(db)
        db.execute("PRAGMA synchronous = FULL")  # a commit returns after its fsync
        db.execute("PRAGMA fullfsync = ON")  # macOS, where a plain fsync stops at the drive's cache
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA secure_delete = ON")  # what is removed shall not be left in the file; not all builds do so
        db.execute("PRAGMA recursive_triggers = ON")  # else REPLACE removes rows past the triggers of append_only

    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {patience()}")
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", begin)
    return engine


def _write_ahead(db: sqlite3.Connection) -> None:
    """Turn the write-ahead log on. Processes that do so at once are refused without the usual wait."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _postgresql(url: URL, what: str) -> Engine:
    wanted = {
        "connect_timeout": int(WAIT_SECONDS),
        "client_encoding": "utf8",
        "application_name": "siafu",
    }
    try:
        engine = create_engine(
            url,
            connect_args={name: value for name, value in wanted.items() if name not in url.query},
            isolation_level="READ COMMITTED", hide_parameters=True,
            pool_size=POSTGRESQL_THREADS, max_overflow=0, pool_timeout=WAIT_SECONDS,
        )  # fmt: skip
    except ImportError as error:
        raise ConfigError(f"{what} is in PostgreSQL, which needs an extra: pip install 'siafu[postgres]'") from error

    def prepare(db: Any, _: object) -> None:
        # Values bound by the driver: the server could not tell the type of one alone (`:name IS NULL`), and keeps no
        # prepared plan that another process's migration would break.
        db.cursor_factory = engine.dialect.loaded_dbapi.ClientCursor
        db.execute(_SESSION)
        db.commit()

    event.listen(engine, "connect", prepare)
    return engine


def _migrate(transaction: Transaction, migrations: Sequence[Sequence[str]], schema: str, where: str) -> None:
    """Take the steps that the database lacks, all or none."""
    if transaction.dialect == "postgresql":
        transaction.rows("SELECT pg_advisory_xact_lock(:lock)", lock=_MIGRATION_LOCK)
        (coded,) = transaction.rows("SELECT current_setting('server_encoding') AS name")
        if coded["name"] != "UTF8":
            raise ConfigError(f"{where} keeps text as {coded['name']}: create it anew with ENCODING 'UTF8'")
    if transaction.row(f"SELECT 1 WHERE {_THERE[transaction.dialect]}") is None:
        transaction.change("CREATE TABLE siafu_schema (name TEXT PRIMARY KEY, version {integer} NOT NULL) {strict}")
    found = transaction.row("SELECT version FROM siafu_schema WHERE name = :name", name=schema)
    done = found["version"] if found else 0
    if done > len(migrations):
        raise StoreError(where + _NEWER)
    if done == len(migrations):
        return
    for statement in itertools.chain.from_iterable(migrations[done:]):
        only = _ONLY.match(statement)
        if only is None:
            transaction.change(statement)
        elif only[1] == transaction.dialect:
            transaction.change(statement[only.end() :])
    transaction.change(
        "INSERT INTO siafu_schema (name, version) VALUES (:name, :version) "
        "ON CONFLICT (name) DO UPDATE SET version = excluded.version",
        name=schema, version=len(migrations),
    )  # fmt: skip


@lru_cache(1024)
def _statement(sql: str, dialect: Dialect, lists: tuple[str, ...]) -> TextClause:
    return text(spoken(sql, dialect)).bindparams(*(bindparam(name, expanding=True) for name in lists))


def _fault(value: Any) -> str | None:
    """What is wrong with a value that only one of the databases would take."""
    if isinstance(value, list | tuple):
        return next(filter(None, map(_fault, value)), None)
    if isinstance(value, str) and clean(value) != value:
        return "holds a NUL or half a character: clean it before it is stored"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "has more than 64 bits: check where it comes from"
    if isinstance(value, float) and isnan(value):
        return "is not a number"
    return None


def _reads(sql: str) -> bool:
    return sql.lstrip()[:6].upper() == "SELECT"


def _plain(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row as SQLite gives it: PostgreSQL sums integers to a decimal number."""
    return {name: _number(value) if isinstance(value, Decimal) else value for name, value in row.items()}


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def _told(error: SQLAlchemyError, where: str) -> StoreError:
    """`error` as siafu tells it: never with the password, and a conflict without the values of its row."""
    cause: Any = error.orig if isinstance(error, DBAPIError) else None
    if isinstance(cause, sqlite3.Error):
        # A value of the wrong type is a constraint to SQLite alone.
        if isinstance(cause, sqlite3.IntegrityError) and cause.sqlite_errorcode not in _WRONG_TYPE:
            return Conflict(f"{where}: {cause}", constraint=str(cause).rpartition("failed: ")[2])
        return cast(StoreError, store_error(cause, where))
    if isinstance(error, TimeoutError):
        return StoreError(f"{where}: no connection became free: does a transaction hang, or begin another in itself?")
    if cause is None:  # a wrong use, such as a parameter without its value
        return StoreError(f"{where}: {preview(str(error), 300)}")
    diag, state = cause.diag, cause.sqlstate or ""
    said = redact(preview(diag.message_primary or str(cause), 300))
    if state.startswith("23"):
        return Conflict(f"{where}: {said}", constraint=diag.constraint_name or diag.column_name or said)
    if state in _REPEATABLE:
        return _Overtaken(f"{where}: {said}")
    if not state and isinstance(error, OperationalError):
        state = "connection"
    advice = _ADVICE[max((prefix for prefix in _ADVICE if state.startswith(prefix)), key=len)]
    return (StoreLocked if state == _LOCKED else StoreError)(f"{where}: {advice} ({said})")
