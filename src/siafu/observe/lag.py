"""How long the event loop keeps its work waiting: what a program feels first when something blocks it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from siafu.observe.figures import Family, Histogram
from siafu.pace.clock import Clock

EVERY = 0.25  # seconds between two looks
LAG_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class LoopLag:
    def __init__(self, clock: Clock) -> None:
        self.seconds = Histogram(LAG_SECONDS)
        self._clock = clock

    def families(self) -> list[Family]:
        text = "Seconds by which a timer of the event loop was late, looked at four times a second"
        return [Family("siafu_event_loop_lag_seconds", "histogram", text, (), [((), self.seconds)])]

    @contextlib.asynccontextmanager
    async def measured(self) -> AsyncIterator[None]:
        """Measure while the block runs."""
        measuring = asyncio.create_task(self._measure(), name="siafu loop lag")
        try:
            yield
        finally:
            measuring.cancel()

    async def _measure(self) -> None:
        while True:
            due = self._clock.now() + EVERY
            await self._clock.sleep(EVERY)
            self.seconds.add(max(0.0, self._clock.now() - due))
