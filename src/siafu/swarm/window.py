"""The bounded window through which items pass: read, waiting by priority, worked on, finished, taken. Pure.

An item is held from the moment it is read until its result is taken (or it is given up). The number of held items
never exceeds the limit, so a slow reader stops the reading, however long the input is; and as items are read in order,
a result that waits for its turn never waits for an item outside the window.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Generic, TypeVar

E = TypeVar("E")
R = TypeVar("R")


class Window(Generic[E, R]):
    """`limit`: most items held. `ordered`: results are taken in the order in which their items were read."""

    def __init__(self, limit: int, *, ordered: bool = False) -> None:
        self._limit = limit
        self._ordered = ordered
        self._waiting: list[tuple[int, int, E]] = []
        self._finished: deque[R | None] = deque()
        self._by_index: dict[int, R | None] = {}
        self._turn = 0
        self.read = 0
        self.held = 0

    @property
    def room(self) -> int:
        """How many more items may be read now."""
        return self._limit - self.held

    def enter(self) -> int:
        """An item has been read; returns its index, from 0."""
        if self.room <= 0:
            raise OverflowError(f"the window holds {self._limit} items already")
        self.held += 1
        self.read += 1
        return self.read - 1

    def enter_again(self) -> None:
        """An item whose first result was taken is held once more. Ordered results come again as they finish."""
        self.held += 1

    def wait(self, index: int, priority: int, entry: E) -> None:
        """`entry` may be worked on from now."""
        heapq.heappush(self._waiting, (priority, index, entry))

    def next(self) -> E | None:
        """The entry to work on next: the smallest priority, then the earliest read. None when none waits."""
        return heapq.heappop(self._waiting)[2] if self._waiting else None

    def finish(self, index: int, result: R | None) -> None:
        """The item `index` has its result; None = it will never have one."""
        if self._ordered and index >= self._turn:
            self._by_index[index] = result
        else:
            self._finished.append(result)

    def take(self) -> R | None:
        """The next result for the reader, None when there is none yet."""
        while True:
            if self._turn in self._by_index:
                self._finished.append(self._by_index.pop(self._turn))
                self._turn += 1
            if not self._finished:
                return None
            self.held -= 1
            result = self._finished.popleft()
            if result is not None:
                return result

    def give_up(self) -> None:
        """Nothing that waits will be worked on."""
        self._waiting.clear()

    def close(self) -> None:
        """No item will get a result any more: what is finished no longer waits for a turn."""
        self._finished.extend(result for _, result in sorted(self._by_index.items()))
        self._by_index.clear()
