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
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, name: str, x: Exchange) -> None:
        """It waits from now on."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.seconds
        self._waiting[name] = until, x
        if self._timer is None:
            self._timer = loop.call_at(until, self._look)

    def end(self, name: str) -> None:
        """It waits no more. Does nothing for one that does not wait."""
        self._waiting.pop(name, None)

    def _look(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        now = loop.time()
        while self._waiting:
            name, (until, x) = next(iter(self._waiting.items()))
            if until > now:
                self._timer = loop.call_at(until, self._look)
                return
            del self._waiting[name]
            x.cancel(self._why)
