"""The passes over an input: the first finds which lines can be used, before anything is paid for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import msgspec

from siafu.apps.filerun.index import Index, Indexing
from siafu.apps.filerun.job import FileJob, Task
from siafu.border.canonical import canonical
from siafu.border.jsonl import LineError, RawLine, parse_line, raw_lines
from siafu.border.text import preview
from siafu.errors import InputError

SHOWN = 5
CHANGED = "the input has changed while it was read; run the same command again"


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What the first pass found. lines: how many it looked at, blank ones too. usable, bad: lines of either kind; of
    several lines with one id the first is usable, and the others are bad.
    first_bad: the first few of the bad. index: line and content of every usable id; whoever gets it closes it.
    """

    lines: int
    usable: int
    bad: int
    first_bad: tuple[LineError, ...]
    index: Index


def of_each_kind(faults: Iterable[str]) -> list[str]:
    """Of messages that begin with `line N:`, the first that says the same."""
    first: dict[str, str] = {}
    for text in faults:
        first.setdefault(text.partition(": ")[2] or text, text)
    return list(first.values())


def checked(
    job: FileJob,
    file: BinaryIO,
    *,
    limit: int | None = None,
    see: Callable[[Any], None] = lambda value: None,
    shown: int = SHOWN,
) -> Checked:
    """Read `file` from its start; with `limit`, only so many lines that are not blank. `see` gets every usable value,
    also those whose id turns out to stand on an earlier line. shown: how many of the bad are told.

    Raises: InputError when there is nothing to do.
    """
    indexing, bad, usable, lines = Indexing(), 0, 0, 0
    first_bad: list[LineError] = []
    file.seek(0)
    for raw in raw_lines(file):
        if limit is not None and usable + bad >= limit:
            break
        lines = raw.number
        value, found = look(job, raw)
        if isinstance(found, Task):
            usable += 1
            indexing.add(found.key, raw.number, canonical(value))
            see(value)
        elif found is not None:
            bad += 1
            first_bad += [found] if bad <= shown else []

    def again(line: int, first: int) -> None:
        nonlocal usable, bad, first_bad
        usable, bad = usable - 1, bad + 1
        first_bad = sorted([*first_bad, _again(line, first)], key=lambda error: error.line)[:shown]

    index = indexing.seal(again)
    if not usable and not bad:
        index.close()
        raise InputError("the input holds no line with a request")
    return Checked(lines=lines, usable=usable, bad=bad, first_bad=tuple(first_bad), index=index)


def look(job: FileJob, raw: RawLine) -> tuple[Any, Task | LineError | None]:
    """The value of a line, and its task, what is wrong with it, or None for a blank line."""
    line = parse_line(raw)
    if line is None or line.error is not None:
        return None, None if line is None else line.error
    try:
        return line.value, job.parse(line.value)
    except InputError as error:
        why = f"line {raw.number}: {preview(error.message, 300)}"
        return None, LineError(raw.number, error.code, why, line.value)


def _again(line: int, first: int) -> LineError:
    """Without the line's value: its record must not bear the id, which is that of the first line's record."""
    why = f"line {line} has the id of line {first}; an id may stand once, so give it one of its own"
    return LineError(line, "duplicate_id", why)


class Bits:
    """A set of line numbers, one bit each, all from 0 to `lines`."""

    def __init__(self, lines: int, members: Iterable[int] = ()) -> None:
        self._bits = bytearray(lines // 8 + 1)
        for line in members:
            self.add(line)

    def add(self, line: int) -> None:
        self._bits[line >> 3] |= 1 << (line & 7)

    def __contains__(self, line: int) -> bool:
        return bool(self._bits[line >> 3] >> (line & 7) & 1)

    def __len__(self) -> int:
        return int.from_bytes(self._bits).bit_count()

    def __or__(self, other: Bits) -> Bits:
        return self._joined(other, lambda ours, theirs: ours | theirs)

    def __sub__(self, other: Bits) -> Bits:
        return self._joined(other, lambda ours, theirs: ours & ~theirs)

    def _joined(self, other: Bits, join: Callable[[int, int], int]) -> Bits:
        joined = Bits(0)
        joined._bits = bytearray(map(join, self._bits, other._bits))
        return joined


def tasks(job: FileJob, file: BinaryIO, *, lines: int, skip: Bits, index: Index) -> Iterator[Task | LineError]:
    """The second pass: every task and every bad line of the first `lines`, without the lines in `skip`.

    Raises: InputError when a line is no longer what the first pass saw, or is gone.
    """
    file.seek(0)
    raw = None
    for raw in raw_lines(file):
        if raw.number > lines:
            return
        if raw.number not in skip:
            value, found = look(job, raw)
            if isinstance(found, Task):
                first = index.line(found.key)
                if first is not None and first < raw.number:
                    found = _again(raw.number, first)
                elif not index.holds(found.key, raw.number, canonical(value)):
                    raise InputError(CHANGED)
            if found is not None:
                yield found
    if raw is None or raw.number < lines:
        raise InputError(CHANGED)
