"""The order of a task's steps as its program has it, whatever finishes first.

A task that asks several things at once does so from several asyncio tasks: each is a strand, and within a strand one
step follows another. A strand is numbered by its place among the steps of the strand that started it, at its first
step; so a program that runs again numbers all its steps as before, although answers come back in another order.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import weakref
from collections import defaultdict
from contextvars import ContextVar

import msgspec

_SUFFIX = re.compile(r"(?:~(\d+))?((?:>\d+)*)$")


class Place(msgspec.Struct, frozen=True, order=True, gc=False):
    """Where a step stands. `path`: the agent's. `order`: the numbers of its strand and, last, its own. Places of one
    path compare in program order.
    """

    path: str
    order: tuple[int, ...]

    @property
    def strand(self) -> str:
        """The path with the strand's numbers: `/anna`; `/anna>2`, begun at its step 2; `/anna~1`, a second main one."""
        if self.order[0] == 0 and len(self.order) == 2:  # nearly all: one strand, or one after the other
            return self.path
        first, *rest = self.order[:-1]
        return self.path + (f"~{first}" if first else "") + "".join(f">{n}" for n in rest)

    @property
    def seq(self) -> int:
        return self.order[-1]


def parse(strand: str, seq: int) -> Place:
    """The Place whose `strand` and `seq` these are."""
    match = _SUFFIX.search(strand)
    assert match is not None  # noqa: S101  every part of the pattern is optional
    rest = (int(n) for n in match[2].split(">")[1:])
    return Place(strand[: match.start()], (int(match[1] or 0), *rest, seq))


_Key = tuple["weakref.ref[Strands]", str]
_Strand = tuple["weakref.ref[asyncio.Task[object]]", tuple[int, ...]]
# (which Strands, path) -> the asyncio task that last asked there and its strand. A new asyncio task starts with a copy
# of what its parent saw: that is how it knows where it branched off.
_seen: ContextVar[dict[_Key, _Strand]] = ContextVar("siafu_strands", default={})  # noqa: B039  replaced, never changed


class Strands:
    """Numbers the steps of one task."""

    def __init__(self) -> None:
        self._me = weakref.ref(self)
        self._next: dict[tuple[str, tuple[int, ...]], itertools.count[int]] = defaultdict(itertools.count)

    def place(self, path: str) -> Place:
        """The place of the next step that the running asyncio task makes on `path`."""
        running = asyncio.current_task()
        assert running is not None  # noqa: S101  steps are coroutines
        seen = _seen.get()
        asked, strand = seen.get((self._me, path), (None, ()))
        if asked is None or asked() is not running:
            strand = (*strand, next(self._next[path, strand]))
            alive = {key: known for key, known in seen.items() if key[0]() is not None}
            alive[self._me, path] = weakref.ref(running), strand
            _seen.set(alive)
        return Place(path, (*strand, next(self._next[path, strand])))
