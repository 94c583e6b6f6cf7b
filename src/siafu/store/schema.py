"""The tables, their versions, and the opening of a database file.

A new file is built aside and renamed into place, so a file at the path is either complete or not there. A file that is
not ours is refused before anything is written to it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from siafu.errors import StoreError
from siafu.store.faults import checked_place, store_error

APPLICATION_ID = 0x73696166  # "siaf"
BUSY_SECONDS = 10.0
_OLDEST_SQLITE = (3, 37, 0)  # the first with STRICT tables

# Each step leads from the version before it to its own number (1 is the first). Steps are only ever added.
# Amounts are pico-dollars and at most 10,000 USD a row, tokens at most 10^12: so no sum of rows overflows 64 bits.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE run (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        created_at REAL NOT NULL
    ) STRICT;

    CREATE TABLE session (  -- one process that worked on a run; ended_at stays NULL when it was killed
        run INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,
        session INTEGER NOT NULL,
        pid INTEGER NOT NULL,
        work_print TEXT NOT NULL,
        began_at REAL NOT NULL,
        ended_at REAL,
        PRIMARY KEY (run, session)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE item (  -- id: order of the first claim; session: the last that claimed it; status NULL: no result yet
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,
        key TEXT NOT NULL,
        session INTEGER NOT NULL,
        input_print TEXT NOT NULL,
        status TEXT CHECK (status IN ('ok', 'error')),
        work_print TEXT,
        value BLOB,
        code TEXT,
        message TEXT,
        seconds REAL,
        usd_pico INTEGER CHECK (usd_pico BETWEEN 0 AND 10000000000000000),
        input_tokens INTEGER CHECK (input_tokens BETWEEN 0 AND 1000000000000),
        cached_tokens INTEGER CHECK (cached_tokens BETWEEN 0 AND 1000000000000),
        output_tokens INTEGER CHECK (output_tokens BETWEEN 0 AND 1000000000000),
        ended_at REAL,
        UNIQUE (run, key)
    ) STRICT;

    CREATE TABLE journal (
        run INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,
        task TEXT NOT NULL,
        path TEXT NOT NULL,
        seq INTEGER NOT NULL,
        kind TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        outcome BLOB NOT NULL,
        usd_pico INTEGER,
        PRIMARY KEY (run, task, path, seq)
    ) STRICT;

    CREATE TABLE attempt (  -- the ledger; outcome NULL: sent and not settled
        id INTEGER PRIMARY KEY,
        attempt TEXT NOT NULL UNIQUE,
        run INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,
        task TEXT NOT NULL,
        step TEXT NOT NULL,
        agent TEXT NOT NULL,
        role TEXT NOT NULL,
        upstream TEXT NOT NULL,
        model TEXT NOT NULL,
        opened_at REAL NOT NULL,
        reserved_pico INTEGER CHECK (reserved_pico BETWEEN 0 AND 10000000000000000),
        outcome TEXT CHECK (outcome IN ('ok', 'refused', 'failed', 'abandoned')),
        settled_at REAL,
        status INTEGER,
        code TEXT NOT NULL DEFAULT '',
        served_model TEXT NOT NULL DEFAULT '',
        input_tokens INTEGER NOT NULL DEFAULT 0 CHECK (input_tokens BETWEEN 0 AND 1000000000000),
        cached_tokens INTEGER NOT NULL DEFAULT 0 CHECK (cached_tokens BETWEEN 0 AND 1000000000000),
        cache_write_tokens INTEGER NOT NULL DEFAULT 0 CHECK (cache_write_tokens BETWEEN 0 AND 1000000000000),
        output_tokens INTEGER NOT NULL DEFAULT 0 CHECK (output_tokens BETWEEN 0 AND 1000000000000),
        reasoning_tokens INTEGER NOT NULL DEFAULT 0 CHECK (reasoning_tokens BETWEEN 0 AND 1000000000000),
        usage_known INTEGER NOT NULL DEFAULT 0 CHECK (usage_known IN (0, 1)),
        usd_pico INTEGER CHECK (usd_pico BETWEEN 0 AND 10000000000000000),
        price_source TEXT NOT NULL DEFAULT '',
        price_date TEXT NOT NULL DEFAULT '',
        seconds REAL NOT NULL DEFAULT 0,
        first_token REAL
    ) STRICT;
    CREATE INDEX attempt_of_task ON attempt (run, task);
    """,
    """
    ALTER TABLE attempt ADD COLUMN key TEXT NOT NULL DEFAULT '';
    ALTER TABLE attempt ADD COLUMN bucket TEXT NOT NULL DEFAULT '';
    """,
    """
    ALTER TABLE attempt ADD COLUMN saved_pico INTEGER NOT NULL DEFAULT 0
        CHECK (saved_pico BETWEEN -10000000000000000 AND 10000000000000000);
    """,
    # The ledger without what cost it half its time: a list of four words to look in, and an index on `attempt`.
    """
    CREATE TABLE leaner (
        id INTEGER PRIMARY KEY,
        attempt TEXT NOT NULL,
        run INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,
        task TEXT NOT NULL,
        step TEXT NOT NULL,
        agent TEXT NOT NULL,
        role TEXT NOT NULL,
        upstream TEXT NOT NULL,
        model TEXT NOT NULL,
        opened_at REAL NOT NULL,
        reserved_pico INTEGER CHECK (reserved_pico BETWEEN 0 AND 10000000000000000),
        outcome TEXT CHECK (outcome = 'ok' OR outcome = 'refused' OR outcome = 'failed' OR outcome = 'abandoned'),
        settled_at REAL,
        status INTEGER,
        code TEXT NOT NULL DEFAULT '',
        served_model TEXT NOT NULL DEFAULT '',
        input_tokens INTEGER NOT NULL DEFAULT 0 CHECK (input_tokens BETWEEN 0 AND 1000000000000),
        cached_tokens INTEGER NOT NULL DEFAULT 0 CHECK (cached_tokens BETWEEN 0 AND 1000000000000),
        cache_write_tokens INTEGER NOT NULL DEFAULT 0 CHECK (cache_write_tokens BETWEEN 0 AND 1000000000000),
        output_tokens INTEGER NOT NULL DEFAULT 0 CHECK (output_tokens BETWEEN 0 AND 1000000000000),
        reasoning_tokens INTEGER NOT NULL DEFAULT 0 CHECK (reasoning_tokens BETWEEN 0 AND 1000000000000),
        usage_known INTEGER NOT NULL DEFAULT 0 CHECK (usage_known IN (0, 1)),
        usd_pico INTEGER CHECK (usd_pico BETWEEN 0 AND 10000000000000000),
        price_source TEXT NOT NULL DEFAULT '',
        price_date TEXT NOT NULL DEFAULT '',
        seconds REAL NOT NULL DEFAULT 0,
        first_token REAL,
        key TEXT NOT NULL DEFAULT '',
        bucket TEXT NOT NULL DEFAULT '',
        saved_pico INTEGER NOT NULL DEFAULT 0 CHECK (saved_pico BETWEEN -10000000000000000 AND 10000000000000000)
    ) STRICT;
    INSERT INTO leaner SELECT * FROM attempt;
    DROP TABLE attempt;
    ALTER TABLE leaner RENAME TO attempt;
    CREATE INDEX attempt_of_task ON attempt (run, task);
    """,
    # The journal as a log: an entry that comes again stands after the one that it replaces. What is looked up by task
    # only when a run goes on has its index from then on (`LOOKUPS`): a third of what a commit wrote was indexes.
    """
    CREATE TABLE log (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL REFERENCES run ON DELETE CASCADE,
        task TEXT NOT NULL,
        path TEXT NOT NULL,
        seq INTEGER NOT NULL,
        kind TEXT NOT NULL,
        fingerprint TEXT NOT NULL,
        outcome BLOB NOT NULL,
        usd_pico INTEGER
    ) STRICT;
    INSERT INTO log SELECT NULL, * FROM journal;
    DROP TABLE journal;
    ALTER TABLE log RENAME TO journal;
    DROP INDEX attempt_of_task;
    """,
)

