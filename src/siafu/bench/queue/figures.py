"""From runs of queues to figures: self-checks, rows and goals. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from siafu.bench.gateway.figures import Spread, spread
from siafu.bench.goals import Goal
from siafu.errors import MeasurementInvalid

IN_PROCESS, POSTGRESQL, THROUGH_REDIS = "siafu, SQLite", "siafu, PostgreSQL", "siafu, PostgreSQL + Redis"
FIGURES = ("seconds", "tasks_per_s", "cpu_ms_per_task", "of_ideal", "accepted_s")
MOST_OF_IDEAL, MOST_OF_IN_PROCESS, LEAST_PER_SECOND = 1.15, 1.05, 1500.0


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One queue once. Times in seconds. seconds: from the first submission until the last end was recorded; accepted:
    until all were accepted; busy: summed over the tasks' work, longest: the longest of them; most: tasks at once; done:
    different tasks that were worked on, twice: how often one was again; cpu: of the processes, without servers.
    """

    queue: str
    tasks: int
    ms: float
    slots: int
    seconds: float
    accepted: float
    busy: float
    longest: float
    most: int
    done: int
    twice: int
    cpu: float

    @property
    def ideal(self) -> float:
        """Seconds that the work itself takes with all slots busy."""
        return self.tasks * self.ms / 1000 / self.slots

    def check(self) -> None:
        """Raises: MeasurementInvalid when the figures contradict each other."""
        who = f"{self.queue}, {self.tasks} tasks of {self.ms:g} ms"
        if self.done != self.tasks:
            raise MeasurementInvalid(f"{who}: {self.done} different tasks were done")
        if self.most > self.slots:
            raise MeasurementInvalid(f"{who}: {self.most} were done at once, in {self.slots} slots")
        if self.seconds < max(self.longest, 0.99 * self.ideal):
            raise MeasurementInvalid(
                f"{who}: {self.seconds:.2f} s is less than the longest task ({self.longest:.2f} s) or than the work "
                f"alone takes ({self.ideal:.2f} s)"
            )
        # Little: tasks at work on average = rate x time of each = time spent in tasks / wall time.
        if self.busy > 1.01 * self.slots * self.seconds or self.busy < 0.99 * self.tasks * self.ms / 1000:
            raise MeasurementInvalid(
                f"{who}: {self.busy / self.seconds:.1f} tasks at work on average contradict {self.slots} slots"
            )

    def figure(self, name: str) -> float | None:
        """One of FIGURES; of_ideal is None for empty tasks."""
        if name == "tasks_per_s":
            return self.tasks / self.seconds
        if name == "cpu_ms_per_task":
            return self.cpu / self.tasks * 1e3
        if name == "of_ideal":
            return self.seconds / self.ideal if self.ms else None
        return self.accepted if name == "accepted_s" else self.seconds


def rows(runs: Sequence[Run], durability: dict[str, str]) -> list[dict[str, Any]]:
    """A row for each length of tasks and queue: medians of its runs, under `min` and `max` their extremes; `twice`
    summed.
    """
    table = []
    for (ms, queue), group in _grouped(runs).items():
        found = {name: spread([run.figure(name) for run in group]) for name in FIGURES}
        table.append(
            {
                "queue": queue,
                "ms": ms,
                "tasks": group[0].tasks,
                "slots": group[0].slots,
                "runs": len(group),
                **{name: _rounded(value, "median") for name, value in found.items()},
                "twice": sum(run.twice for run in group),
                "durability": durability[queue],
                **{end: {name: _rounded(value, end) for name, value in found.items()} for end in ("min", "max")},
            }
        )
    return table


def goals(runs: Sequence[Run]) -> list[Goal]:
    """What can be judged of what was measured."""
    grouped, found = _grouped(runs), []
    for (ms, queue), group in grouped.items():
        if queue == IN_PROCESS and ms:
            found.append(_goal(f"{queue}, {ms:g} ms: of the ideal time", "of_ideal", group, most=MOST_OF_IDEAL))
        if queue == THROUGH_REDIS and ms and (inside := grouped.get((ms, IN_PROCESS))):
            pairs = [run.seconds / base.seconds for run, base in zip(group, inside, strict=False)]
            what = f"{queue}, {ms:g} ms: of the time in-process"
            found.append(Goal(what=what, value=_median(pairs), most=MOST_OF_IN_PROCESS))
        if queue in (IN_PROCESS, POSTGRESQL, THROUGH_REDIS) and not ms:
            found.append(_goal(f"{queue}: empty tasks a second", "tasks_per_s", group, least=LEAST_PER_SECOND))
    return found


def _goal(what: str, figure: str, group: Sequence[Run], **bound: float) -> Goal:
    return Goal(what=what, value=_median([run.figure(figure) for run in group]), **bound)


def _median(values: Sequence[float | None]) -> float:
    found = spread(values)
    return found.median if found is not None else 0.0


def _grouped(runs: Sequence[Run]) -> dict[tuple[float, str], list[Run]]:
    groups: dict[tuple[float, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.ms, run.queue), []).append(run)
    return groups


def _rounded(value: Spread | None, end: str) -> float | None:
    return None if value is None else round(getattr(value, end), 3)
