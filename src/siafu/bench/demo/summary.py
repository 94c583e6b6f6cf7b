"""siafu's own numbers: by category from its results, and what working in parallel was worth. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from siafu.bench.demo.notes import ResultLine
from siafu.bench.demo.seen import Seen
from siafu.border.money import to_pico


class Category(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one category. Latencies in milliseconds, by nearest rank. usd_pico: None = one is unknown."""

    category: str
    count: int
    p50: float
    p95: float
    p99: float
    input_tokens: int
    output_tokens: int
    usd_pico: int | None


class Parallel(msgspec.Struct, frozen=True, kw_only=True):
    """serial_seconds: what the endpoint says an idle server needs for every answer that was used, one after another.
    speed_up: that over the wall time. peak: most answers in the making at one moment. critical_steps: model and tool
    calls of the longest chain in which each waits for the one before. waited_out: questions that were refused with 429
    and answered later, after `waited_seconds` in all from the first refusal to the try that was answered.
    """

    serial_seconds: float
    speed_up: float
    peak: int
    critical_steps: int
    refusals: int
    waited_out: int
    waited_seconds: float


def by_category(lines: Iterable[ResultLine]) -> list[Category]:
    """One entry a category of the answered requests, the largest first, and `all` at the end."""
    groups: defaultdict[str, list[ResultLine]] = defaultdict(list)
    everything = [line for line in lines if line.status == "ok"]
    for line in everything:
        groups[line.category or "unknown"].append(line)
    named = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return [_category(name, group) for name, group in [*named, ("all", everything)] if group]


def _category(name: str, lines: Sequence[ResultLine]) -> Category:
    times = sorted(line.latency_ms for line in lines)
    costs = [None if line.usd is None else to_pico(line.usd) for line in lines]
    known = [cost for cost in costs if cost is not None]
    return Category(
        category=name,
        count=len(lines),
        p50=nearest_rank(times, 50),
        p95=nearest_rank(times, 95),
        p99=nearest_rank(times, 99),
        input_tokens=sum(line.tokens.input for line in lines),
        output_tokens=sum(line.tokens.output for line in lines),
        usd_pico=sum(known) if len(known) == len(costs) else None,
    )


def nearest_rank(ordered: Sequence[float], percent: int) -> float:
    """The smallest of the ordered values that at least `percent` per cent of them do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def parallel(calls: Sequence[Seen], wall: float, peak: int) -> Parallel:
    """What working in parallel was worth, from the endpoint's records."""
    used: dict[str, Seen] = {}
    refused: dict[str, float] = {}
    for call in calls:
        if call.complete:
            used.setdefault(call.question, call)
        elif call.status == 429:
            refused.setdefault(call.question, call.arrived)
    serial = sum(call.service_seconds for call in used.values())
    waits = [used[question].arrived - since for question, since in refused.items() if question in used]
    return Parallel(
        serial_seconds=serial,
        speed_up=serial / wall if wall else 0.0,
        peak=peak,
        critical_steps=max(_steps(used.values()).values(), default=0),
        refusals=sum(call.status == 429 for call in calls),
        waited_out=len(waits),
        waited_seconds=sum(waits),
    )


def _steps(used: Iterable[Seen]) -> dict[str, int]:
    """Length of each request's chain: its model calls, and one step more for each round of tool calls."""
    steps: defaultdict[str, int] = defaultdict(int)
    for call in used:
        if call.request is not None:
            steps[call.request] += 1 + call.wants_tools
    return steps
