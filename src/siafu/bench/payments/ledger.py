"""The ledger on disk: JSON lines, only appended. What was written survives the end of the process, what was settled
survives the end of the machine."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from pathlib import Path

import msgspec

from siafu.bench.payments.book import Book
from siafu.bench.payments.lines import Head, Line
from siafu.errors import ConfigError, StoreBusy, StoreError

_HEAD = msgspec.json.encode(Head()) + b"\n"
_decoder = msgspec.json.Decoder(Line)


class Ledger:
    """A ledger that is being written, by this process alone. `book`: what it says so far.

    A last line that a kill has torn is cut off: it was never settled, so nobody was told of it.

    Raises: ConfigError when the file cannot be used or is no ledger (it is left as it is), StoreBusy when another
    process has it.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"cannot open the ledger {path}: {error.strerror}; choose another --ledger FILE"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.book, self._size = _read(path)
            os.ftruncate(self._file, self._size)
            if not self._size:
                self._append(_HEAD)
        except BaseException as error:
            os.close(self._file)
            if isinstance(error, BlockingIOError):
                raise StoreBusy(
                    f"another process serves the ledger {path}; end it or choose another --ledger"
                ) from None
            if isinstance(error, OSError):
                raise ConfigError(
                    f"{path} cannot be a ledger: {error.strerror}; choose another --ledger FILE"
                ) from None
            raise
        self._settled = 0
        self._settling = asyncio.Lock()

    def write(self, line: Line) -> None:
        """Append one line, and know it. It is not settled yet.

        Raises: StoreError when there is no room; nothing of the line stays.
        """
        self._append(msgspec.json.encode(line) + b"\n")
        self.book.apply(line)

    async def settle(self) -> None:
        """Return once all that was written before is on the disk. Many callers share one sync.

        Raises: StoreError when the disk fails: then nobody knows.
        """
        wanted = self._size
        async with self._settling:
            if self._settled >= wanted:
                return
            written = self._size
            try:
                await asyncio.to_thread(os.fsync, self._file)
            except OSError as error:
                raise StoreError(f"the ledger cannot be synced: {error.strerror}") from None
            self._settled = written

    def close(self) -> None:
        """Let go of the file. Nothing can be written afterwards."""
        os.close(self._file)

    def _append(self, data: bytes) -> None:
        try:
            if os.write(self._file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise StoreError(f"the ledger cannot be written: {error.strerror}; nothing was paid") from None
        self._size += len(data)


def read_ledger(path: Path) -> Book:
    """What a ledger says; also while it is being served.

    Raises: ConfigError.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[Book, int]:
    """The book, and the length of the lines that are whole. Raises: ConfigError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the ledger {path}: {error.strerror}") from None
    book, whole = Book(), data.rfind(b"\n") + 1
    if not (data.startswith(_HEAD) if whole else _HEAD.startswith(data)):
        raise ConfigError(f"{path} is not a ledger of siafu payments; choose another --ledger FILE")
    for number, line in enumerate(data[len(_HEAD) : whole].splitlines(), 2):
        try:
            book.apply(_decoder.decode(line))
        except (msgspec.MsgspecError, ValueError) as error:
            raise ConfigError(f"{path}, line {number}: {error}; the ledger was changed, choose another one") from None
    return book, whole