# The indexes of a run that goes on, or that is read by task in its first session.
LOOKUPS = (
    "CREATE INDEX IF NOT EXISTS attempt_of_task ON attempt (run, task)",
    "CREATE INDEX IF NOT EXISTS journal_of_task ON journal (run, task)",
)

# What lets a reader take a file that no run has brought up to date for one of this version: by the file's version.
_SEEN: dict[int, str] = {
    1: "CREATE TEMP VIEW attempt AS SELECT *, '' AS key, '' AS bucket, 0 AS saved_pico FROM main.attempt",
    2: "CREATE TEMP VIEW attempt AS SELECT *, 0 AS saved_pico FROM main.attempt",
    3: "",  # reads like this version
    4: "",
}


def open_file(path: Path) -> sqlite3.Connection:
    """The database at `path` for writing, created or brought to this version. Hold its lock.

    Raises: StoreError.
    """
    try:
        if not path.exists() or path.stat().st_size == 0:
            _create(path)
        with _closing_on_error(_connect(path)) as db:
            db.execute("PRAGMA journal_mode = WAL")  # it is already, unless somebody changed it
            db.execute("PRAGMA synchronous = FULL")  # a commit returns after its fsync
            db.execute("PRAGMA fullfsync = ON")  # macOS, where a plain fsync stops at the drive's cache
            db.execute("PRAGMA journal_size_limit = 67108864")
            _migrate(db, _version(db, path))
            return db
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be made ({error.strerror}): check that you may write to its folder"
        ) from error
    except sqlite3.Error as error:
        raise store_error(error, path) from error


