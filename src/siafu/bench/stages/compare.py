"""The stages of one run, each in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from siafu.bench.alone import measured
from siafu.bench.gateway.compare import describe
from siafu.bench.goals import Goal, Judged
from siafu.bench.stages import run
from siafu.border.money import json_usd, to_usd
from siafu.errors import MeasurementInvalid

MOST_REFUSED, MOST_OF_IDEAL = 0.02, 1.03
CLOCK = 0.05  # seconds that two clocks, the database's and ours, may be apart


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """tasks: of one burst, each one call. rpm, burst: what the endpoint takes a minute, and how many seconds' worth at
    once. latency_ms: of an answer. scale: how many times as fast all of it goes. home: where stores are put meanwhile.
    """

    workers: tuple[int, ...] = (10, 20, 50, 100)
    tasks: int = 1200
    rpm: float = 1800.0
    burst: float = 1.0
    latency_ms: float = 200.0
    scale: float = 1.0
    home: Path = Path(".siafu")


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One burst. Times in seconds. rate: a second, capacity: at once, of the endpoint. seconds: from the submission
    until all had ended. task_*: until a task had ended, from the burst on, when it was planned; longest: of these.
    call_*: of the work on it; busy: summed. sent, refused, completed: as the endpoint counted. spent_pico: by the
    ledger; priced_pico: by the endpoint's tokens. cpu: of siafu's process, its start included.
    """

    workers: int
    tasks: int
    rate: float
    capacity: float
    latency: float
    seconds: float
    succeeded: int
    longest: float
    task_p50: float
    task_p95: float
    task_p99: float
    busy: float
    call_p50: float
    call_p95: float
    call_p99: float
    sent: int
    refused: int
    completed: int
    spent_pico: int
    priced_pico: int
    cpu: float
    rss_mb: float

    @property
    def limited(self) -> float:
        """Seconds until the last call may leave, by the endpoint's limit alone."""
        return max(0.0, self.tasks - self.capacity) / self.rate

    @property
    def most_at_rate(self) -> bool:
        """Whether so few workers could keep up with the endpoint's limit at all."""
        return self.workers >= 1.2 * self.rate * self.latency

    @property
    def of_ideal(self) -> float:
        """What was taken beside one latency, over what the limit takes."""
        return (self.seconds - self.latency) / self.limited if self.limited else 1.0

    def check(self) -> None:
        """Raises: MeasurementInvalid when the figures contradict each other, or the endpoint's."""
        who = f"{self.workers} workers"
        if not self.succeeded <= self.completed <= self.sent or self.sent < self.completed + self.refused:
            raise MeasurementInvalid(
                f"{who}: {self.succeeded} answers, but the endpoint counted {self.completed} of {self.sent} requests, "
                f"{self.refused} refused"
            )
        if self.seconds + CLOCK < self.longest:
            raise MeasurementInvalid(
                f"{who}: over after {self.seconds:.2f} s, and the slowest task took {self.longest:.2f} s"
            )
        if self.completed > self.rate * self.seconds + self.capacity + 1:
            raise MeasurementInvalid(f"{who}: {self.completed} answers are more than the endpoint's limit lets through")
        # Little: tasks at work on average = rate x time of each = time spent at work / wall time.
        if not self.completed * self.latency * 0.99 <= self.busy <= 1.01 * self.workers * self.seconds:
            raise MeasurementInvalid(f"{who}: {self.busy / self.seconds:.1f} were at work on average")
        if self.spent_pico != self.priced_pico:
            raise MeasurementInvalid(
                f"{who}: the ledger says {to_usd(self.spent_pico)} USD, the endpoint's tokens cost "
                f"{to_usd(self.priced_pico)}"
            )

    def row(self) -> dict[str, Any]:
        """For machines."""
        found = {name: getattr(self, name) for name in self.__struct_fields__ if not name.endswith("_pico")}
        return {name: round(each, 4) if isinstance(each, float) else each for name, each in found.items()} | {
            "tasks_per_s": round(self.succeeded / self.seconds, 2),
            "refused_share": round(self.refused / self.sent, 4),
            "of_ideal": round(self.of_ideal, 4),
            "usd": json_usd(self.spent_pico),
        }

    def goals(self) -> list[Goal]:
        who = f"{self.workers} workers"
        found = [
            Goal(what=f"{who}: tasks without a result", value=float(self.tasks - self.succeeded), most=0.0),
            Goal(
                what=f"{who}: part of the requests that was refused", value=self.refused / self.sent, most=MOST_REFUSED
            ),
        ]
        if self.most_at_rate and self.limited:
            what = f"{who}: time without one latency, over what the limit takes"
            found.append(Goal(what=what, value=self.of_ideal, most=MOST_OF_IDEAL))
        return found


class Report(Judged, frozen=True, kw_only=True):
    """A row a stage."""


def compare(options: Options, say: Callable[[str], None]) -> Report:
    """Measure all stages. Raises: MeasurementInvalid."""
    options.home.mkdir(parents=True, exist_ok=True)
    machine = describe("asyncio", options.home)
    stages = []
    for workers in options.workers:
        say(f"{options.tasks:,} tasks, {workers} workers")
        stages.append(stage(options, workers))
        stages[-1].check()
    machine["load_after"] = round(os.getloadavg()[0], 2)
    goals = [goal for each in stages for goal in each.goals()]
    return Report(rows=[each.row() for each in stages], goals=goals, machine=machine)


def stage(options: Options, workers: int) -> Stage:
    """Measure one. Raises: MeasurementInvalid."""
    rpm, burst = options.rpm * options.scale, options.burst / options.scale
    latency_ms = options.latency_ms / options.scale
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.home) as folder:
        order = {"tasks": options.tasks, "workers": workers, "rpm": rpm, "burst": burst, "latency_ms": latency_ms}
        command = [
            sys.executable,
            "-P",
            "-m",
            run.__name__,
            json.dumps({**order, "folder": str(Path(folder).resolve())}),
        ]
        found = msgspec.json.decode(measured(command, f"the stage of {workers} workers"))
    return Stage(
        workers=workers,
        tasks=options.tasks,
        rate=rpm / 60,
        capacity=max(1.0, rpm / 60 * burst),
        latency=latency_ms / 1000,
        **found,
    )
