"""What was promised against what was done: the 95th percentile of how long tasks took, and the share that succeeded.

A task counts in the hour in which it was accepted, as the promise is to who asked then: so an hour in which everything
stood still shows what that did to each of its tasks. Percentiles are by nearest rank, over tasks that succeeded alone;
failures are a share, and would make the times look short. A task that is still open after its time has missed it,
whatever comes of it. Cancelled ones count for neither. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal

import msgspec

from siafu.observe.figures import nearest_rank
from siafu.store.task_records import full_name
from siafu.store.task_times import TaskTimes

HOUR = 3600
_FAILED = ("failed", "expired", "dead_letter")


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """p95: seconds from acceptance to the end. success: the least share, from 0 to 1. None = nothing was promised."""

    p95: float | None = None
    success: Decimal | None = None


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that were accepted from `begins_at` on. slow: of those that succeeded, over the target; overdue: of those
    that are open. p50, p95: seconds, None = none succeeded. success: succeeded, of those that succeeded, failed or are
    overdue; None = there are none. met: None = nothing was promised, or there is nothing to judge yet.
    """

    begins_at: float
    accepted: int
    succeeded: int
    failed: int
    cancelled: int
    open: int
    slow: int
    overdue: int
    p50: float | None
    p95: float | None
    success: Decimal | None
    met: bool | None


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """A task that failed, took too long or is overdue. seconds: until its end, or until now."""

    id: str
    run: str
    key: str
    accepted_at: float
    state: str
    code: str
    seconds: float


class SlaReport(msgspec.Struct, frozen=True, kw_only=True):
    """hours: those in which tasks were accepted. misses: the first ones; missed: how many there are in all."""

    targets: Targets
    total: Period
    hours: list[Period]
    misses: list[Miss]
    missed: int


class _Sums:
    def __init__(self) -> None:
        self.seconds: list[float] = []  # of those that succeeded
        self.failed = self.cancelled = self.open = self.slow = self.overdue = 0


class Sla:
    """Adds up tasks as they are read. now: the database's clock. most: misses that are kept with their ids."""

    def __init__(self, targets: Targets, now: float, *, most: int) -> None:
        self._targets = targets
        self._now = now
        self._most = most
        self._hours: defaultdict[int, _Sums] = defaultdict(_Sums)
        self._misses: list[Miss] = []
        self._missed = 0

    def add(self, tasks: Iterable[TaskTimes]) -> None:
        limit = self._targets.p95
        for task in tasks:
            sums = self._hours[int(task.created_at // HOUR)]
            seconds = round((task.ended_at or self._now) - task.created_at, 3)
            late = limit is not None and seconds > limit
            if task.state == "succeeded":
                sums.seconds.append(seconds)
                sums.slow += late
            elif task.state == "cancelled":
                sums.cancelled += 1
                continue
            elif task.state in _FAILED:
                sums.failed += 1
                late = True
            else:
                sums.open += 1
                sums.overdue += late
            if late:
                self._miss(task, seconds)

    def _miss(self, task: TaskTimes, seconds: float) -> None:
        self._missed += 1
        self._misses.append(
            Miss(
                id=task.id, run=task.run, key=full_name(task.once, task.run), accepted_at=task.created_at,
                state=task.state, code=task.code if task.state != "succeeded" else "", seconds=seconds,
            )
        )  # fmt: skip
        if len(self._misses) >= 2 * self._most + 1_000:
            self._misses = self._first()

    def _first(self) -> list[Miss]:
        return sorted(self._misses, key=lambda miss: (miss.accepted_at, miss.id))[: self._most]

    def report(self) -> SlaReport:
        hours = [self._period(hour * HOUR, [sums]) for hour, sums in sorted(self._hours.items())]
        begins = hours[0].begins_at if hours else self._now
        return SlaReport(
            targets=self._targets,
            total=self._period(begins, list(self._hours.values())),
            hours=hours,
            misses=self._first(),
            missed=self._missed,
        )

    def _period(self, begins_at: float, parts: list[_Sums]) -> Period:
        seconds = [each for part in parts for each in part.seconds]
        failed, cancelled, still_open = (sum(getattr(part, name) for part in parts) for name in _COUNTED)
        overdue = sum(part.overdue for part in parts)
        judged = len(seconds) + failed + overdue
        success = Decimal(len(seconds)) / judged if judged else None
        return Period(
            begins_at=begins_at,
            accepted=len(seconds) + failed + cancelled + still_open,
            succeeded=len(seconds),
            failed=failed,
            cancelled=cancelled,
            open=still_open,
            slow=sum(part.slow for part in parts),
            overdue=overdue,
            p50=nearest_rank(seconds, 50) if seconds else None,
            p95=nearest_rank(seconds, 95) if seconds else None,
            success=success,
            met=_met(self._targets, seconds + [math.inf] * overdue, success),
        )


_COUNTED = ("failed", "cancelled", "open")


def _met(targets: Targets, seconds: list[float], success: Decimal | None) -> bool | None:
    """Whether a period keeps the targets. seconds: of tasks that succeeded; infinite, of those that are overdue."""
    kept: list[bool] = []
    if targets.p95 is not None and seconds:
        kept.append(nearest_rank(seconds, 95) <= targets.p95)
    if targets.success is not None and success is not None:
        kept.append(success >= targets.success)
    return all(kept) if kept else None
