"""Who is next: by priority, then in turn among those who share the limit, then by when each first asked.

Turns are counted in the tokens that each has been given: the next is whoever was given the least (start-time fair
queueing: Goyal, Vin and Cheng, SIGCOMM 1996). Who has nothing to ask for saves nothing up.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
REMEMBERED = 1000  # who has no line; of more, those who are owed nothing are forgotten


class _Class(Generic[T]):
    """The waiting of one priority. `turns`: a heap of (given, order, who), everybody who has a line. `given`: to those
    who have none now. `now`: what the last one served had been given before.
    """

    __slots__ = ("given", "lines", "now", "turns")

    def __init__(self) -> None:
        self.lines: dict[str, list[tuple[float, bool, int, T]]] = {}
        self.turns: list[tuple[float, int, str]] = []
        self.given: dict[str, float] = {}
        self.now = 0.0

    def leave(self, given: float) -> None:
        """Take out the first in turn, whose line is empty."""
        _, _, who = heapq.heappop(self.turns)
        del self.lines[who]
        self.given[who] = given
        if len(self.given) > REMEMBERED:
            self.given = {other: value for other, value in self.given.items() if value > self.now}


class FairQueue(Generic[T]):
    """`gone`: whether one that waits has left; it is passed over then. Pure."""

    def __init__(self, gone: Callable[[T], bool]) -> None:
        self._gone = gone
        self._classes: dict[int, _Class[T]] = {}
        self._order = itertools.count()
        self.held = 0  # how many, those who left included

    def __iter__(self) -> Iterator[T]:
        return (entry[-1] for each in self._classes.values() for line in each.lines.values() for entry in line)

    def push(self, item: T, *, priority: int, who: str, since: float, fresh: bool) -> None:
        """`who`: shares the limit with others. `since`: when the call first asked. `fresh`: it was not refused before;
        of two that asked at the same time, one that was refused goes first.
        """
        found = self._classes.get(priority)
        if found is None:
            found = self._classes[priority] = _Class()
            self._classes = dict(sorted(self._classes.items()))
        line = found.lines.get(who)
        if line is None:
            line = found.lines[who] = []
            heapq.heappush(found.turns, (max(found.given.pop(who, 0.0), found.now), next(self._order), who))
        heapq.heappush(line, (since, fresh, next(self._order), item))
        self.held += 1

    def peek(self) -> T | None:
        """Who is next; None = nobody."""
        for found in self._classes.values():
            while found.turns:
                given, _, who = found.turns[0]
                line = found.lines[who]
                while line and self._gone(line[0][-1]):
                    heapq.heappop(line)
                    self.held -= 1
                if line:
                    return line[0][-1]
                found.leave(given)
        return None

    def contended(self, priority: int) -> bool:
        """Whether several have lines at this priority, so that turns matter."""
        return len(self._classes[priority].turns) > 1

    def pop(self, priority: int, cost: float) -> None:
        """Take out the one that `peek` has just named, of this priority; it is given `cost` tokens."""
        found = self._classes[priority]
        given, order, who = found.turns[0]
        line = found.lines[who]
        heapq.heappop(line)
        self.held -= 1
        found.now = max(found.now, given)
        if not line:
            found.leave(given + cost)
        elif cost:
            heapq.heapreplace(found.turns, (given + cost, order, who))

    def prune(self) -> None:
        """Forget those who left."""
        for found in self._classes.values():
            for who, line in found.lines.items():
                found.lines[who] = [entry for entry in line if not self._gone(entry[-1])]
                heapq.heapify(found.lines[who])
        self.held = sum(1 for _ in self)

    def clear(self) -> None:
        self._classes.clear()
        self.held = 0
