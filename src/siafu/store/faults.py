"""The one place that turns what sqlite3 raises into StoreError, with a message that says what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TypeVar

from siafu.errors import StoreError, StoreLocked

Fault = TypeVar("Fault", bound=BaseException)

_AGAIN = "; then run the same command again: everything confirmed so far is kept"
_LOCKED = (
    "another program has locked it: let that go on or end it (a process that was stopped, a database browser?)" + _AGAIN
)
_ADVICE = {
    sqlite3.SQLITE_FULL: "the disk is full: free some space" + _AGAIN,
    sqlite3.SQLITE_IOERR: "the disk reports an error: check it" + _AGAIN,
    sqlite3.SQLITE_READONLY: "it is read-only: make the file and its folder writable" + _AGAIN,
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check that its folder exists and that you may write there",
    sqlite3.SQLITE_PERM: "access is denied: check the permissions of the file and its folder",
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_NOMEM: "there is no memory left: close other programs" + _AGAIN,
    sqlite3.SQLITE_NOTADB: "it is not an SQLite database, so it was left untouched: choose another path",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: keep a copy, rescue what it holds with `sqlite3 FILE .recover`, and "
    "go on with another path",
}


def checked_place(path: Path, where: str | Path) -> None:
    """Raises: StoreError when what stands at `path` is no file, and a new one would take its place: a folder, a device,
    a pipe.
    """
    if path.is_dir():
        raise StoreError(f"{where} is a folder: name a file in it, like {path / 'run.db'}")
    if path.exists() and not path.is_file():
        raise StoreError(f"{where} is no regular file (a device, a pipe?): choose another path")


def is_fatal(error: Exception) -> bool:
    """Whether `error` is about the store as a whole, so that no later write can be trusted."""
    return isinstance(error, sqlite3.Error) and _kind(error) in _ADVICE


def is_locked(error: BaseException) -> bool:
    """Whether another program holds the file, so that a later try may succeed."""
    return isinstance(error, sqlite3.Error) and _kind(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def store_error(error: Fault, where: str | Path) -> Fault | StoreError:
    """`error` as StoreError when sqlite3 raised it (also for a value it cannot bind), otherwise `error` itself."""
    if isinstance(error, UnicodeEncodeError):
        return StoreError(f"{where}: a text holds half a character (a lone surrogate): clean it before it is stored")
    if isinstance(error, OverflowError):
        return StoreError(f"{where}: a number has more than 64 bits: check where it comes from")
    if not isinstance(error, sqlite3.Error):
        return error
    kind = StoreLocked if is_locked(error) else StoreError
    return kind(f"{where}: {_ADVICE.get(_kind(error), 'the row was refused')} ({error})")


def _kind(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
