"""Looking after the files and databases that siafu keeps: which there are, of which version, and copies of them.

A copy is made while they are in use, is consistent in itself, and is opened before it counts as made.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from siafu.border.secrets import redact
from siafu.border.text import preview
from siafu.errors import ConfigError, StoreError
from siafu.store.address import database_name, database_place, server_address
from siafu.store.faults import store_error
from siafu.store.lock import Lock
from siafu.store.schema import APPLICATION_ID, BUSY_SECONDS, MIGRATIONS, open_file, still

Kind = Literal["journal", "database", "other"]
JOURNAL_STEPS = len(MIGRATIONS)


def kept_files(home: Path) -> dict[Path, Kind]:
    """Every SQLite file of ours in the home folder and in its folders: journals (one process writes each) and
    databases. Raises: StoreError for one that cannot be read.
    """
    found: dict[Path, Kind] = {}
    for path in sorted(home.absolute().rglob("*.db")):
        with unless_gone(path):
            if path.is_file() and (kind := _kind(path)) != "other":
                found[path] = kind
    return found


@contextlib.contextmanager
def unless_gone(path: Path) -> Iterator[None]:
    """Pass over what cannot be done with a file because it is there no more: the journal of a batch that has ended."""
    try:
        yield
    except (StoreError, FileNotFoundError):
        if path.exists():
            raise


def journal_version(path: Path) -> int:
    """How many of a journal's steps it has. Raises: StoreError."""
    with _reading(path) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def upgrade_journal(path: Path) -> None:
    """Bring a journal that nobody writes up to date. Raises: StoreBusy while one does; StoreError."""
    lock = Lock(path)
    try:
        open_file(path).close()
    finally:
        lock.release()


def copy_file(source: Path, target: Path) -> None:
    """A copy of a SQLite file as it is at one moment, for its owner alone. Others may write it meanwhile, and wait for
    nothing. Blocks. Raises: StoreError, also when there is something at `target`, or the copy is not whole.
    """
    try:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise StoreError(f"{target} cannot be made ({error.strerror}): choose another place") from error
    try:
        with _reading(source) as db, contextlib.closing(sqlite3.connect(target)) as copy:
            db.backup(copy)
        with _reading(target) as copy:
            said = [row[0] for row in copy.execute("PRAGMA integrity_check")]
    except sqlite3.Error as error:
        raise store_error(error, target) from error
    if said != ["ok"]:
        raise StoreError(f"the copy of {source} is not whole: {preview('; '.join(said), 300)}")
    to_disk(target)


def copy_bytes(source: Path, target: Path) -> None:
    """A copy of a file that is whole or only grows, for its owner alone. Blocks. Raises: OSError."""
    with source.open("rb") as file, target.open("xb") as copy:
        os.fchmod(copy.fileno(), 0o600)
        shutil.copyfileobj(file, copy, 1 << 20)
        copy.flush()
        os.fsync(copy.fileno())


def to_disk(path: Path) -> None:
    """Have a file, or the names in a folder, outlive a power cut. No connection of this process has the file open."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def dump(url: str, target: Path, what: str) -> None:
    """A copy of a PostgreSQL database as it is at one moment, made by pg_dump, that pg_restore reads. Blocks.
    what: names the database in messages.

    Raises: ConfigError when these programs are missing; StoreError with what they say.
    """
    found = server_address(url, what)
    if found is None:
        raise ConfigError(f"{what} is a file, not in PostgreSQL")
    address, password = found
    where, secret = database_name(database_place(url, what), what), {} if password is None else {"PGPASSWORD": password}
    words = ["--format=custom", "--no-owner", "--no-password", f"--file={target}", f"--dbname={address}"]
    _run("pg_dump", words, where, secret)
    target.chmod(0o600)
    if "siafu_schema" not in _run("pg_restore", ["--list", str(target)], str(target), {}):
        raise StoreError(f"{where} holds nothing of siafu: was it ever used? Check its address")
    to_disk(target)


def _run(program: str, words: list[str], where: str, secret: dict[str, str]) -> str:
    found = shutil.which(program)
    if found is None:
        raise ConfigError(
            f"{program} is not on the PATH, and {where} is copied with it: install PostgreSQL's client programs "
            "(Debian: postgresql-client), of the server's version or newer"
        )
    environment = {**os.environ, "PGCONNECT_TIMEOUT": "10", **secret}
    done = subprocess.run([found, *words], env=environment, capture_output=True, errors="replace", check=False)
    if done.returncode != 0:
        raise StoreError(f"{program} failed on {where}: {redact(preview(done.stderr.strip(), 500))}")
    return done.stdout


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        # Not mode=ro: the last connection to a write-ahead log tidies it away, and one opened so could not.
        address = f"{path.as_uri()}?mode={still(path) or 'rw'}"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS)) as db:
            db.execute("PRAGMA query_only = ON")
            yield db
    except sqlite3.Error as error:
        raise store_error(error, path) from error


def _kind(path: Path) -> Kind:
    with _reading(path) as db:
        if db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
            return "journal"
        found = db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'siafu_schema'").fetchone()
        return "other" if found is None else "database"
