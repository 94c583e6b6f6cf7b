"""Metrics as plain numbers, before any library: what is counted while work goes on, and is read when somebody asks.

A label takes few values: names that the settings know, and as many others as there is room for; the rest is `other`.
Ids, users and words of requests are none.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Literal

import msgspec

from siafu.border.secrets import redact
from siafu.border.text import preview

OTHER = "other"
MOST_CHARACTERS = 100  # of such a name
MOST_NAMES = 50  # of one label that nobody has configured
Labels = tuple[str, ...]


class Histogram:
    """Numbers by size. bounds: the largest of each bucket; one more takes the rest."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        twin = Histogram(self.bounds)
        twin.merge(self)
        return twin

    def merge(self, other: Histogram) -> None:
        """Add the numbers of one with the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


class Family(msgspec.Struct, frozen=True):
    """One metric. name: of a counter without `_total`. rows: a number for each combination of values of `labels`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Labels = ()
    rows: Sequence[tuple[Labels, float | Histogram]] = ()


def nearest_rank(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least `percent` percent of all are not above: rank ceil(percent / 100 * n)."""
    rank = math.ceil(round(percent / 100 * len(samples), 9))  # 99.9 % of 1,000 are 999, not a little more
    return sorted(samples)[max(1, rank) - 1]


Source = Callable[[], Sequence[Family]]
SlowSource = Callable[[], Awaitable[Sequence[Family]]]


class Names:
    """The values of a label. known: that always have a place."""

    def __init__(self, known: Container[str] = (), most: int = MOST_NAMES) -> None:
        self._known = known
        self._most = most
        self._taken: set[str] = set()

    def bounded(self, name: str, *, newcomer: bool = True) -> str:
        """`name`, or `other`. newcomer: it may take a place."""
        if name in self._known or name in self._taken or not name:
            return name
        name = preview(redact(name), MOST_CHARACTERS)
        if name in self._taken:
            return name
        if not newcomer or len(self._taken) >= self._most:
            return OTHER
        self._taken.add(name)
        return name
