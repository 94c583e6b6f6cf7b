"""JSON Lines from outside and to disk: one value a line, in bounded memory, never half a record.

Reading splits at `\\n` only, so U+2028 and the like inside strings do no harm, and a line that cannot be used is
reported with its number while the rest goes on. Writing appends whole records; a tail torn by a crash is cut back
before the next record follows it, and kept aside.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from siafu.border.canonical import dumps, loads
from siafu.errors import InputError, SiafuError, StoreBusy, StoreError

MAX_LINE = 4 * 1024 * 1024
MAX_RECORD = 16 * MAX_LINE
_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_BLOCK = 1 << 16


class RawLine(msgspec.Struct, frozen=True):
    """One line as bytes. number: from 1. offset: of its first byte. size: bytes in the file, line end included.
    data: without the line end and without a byte order mark before the first line; None when the line is longer than
    the limit. ended: False for a last line without a line end.
    """

    number: int
    offset: int
    size: int
    data: bytes | None
    ended: bool


class LineError(msgspec.Struct, frozen=True):
    """Why a line cannot be used. code: too_large, not_utf8, not_json, input. value: of the line, where it has one."""

    line: int
    code: str
    message: str
    value: Any = None


class Line(msgspec.Struct, frozen=True):
    """One line that is not blank: its value, or why there is none."""

    number: int
    offset: int
    value: Any = None
    error: LineError | None = None


def raw_lines(file: BinaryIO, *, max_line: int = MAX_LINE) -> Iterator[RawLine]:
    """All lines of `file` from its position on, blank ones too, in memory bounded by `max_line` bytes."""
    number, offset = 0, 0
    while piece := file.readline(max_line + 1):
        number, size = number + 1, len(piece)
        data: bytes | None = piece.removesuffix(b"\n").removeprefix(b"" if offset else _BOM)
        if len(piece) > max_line and not piece.endswith(b"\n"):
            data = None
            while piece and not piece.endswith(b"\n"):
                piece = file.readline(_BLOCK)
                size += len(piece)
        yield RawLine(number, offset, size, data, piece.endswith(b"\n"))
        offset += size


def read_jsonl(file: BinaryIO, *, max_line: int = MAX_LINE) -> Iterator[Line]:
    """Every line of `file` that is not blank, as `parse_line` sees it."""
    for raw in raw_lines(file, max_line=max_line):
        line = parse_line(raw)
        if line is not None:
            yield line


def parse_line(raw: RawLine) -> Line | None:
    """The value of a line, or why it has none; None for a blank line. Never raises for what a line holds.

    The CR of a CRLF is taken off. Lone surrogates and NULs that are written as escapes become U+FFFD; bytes that are no
    UTF-8 make the line an error, as a guess would change it.
    """
    data = raw.data
    if data is None:
        return _bad(raw, "too_large", f"is too long: {raw.size:,} bytes")
    if not data.strip(_BLANK):
        return None
    if raw.number == 1 and data.startswith(_UTF16):
        return _bad(raw, "not_utf8", "is UTF-16; save the file as UTF-8")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return _bad(raw, "not_utf8", f"is not UTF-8 (byte {error.start + 1} of the line); save the file as UTF-8")
    try:
        return Line(raw.number, raw.offset, loads(text, max_bytes=len(data), what=f"line {raw.number}"))
    except SiafuError as error:
        why = error.message.replace(" at: line 1 column ", " at column ").replace(": line 1 column ", " at column ")
        why += "" if raw.ended else " (the last line; it has no line end and may be cut)"
        return Line(raw.number, raw.offset, error=LineError(raw.number, error.code, why))


def _bad(raw: RawLine, code: str, message: str) -> Line:
    return Line(raw.number, raw.offset, error=LineError(raw.number, code, f"line {raw.number} {message}"))


def checked_out(path: Path) -> None:
    """Raises: InputError when `path` is no place for a file of records: a folder, a device, no parent folder."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise InputError(f"{path.parent} is no folder; create it first, or choose another file") from None
        return
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise InputError(f"{path} is no regular file; results are appended to a file")


def hold(path: Path, fd: int) -> None:
    """Take the lock on the open file `fd`, which goes when it is closed; nothing where files cannot be locked.

    Raises: StoreBusy when another process (or another part of this one) holds it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StoreBusy(f"another process writes to {path}: wait until it ends, or choose another file") from None
    except OSError:  # a file system without locks: `append` still notices a second writer
        return


@contextmanager
def disk(what: Path | str) -> Iterator[None]:
    """Errors of the operating system in the block become StoreError, in words that say what to do. what: is used."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot use {what}: {error.strerror}; what has finished is kept, so mend that and run the command again"
        ) from None


