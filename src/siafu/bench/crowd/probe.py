"""How late a loop is: something that wants to run every 10 ms, and when it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from siafu.bench.gateway.figures import nearest_rank

EVERY = 0.01  # seconds


class Probe:
    """Runs while its block does. `late`: seconds, for each time it wanted to run."""

    def __init__(self) -> None:
        self.late: list[float] = []

    async def __aenter__(self) -> Probe:
        self._task = asyncio.create_task(self._run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            due = time.perf_counter() + EVERY
            await asyncio.sleep(EVERY)
            self.late += times_late(time.perf_counter() - due)


def times_late(late: float) -> list[float]:
    """What a probe that came `late` seconds late has seen: it wanted to run several times meanwhile, each of them a
    little less late. Left out, a long stall would count as little as a short one.
    """
    late = max(0.0, late)
    return [late - missed * EVERY for missed in range(int(late / EVERY) + 1)]


def stall_ms(late: Sequence[float], percent: float) -> float:
    """A percentile of it in ms."""
    return nearest_rank(late, percent) * 1e3 if late else 0.0
