"""Which id stands on which line: a sorted table on disk, so that files of any size need little memory.

A row is (digest of the id, line number, digest of the content), 40 bytes. Rows are sorted in memory in runs of
`RUN_ROWS` and merged from temporary files (external merge sort: Knuth, TAOCP vol. 3, 5.4).
"""

from __future__ import annotations

import hashlib
import heapq
import mmap
import os
import struct
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import IO

from siafu.border.jsonl import sync_folder

RUN_ROWS = 200_000
_ROW = struct.Struct(">16sQ16s")
_READ_ROWS = 2_048
_key = itemgetter(0)


def digest(data: bytes) -> bytes:
    """16 bytes; two of 10^12 different texts are equal with a probability below 10^-14."""
    return hashlib.blake2b(data, digest_size=16).digest()


class Index:
    """A sealed table: look-up by id, rows in order of the ids' digests."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.rows = os.fstat(file.fileno()).st_size // _ROW.size
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.rows else b""

    def line(self, key: str) -> int | None:
        """The line of an id, None when it has none."""
        found = self._find(key)
        return None if found is None else found[1]

    def holds(self, key: str, line: int, content: bytes) -> bool:
        """Whether just this was added."""
        found = self._find(key)
        return found is not None and found[1:] == (line, digest(content))

    def _find(self, key: str) -> tuple[bytes, int, bytes] | None:
        wanted = digest(key.encode())
        at = bisect_left(range(self.rows), wanted, key=lambda row: self._row(row)[0])
        found = self._row(at) if at < self.rows else None
        return found if found is not None and found[0] == wanted else None

    def __iter__(self) -> Iterator[tuple[bytes, int, bytes]]:
        return map(self._row, range(self.rows))

    def _row(self, at: int) -> tuple[bytes, int, bytes]:
        return _ROW.unpack_from(self._map, at * _ROW.size)

    def changed_since(self, old: Index) -> Iterator[int]:
        """Line numbers here of ids that had other content in `old`."""
        both = heapq.merge(((*row, True) for row in self), ((*row, False) for row in old))
        for one, other in pairwise(both):
            if one[0] == other[0] and one[2] != other[2]:
                yield one[1] if one[3] else other[1]

    def save(self, path: Path) -> None:
        """Write the table to `path`, durably and in one step. Ids that only the table there has stay, on line 0: their
        results may be kept, so what they asked must be remembered for the day they come back.
        """
        new = path.with_name(path.name + ".new")
        with new.open("wb") as out, opened_index(path) as old:
            last = b""
            for key, line, content in heapq.merge(self, ((key, 0, content) for key, _, content in old), key=_key):
                if key != last:  # of equal keys, ours come first
                    out.write(_ROW.pack(key, line, content))
                last = key
            out.flush()
            os.fsync(out.fileno())
        new.replace(path)
        sync_folder(path.parent)

    @property
    def lines(self) -> int:
        """How many ids stand on a line."""
        return sum(line > 0 for _, line, _ in self)

    def close(self) -> None:
        if isinstance(self._map, mmap.mmap):
            self._map.close()
        self._file.close()


@contextmanager
def opened_index(path: Path) -> Iterator[Index]:
    """The table that was saved at `path`, an empty one when there is none."""
    index = Index(path.open("rb") if path.exists() else tempfile.TemporaryFile())  # noqa: SIM115 (closed below)
    try:
        yield index
    finally:
        index.close()


class Indexing:
    """A table while it is filled: `add` in any order, then `seal` once."""

    def __init__(self, run_rows: int = RUN_ROWS) -> None:
        self._run_rows = run_rows
        self._rows: list[bytes] = []
        self._runs: list[IO[bytes]] = []

    def add(self, key: str, line: int, content: bytes) -> None:
        """`content`: what must stay the same for the line to count as unchanged."""
        self._rows.append(_ROW.pack(digest(key.encode()), line, digest(content)))
        if len(self._rows) >= self._run_rows:
            self._rows.sort()
            run = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `seal`)
            run.writelines(self._rows)
            self._runs.append(run)
            self._rows = []

    def seal(self, again: Callable[[int, int], None]) -> Index:
        """The table, with the first line of every id; `again` is told of each later one, and of that first."""
        self._rows.sort()
        file = tempfile.TemporaryFile()  # noqa: SIM115 (the Index closes it)
        last = b""
        for row in heapq.merge(*map(_read, self._runs), self._rows):
            if row[:16] == last[:16]:
                again(_ROW.unpack(row)[1], _ROW.unpack(last)[1])
                continue
            file.write(row)
            last = row
        file.flush()
        for run in self._runs:
            run.close()
        return Index(file)


def _read(run: IO[bytes]) -> Iterable[bytes]:
    run.seek(0)
    while block := run.read(_READ_ROWS * _ROW.size):
        yield from (block[at : at + _ROW.size] for at in range(0, len(block), _ROW.size))
