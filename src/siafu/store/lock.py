"""One process holds a journal at a time: a lock beside it that the kernel lets go when the process ends, however."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from siafu.errors import StoreBusy, StoreError


class Lock:
    """Holds `<path>.lock` from construction until `release`. The file stays; only the lock on it counts.

    It works between processes of one machine. Network file systems may not carry it, and SQLite's write-ahead log does
    not work there either: keep journals on a local disk.

    Raises: StoreBusy with the holder's process id; StoreError when the file cannot be made or locked.
    """

    def __init__(self, path: Path) -> None:
        beside = path.with_name(path.name + ".lock")
        try:
            self._file = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreError(
                f"{path}: cannot open {beside.name} ({error.strerror}): check that you may write there"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, str(os.getpid()).encode(), 0)
        except BlockingIOError:
            holder = os.pread(self._file, 20, 0).decode("ascii", "replace")
            os.close(self._file)
            raise StoreBusy(_busy(path, holder)) from None
        except OSError as error:
            os.close(self._file)
            raise StoreError(f"{path}: cannot lock it ({error.strerror}): keep journals on a local disk") from error
        _held.add(self)

    def release(self) -> None:
        """Let go. Call it once; does nothing in a process that was forked meanwhile."""
        if self in _held:
            _held.remove(self)
            fcntl.flock(self._file, fcntl.LOCK_UN)  # for a process that is being forked just now, too
            os.close(self._file)


_held: set[Lock] = set()


def _forked() -> None:
    """In a forked process: close its copies of the files. They would keep the locks after their owner has ended."""
    while _held:
        os.close(_held.pop()._file)


os.register_at_fork(after_in_child=_forked)


def _busy(path: Path, holder: str) -> str:
    if holder == str(os.getpid()):
        return f"{path} is already open in this process (pid {holder}): close it first, or use another path"
    if not holder:  # it has just taken the lock
        return f"{path} is in use by another process: wait until it ends, or use another path"
    return f"{path} is in use by process {holder}: wait until it ends, or stop it (kill {holder}), or use another path"
