"""Whose batch is worked on next: of the owner with fewest at work, then of whose turn was longest ago, then by age."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


class Turns:
    """At most `at_once` places. `reading`: held while a file is looked at, which keeps a processor busy."""

    def __init__(self, at_once: int) -> None:
        self.reading = asyncio.Lock()
        self._free = at_once
        self._working: Counter[str] = Counter()
        self._last: Counter[str] = Counter()  # the number of an owner's last turn
        self._turn = 0
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def place(self, owner: str, stop: asyncio.Event) -> AsyncIterator[bool]:
        """Wait for a place, and hold it for the block; False when `stop` was set first, then there is none."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((owner, turn))
        self._next()
        stopping = asyncio.create_task(stop.wait())
        try:
            either: set[asyncio.Future[Any]] = {turn, stopping}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            yield turn.done()
        finally:
            stopping.cancel()
            if turn.done():
                self._working[owner] -= 1
                self._free += 1
            else:
                self._waiting.remove((owner, turn))
            self._next()

    def _next(self) -> None:
        while self._free and self._waiting:
            owner, turn = min(self._waiting, key=lambda each: (self._working[each[0]], self._last[each[0]]))
            self._waiting.remove((owner, turn))
            self._working[owner] += 1
            self._last[owner] = self._turn = self._turn + 1
            self._free -= 1
            turn.set_result(None)
