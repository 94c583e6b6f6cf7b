"""What the sides of a canary did since this was last asked, counted from attempts as they end."""

from __future__ import annotations

import math
from collections import Counter

from siafu.errors import CallTimeout, DeadlineReached, Overloaded, RateLimited
from siafu.gateway.verdict import slot_of
from siafu.observe.events import AttemptEnded, Event, Hedged
from siafu.store.canary_records import Numbers, Side
from siafu.store.records import HEDGE_LOST

MOST_TASKS = 10_000  # remembered, so that a task of several calls counts once
LIMITED = (RateLimited.code, Overloaded.code)
TIMED_OUT = (CallTimeout.code, DeadlineReached.code)
PICO = 10**12


class _Count:
    __slots__ = ("calls", "limited", "ok", "slots", "tasks", "unpriced", "usd_pico", "usd_square")

    def __init__(self) -> None:
        self.calls = self.ok = self.limited = self.tasks = self.unpriced = self.usd_pico = 0
        self.usd_square = 0.0
        self.slots: Counter[int] = Counter()

    def numbers(self) -> Numbers:
        return Numbers(**{name: getattr(self, name) for name in Numbers.__struct_fields__})


class Tally:
    """An observer. By canary and side; a call of the new side that fell back to the old one adds to what the new side's
    tasks cost, and to nothing else. A slow one that was given up, as a second request was quicker, counts as an answer
    that took as long as it was waited for: else the slowest would be missing.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[int, Side], _Count] = {}
        self._tasks: dict[tuple[int, Side, str, str], int] = {}  # what each has cost so far, the oldest first
        self._slow: dict[tuple[str, str], float] = {}  # by run and task: when a second request left, the oldest first

    def __call__(self, event: Event, /) -> None:
        if isinstance(event, Hedged):
            self._slow[event.run, event.task] = event.seconds
            if len(self._slow) > MOST_TASKS:
                del self._slow[next(iter(self._slow))]
        if not isinstance(event, AttemptEnded) or not event.bucket:
            return
        id, _, bucket = event.bucket.partition("/")
        canary, side = int(id), _side(bucket)
        count = self._counts.setdefault((canary, side), _Count())
        self._charge(count, (canary, side, event.run, event.task), event.usd_pico)
        if bucket == "fallback":
            return
        lost = event.code == HEDGE_LOST and event.seconds >= self._slow.pop((event.run, event.task), math.inf)
        if event.outcome == "ok" or lost:
            count.calls, count.ok = count.calls + 1, count.ok + 1
            count.slots[slot_of(event.seconds)] += 1
        elif event.code in LIMITED:
            count.limited += 1
        elif event.outcome != "abandoned" or event.code in TIMED_OUT:  # else nobody waited for the answer any more
            count.calls += 1

    def take(self) -> dict[tuple[int, Side], Numbers]:
        """What was counted since the last time."""
        counts, self._counts = self._counts, {}
        return {key: count.numbers() for key, count in counts.items()}

    def anew(self) -> None:
        """A window begins: a task that goes on counts in it too."""
        self._tasks.clear()

    def _charge(self, count: _Count, task: tuple[int, Side, str, str], usd_pico: int | None) -> None:
        count.unpriced += usd_pico is None
        before = self._tasks.pop(task, None) if task[3] else None
        count.tasks += before is None
        cost, spent = usd_pico or 0, before or 0
        count.usd_pico += cost
        count.usd_square += ((spent + cost) / PICO) ** 2 - (spent / PICO) ** 2
        self._tasks[task] = spent + cost
        if len(self._tasks) > MOST_TASKS:
            del self._tasks[next(iter(self._tasks))]


def _side(bucket: str) -> Side:
    return "old" if bucket == "old" else "new"