def open_reader(path: Path) -> sqlite3.Connection:
    """The database at `path` for reading only; nothing in it is created or changed.

    Raises: StoreError, also for a file of a version that cannot be read.
    """
    inspect(path)
    try:
        # Not mode=ro: the last connection to a write-ahead log tidies it away, and one opened so could not.
        with _closing_on_error(_connect(path, still(path) or "rw")) as db:
            version = _version(db, path)
            if version in _SEEN:
                db.execute(_SEEN[version])
            elif version < len(MIGRATIONS):
                raise StoreError(f"{path} was written by an older siafu: resume its run with this one, then read it")
            db.execute("PRAGMA query_only = ON")
            return db
    except sqlite3.Error as error:
        raise store_error(error, path) from error


def open_memory() -> sqlite3.Connection:
    """A database that ends with its connection."""
    db = _connect(None)
    _migrate(db, 0)
    return db


def inspect(path: Path) -> None:
    """Look whether `path` is a database of ours. The file stays as it is; SQLite may leave an empty log beside it.

    Raises: StoreError when it is missing, not ours, or newer than this siafu.
    """
    if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
        raise StoreError(f"siafu needs SQLite 3.37 or newer; this Python has {sqlite3.sqlite_version}")
    checked_place(path, path)
    try:
        # SQLite looks, not we: closing a file of our own would drop the locks that other connections of this process
        # hold on it. And it looks into the log too, as a checkpoint that was cut off leaves the file itself torn.
        with closing(_connect(path, still(path) or "ro")) as db:
            _version(db, path)
    except sqlite3.Error as error:
        raise store_error(error, path) from error


def may_be_ours(path: Path) -> bool:
    """False when `path` is surely a database of another kind; True also when it cannot be read."""
    try:
        with closing(_connect(path, still(path) or "ro")) as db:
            return bool(db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID)
    except sqlite3.Error:
        return True


def _version(db: sqlite3.Connection, path: Path) -> int:
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreError(f"{path} is a database of another program, so it was left untouched: choose another path")
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise StoreError(f"{path} was written by a newer siafu: update siafu, or choose another path")
    return version


def _migrate(db: sqlite3.Connection, done: int) -> None:
    """Take the steps that `db` lacks, each in one transaction."""
    for version, step in enumerate(MIGRATIONS[done:], done + 1):
        db.executescript(f"BEGIN IMMEDIATE; {step}; PRAGMA user_version = {version}; COMMIT")


def _create(path: Path) -> None:
    draft = path.with_name(path.name + ".new")
    for rest in ("", "-wal", "-shm"):  # of a creation that was cut off
        draft.with_name(draft.name + rest).unlink(missing_ok=True)
    with closing(_connect(draft, "rwc")) as db:
        db.execute("PRAGMA journal_mode = MEMORY")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        _migrate(db, 0)
        db.execute("PRAGMA journal_mode = WAL")  # kept in the file, and last: its own log stays empty
    draft.chmod(0o600)  # it will hold what customers write; SQLite gives its log the same mode
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name, too, must outlive a power cut
    finally:
        os.close(folder)


def _connect(path: Path | None, mode: str = "rw") -> sqlite3.Connection:
    uri = f"{path.as_uri()}?mode={mode}" if path else "file::memory:"
    db = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA foreign_keys = ON")
    return db


def still(path: Path) -> str:
    """How to open a file on a read-only disk, as of a backup or after a fault: without the log and the locks beside it,
    which could not be made there; "" when it is not on one, or has a log.
    """
    with contextlib.suppress(OSError):
        read_only = os.statvfs(path).f_flag & os.ST_RDONLY
        return "ro&immutable=1" if read_only and not path.with_name(f"{path.name}-wal").exists() else ""
    return ""


@contextmanager
def _closing_on_error(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    try:
        yield db
    except BaseException:
        db.close()
        raise
