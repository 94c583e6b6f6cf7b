"""How long a request may wait for something: its body, or its turn."""

from __future__ import annotations

import asyncio

from siafu.service.exchange import Exchange, Why


class Patience:
    """Those who wait, who came first at the front; each is ended, for the reason `why`, once it has waited `seconds`.
    All have the same time, so one timer, for the first, serves them all.
    """

    def __init__(self, seconds: float, why: Why) -> None:
        self.seconds = seconds
        self._why = why
        self._waiting: dict[str, tuple[float, Exchange]] = {}
        self._by_priority: dict[int, dict[str, Exchange]] = {2: {}, 3: {}}  # nobody goes before the first
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, name: str, x: Exchange, priority: int = 1) -> None:
        """It waits from now on."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.seconds
        self._waiting[name] = until, x
        if priority in self._by_priority:
            self._by_priority[priority][name] = x
        if self._timer is None:
            self._timer = loop.call_at(until, self._look)

    def end(self, name: str) -> None:
        """It waits no more. Does nothing for one that does not wait."""
        if self._waiting.pop(name, None) is not None:
            for waiting in self._by_priority.values():
                waiting.pop(name, None)

    def make_room(self, priority: int) -> bool:
        """End the one that came last, of the lowest priority below `priority`; False when there is none."""
        for lower in (3, 2):
            if lower > priority and (waiting := self._by_priority[lower]):
                name, x = next(reversed(waiting.items()))
                self.end(name)
                x.cancel("room")
                return True
        return False

    def _look(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        now = loop.time()
        while self._waiting:
            name, (until, x) = next(iter(self._waiting.items()))
            if until > now:
                self._timer = loop.call_at(until, self._look)
                return
            self.end(name)
            x.cancel(self._why)
