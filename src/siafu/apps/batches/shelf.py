"""Stored files on disk: `files/<id>` and, for a batch that has not ended, the folder `batches/<id>`.

A client's words never become a path. Ids are ours, checked to be, and opened under the folder's descriptor without
following links, so that nothing but a regular file in it can be read.

Blocking; call it off the event loop. Raises (all): StoreError, with DiskFull when there is no room.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from siafu.apps.filerun.place import Place
from siafu.border.jsonl import sync_folder
from siafu.errors import DiskFull, InputError, StoreError
from siafu.store.batch_records import BATCH, FILE

SPARE = 256 * 2**20  # bytes of the disk that uploads leave to journals and ledgers
INPUT, OUTPUT, ERRORS = "input.jsonl", "output.jsonl", "errors.jsonl"
_ID = re.compile(rf"({FILE}|{BATCH})[0-9a-f]{{32}}")
_PART = ".part"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Shelf:
    """The folders below `home`, made when they are missing, readable by their owner alone."""

    def __init__(self, home: Path) -> None:
        self._work = home / "batches"
        self._folder = home / "files"
        with _disk():
            for folder in (home, self._folder, self._work):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._root = _opened_folder(self._folder)
            self._desks = _opened_folder(self._work)

    def close(self) -> None:
        os.close(self._root)
        os.close(self._desks)

    def room(self) -> int:
        """Bytes that may still be written."""
        with _disk():
            found = os.fstatvfs(self._root)
        return found.f_bavail * found.f_frsize - SPARE

    def begin(self, id: str) -> int:
        """A descriptor to write the bytes of a new file to. It is no file until `seal`."""
        with _disk():
            return os.open(_safe(id) + _PART, _WRITE, 0o600, dir_fd=self._root)

    def write(self, fd: int, data: bytes) -> None:
        """All of it."""
        with _disk():
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]

    def seal(self, id: str, fd: int) -> None:
        """Make what was written a file, durably."""
        with _disk():
            os.fsync(fd)
            os.rename(_safe(id) + _PART, id, src_dir_fd=self._root, dst_dir_fd=self._root)
            os.fsync(self._root)

    def let_go(self, id: str, fd: int) -> None:
        """Close the descriptor that `begin` gave; what was not sealed is gone."""
        os.close(fd)
        with _disk(), suppress(FileNotFoundError):
            os.unlink(_safe(id) + _PART, dir_fd=self._root)

    def drop(self, id: str) -> None:
        """Remove a file, or what is there of one. Idempotent."""
        for name in (_safe(id), id + _PART):
            with _disk(), suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._root)

    def open(self, id: str) -> int:
        """A descriptor to read a file from. Raises: InputError when there is none."""
        with _disk():
            return _regular(_safe(id), self._root)

    def desk(self, batch: str) -> Place:
        """Where a batch is worked on; of its own, so two never share a journal."""
        folder = self._work / _safe(batch)
        return Place(source=folder / INPUT, out=folder / OUTPUT, errors=folder / ERRORS, folder=folder, run=batch)

    def lay_out(self, batch: str, file: str) -> None:
        """Make the folder of a batch, with its input: the same bytes under a second name, so that the file may be
        deleted. Raises: InputError when there is no such file.
        """
        os.close(self.open(file))
        with _disk():
            os.mkdir(_safe(batch), 0o700, dir_fd=self._desks)
            folder = _opened_folder(self._work / batch)
            try:
                os.link(file, INPUT, src_dir_fd=self._root, dst_dir_fd=folder, follow_symlinks=False)
                os.close(_regular(INPUT, folder))
                os.fsync(folder)
            finally:
                os.close(folder)
            os.fsync(self._desks)

    def hand_out(self, batch: str, name: str, file: str) -> int:
        """Make OUTPUT or ERRORS of a batch the new file of this id, durably, and return its bytes; 0 = there is none.
        It stays in the folder of the batch too, so that this can be done again under another id.
        """
        path = self._work / _safe(batch)
        with _disk():
            try:
                folder = _opened_folder(path)
            except FileNotFoundError:
                return 0
            try:
                size = _made_durable(name, folder)
                if size:
                    os.link(name, _safe(file), src_dir_fd=folder, dst_dir_fd=self._root, follow_symlinks=False)
                    os.fsync(self._root)
                return size
            finally:
                os.close(folder)

    def clear(self, batch: str) -> None:
        """Remove the folder of a batch, with its journal. Idempotent."""
        with _disk(), suppress(FileNotFoundError):
            shutil.rmtree(self._work / _safe(batch))
            sync_folder(self._work)

    def sweep(self, files: set[str], batches: set[str]) -> None:
        """Remove what belongs to no known file and no open batch: a process ended between two steps."""
        with _disk():
            found, desks = ([each.name for each in folder.iterdir()] for folder in (self._folder, self._work))
        for name in _ours(found):
            if name not in files:
                self.drop(name)
        for name in _ours(desks):
            if name not in batches:
                self.clear(name)


_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe in its place must not hold us up
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def _safe(id: str) -> str:
    """`id`, which is one of ours. Raises: InputError when it is not."""
    if not _ID.fullmatch(id):
        raise InputError("there is no such file")
    return id


def is_file_id(text: str) -> bool:
    return text.startswith(FILE) and _ID.fullmatch(text) is not None


def is_batch_id(text: str) -> bool:
    return text.startswith(BATCH) and _ID.fullmatch(text) is not None


def _ours(names: Iterable[str]) -> Iterator[str]:
    return (name.removesuffix(_PART) for name in names if _ID.fullmatch(name.removesuffix(_PART)))


def _opened_folder(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _regular(name: str, folder: int) -> int:
    """A descriptor to read a regular file from. Raises: InputError when it is none."""
    try:
        fd = os.open(name, _READ, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            raise InputError("there is no such file") from None
        raise
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise InputError("there is no such file")


def _made_durable(name: str, folder: int) -> int:
    """The bytes of a file, which are on disk now; 0 = there is none."""
    try:
        fd = _regular(name, folder)
    except InputError:
        return 0
    try:
        os.fsync(fd)
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


@contextmanager
def _disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = DiskFull if error.errno in _FULL else StoreError
        raise kind(f"stored files cannot be kept: {error.strerror}") from error
