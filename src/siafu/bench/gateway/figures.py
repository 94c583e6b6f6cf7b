"""From runs to figures: percentiles, self-checks, rows and ratios. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from siafu.errors import MeasurementInvalid
from siafu.observe.figures import nearest_rank as nearest_rank

RAW = "raw aiohttp"  # what all ratios are to
FIGURES = ("cpu_ms_per_call", "calls_per_s", "p50_ms", "p95_ms", "p99_ms")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One client's process. Seconds and bytes; `answered`: of each call that was answered; `busy`: summed over all
    calls; `cpu`, `wall`: of the timed part. server_calls, service_ms (median): what the server saw in that time.
    """

    client: str
    agents: int
    calls: int
    answered: list[float]
    busy: float
    errors: int
    first_error: str
    cpu: float
    wall: float
    rss: int
    server_calls: int
    service_ms: float | None

    def check(self) -> None:
        """Raises: MeasurementInvalid when the figures contradict the server's count, or Little's law."""
        who = f"{self.client} at {self.agents} agents"
        if len(self.answered) + self.errors != self.calls:
            raise MeasurementInvalid(f"{who}: {self.calls} calls, {len(self.answered)} answers, {self.errors} errors")
        fewest = self.calls - self.errors
        if self.server_calls < fewest or (not self.errors and self.server_calls != self.calls):
            raise MeasurementInvalid(
                f"{who}: {self.calls} calls, {self.errors} errors, but the server counted {self.server_calls}"
            )
        # Little: mean number in flight = throughput x mean latency = time spent in calls / wall time. Agents without
        # pauses are in a call all the time, but for the last one, when others may have nothing left to ask.
        longest = max(self.answered, default=self.wall)
        least = 0.8 * self.agents * (self.wall - longest)
        if not least <= self.busy <= 1.01 * self.agents * self.wall:
            raise MeasurementInvalid(
                f"{who}: {self.busy / self.wall:.1f} calls in flight on average contradict {self.agents} agents"
            )

    def figure(self, name: str) -> float | None:
        """One of FIGURES; a latency is None when nothing was answered."""
        if name == "cpu_ms_per_call":
            return self.cpu / self.calls * 1e3
        if name == "calls_per_s":
            return len(self.answered) / self.wall
        percent = float(name[1:3])
        return nearest_rank(self.answered, percent) * 1e3 if self.answered else None


class Spread(msgspec.Struct, frozen=True):
    """Of several runs."""

    median: float
    min: float
    max: float


def spread(values: Sequence[float | None]) -> Spread | None:
    """None when a value is missing."""
    known = [value for value in values if value is not None]
    return Spread(median(known), min(known), max(known)) if known and len(known) == len(values) else None


def rows(runs: Sequence[Run], upstream_ms: float) -> list[dict[str, Any]]:
    """A row for each client and number of agents: medians of its runs, and under `min` and `max` their extremes.
    calls, errors and server_calls are summed over the runs; rss_mb is the largest.
    """
    table = []
    for (client, agents), group in _grouped(runs).items():
        found = {name: spread([run.figure(name) for run in group]) for name in FIGURES}
        service = spread([run.service_ms for run in group])
        table.append(
            {
                "client": client,
                "concurrency": agents,
                "upstream_ms": upstream_ms,
                "runs": len(group),
                "calls": sum(run.calls for run in group),
                **{name: _rounded(value, "median") for name, value in found.items()},
                "errors": sum(run.errors for run in group),
                "first_error": next((run.first_error for run in group if run.errors), ""),
                "rss_mb": round(max(run.rss for run in group) / 2**20, 1),
                "server_calls": sum(run.server_calls for run in group),
                "service_ms": _rounded(service, "median"),
                **{end: {name: _rounded(value, end) for name, value in found.items()} for end in ("min", "max")},
            }
        )
    return table


def ratios(runs: Sequence[Run]) -> dict[str, dict[str, dict[str, Spread | None]]]:
    """By number of agents and client: `cpu`, `p50`, `p99`, `calls_per_s` as multiples of raw aiohttp in the same
    repeat, and `p50_of_upstream`, p50 as a multiple of the time the server itself took.
    """
    grouped = _grouped(runs)
    found: dict[str, dict[str, dict[str, Spread | None]]] = {}
    for (client, agents), group in grouped.items():
        pairs = list(zip(group, grouped[RAW, agents], strict=False))  # peers have fewer runs

        def compared(name: str, pairs: list[tuple[Run, Run]] = pairs) -> Spread | None:
            return spread([_over(run.figure(name), raw.figure(name)) for run, raw in pairs])

        found.setdefault(str(agents), {})[client] = {
            "cpu": compared("cpu_ms_per_call"),
            "p50": compared("p50_ms"),
            "p99": compared("p99_ms"),
            "calls_per_s": compared("calls_per_s"),
            "p50_of_upstream": spread([_over(run.figure("p50_ms"), run.service_ms) for run in group]),
        }
    return found


def _grouped(runs: Sequence[Run]) -> dict[tuple[str, int], list[Run]]:
    groups: dict[tuple[str, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.client, run.agents), []).append(run)
    return groups


def _over(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _rounded(value: Spread | None, end: str) -> float | None:
    return None if value is None else round(getattr(value, end), 3)