def mend(path: Path, is_record: Callable[[bytes], bool], starts: bytes) -> int:
    """Make the last line of a file of records whole, and return how many bytes were cut off.

    A last line without a line end that is a record gets its line end. Anything else there was torn by a crash: it is
    moved to the end of `<path>.torn`. `starts`: how every record begins; a file without a record whose only line
    does not begin like one was not written by us. A missing file is left missing.

    Raises: InputError when a line is no record (the file is untouched then), StoreBusy while a sink holds the file,
    StoreError.
    """
    checked_out(path)
    if not path.exists():
        return 0
    records = 0
    with disk(path), path.open("r+b") as file:
        hold(path, file.fileno())
        for raw in raw_lines(file, max_line=MAX_RECORD):
            blank = raw.data is not None and not raw.data.strip(_BLANK)
            if not blank and (raw.data is None or not is_record(raw.data)):
                if raw.ended:
                    raise _stranger(path, f"line {raw.number} of {path} is not a record of this command")
                _check_tail(file, path, raw, starts if not records else b"")
                _set_aside(file, path, raw)
                return raw.size
            records += not blank
            if not raw.ended:
                file.write(b"\n")
                _sync(file)
    return 0


def _stranger(path: Path, why: str) -> InputError:
    return InputError(f"{why}, so nothing was written there; choose another --out, or move {path.name} away")


def _check_tail(file: BinaryIO, path: Path, raw: RawLine, starts: bytes) -> None:
    file.seek(raw.offset)
    head = file.read(len(starts))
    if head != starts[: len(head)]:
        raise _stranger(path, f"{path} was not written by this command")


def _set_aside(file: BinaryIO, path: Path, raw: RawLine) -> None:
    file.seek(raw.offset)
    with path.with_name(path.name + ".torn").open("ab") as aside:
        while block := file.read(_BLOCK):
            aside.write(block)
        aside.write(b"\n")
        _sync(aside)
    file.truncate(raw.offset)
    _sync(file)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames and new names in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sift(path: Path, keep: Callable[[bytes], bool]) -> int:
    """Drop the records of a mended file that `keep` refuses, and return how many; as `revise`."""
    return revise(path, lambda record: record if keep(record) else None)


def revise(path: Path, change: Callable[[bytes], bytes | None]) -> int:
    """Make each record of a mended file what `change` gives for it, which is asked in order; None drops the record.
    Returns how many are no longer what they were.

    The file is replaced in one rename, and only when something changes: whoever reads it sees all of the old records
    or all of the new ones. A missing file is left missing.

    Raises: StoreError.
    """
    if not path.exists():
        return 0
    changed = 0
    path = path.resolve()  # the file behind a link is replaced, not the link
    new = path.with_name(path.name + ".new")
    with disk(path), ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        out: BinaryIO | None = None
        for raw in raw_lines(file, max_line=MAX_RECORD):
            data = raw.data or b""
            new_data = change(data) if data.strip(_BLANK) else data
            if new_data != data:
                changed += 1
                if out is None:
                    out = stack.enter_context(new.open("wb"))
                    _copy(path, out, raw.offset)
            if out is not None and new_data is not None:
                out.write(new_data + b"\n")
        if out is not None:
            _sync(out)
            new.replace(path)
            sync_folder(path.parent)
    return changed


def _copy(path: Path, out: BinaryIO, size: int) -> None:
    """The first `size` bytes of `path` into `out`."""
    with path.open("rb") as file:
        while size and (block := file.read(min(size, _BLOCK))):
            out.write(block)
            size -= len(block)


class JsonlSink:
    """Appends records to a file, one a line, each with a single write.

    Killed at any moment, the file holds whole records and at most one torn tail, which `mend` takes off. One sink
    holds a file at a time, and it notices when another program changes, moves or deletes the file.
    """

    def __init__(self, path: Path) -> None:
        """Raises: InputError, StoreBusy when another process writes to the file, StoreError."""
        checked_out(path)
        self.path = path
        self._fd, self._size = self._opened()

    def _opened(self) -> tuple[int, int]:
        """The file, held, and its size."""
        with disk(self.path):
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                hold(self.path, fd)
                return fd, os.fstat(fd).st_size
            except BaseException:
                os.close(fd)
                raise

    def append(self, record: Any) -> None:
        """Write one record; it survives the death of the process, and after `sync` that of the machine.

        Raises: StoreError (no space, for one); then nothing of the record is left in the file.
        """
        data = dumps(record) + b"\n"
        done = 0
        with disk(self.path):
            if os.fstat(self._fd).st_size != self._size:
                raise self._meddled()
            try:
                while done < len(data):  # one turn, unless the disk is nearly full
                    done += os.write(self._fd, data[done:])
            except OSError:
                os.ftruncate(self._fd, self._size)
                raise
        self._size += len(data)

    def revise(self, change: Callable[[bytes], bytes | None]) -> None:
        """Change records that were written, as `revise` does. Raises: StoreError, StoreBusy."""
        self.sync()
        if revise(self.path, change):
            fd, self._size = self._opened()
            os.close(self._fd)
            self._fd = fd

    def sync(self) -> None:
        """fsync. Raises: StoreError, also when the file at the path is no longer this one."""
        with disk(self.path):
            os.fsync(self._fd)
            own = os.fstat(self._fd)
        try:
            there = os.path.samestat(own, self.path.stat())
        except OSError:
            there = False
        if not there or own.st_size != self._size:
            raise self._meddled()

    def _meddled(self) -> StoreError:
        return StoreError(
            f"{self.path} was changed, moved or deleted by another program while results were written to it; put it "
            "back, or move it away, and run the command again: what has finished is kept in the journal"
        )

    def close(self) -> None:
        """`sync` and close. Raises: StoreError; the file is closed even so."""
        try:
            self.sync()
        finally:
            os.close(self._fd)
