"""Every policy in every scenario: goodput, refused share, waiting at the upstream, and how soon it finds a limit that
was halved. Three times as many calls are offered as the upstream can take.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import get_args

import msgspec

from siafu.bench.limits.world import Arrival, Crowd, RateLimited, Slots, Upstream
from siafu.gateway.limits import Limits, PolicyName
from siafu.pace.admission import Admission
from siafu.pace.throttle import Throttle

POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)
FINDING = 10.0  # seconds after the start and after the halving that are for finding the limit
HALVED_AT, END = 70.0, 140.0
SECONDS = 2.0  # an answer takes
SPAN = 10.0  # seconds over which goodput has to be good again


class Scenario(msgspec.Struct, frozen=True):
    name: str
    upstream: Callable[[], Upstream]
    agents: int


def scenarios() -> list[Scenario]:
    """Limits of 10 and 50 requests a second, told in different ways, and servers with 4, 16 and 64 slots."""

    def rate(rate: float, tells: str, at_once: float) -> Scenario:
        name = f"{rate:g}/s, {at_once:g} s at once, {tells}"
        return Scenario(name, lambda: RateLimited(rate, SECONDS, tells, at_once), int(3 * rate * SECONDS))

    def slots(slots: int) -> Scenario:
        return Scenario(f"{slots} slots", lambda: Slots(slots, SECONDS, room=2 * slots), 3 * slots)

    told = [("nothing", 1.0), ("hints", 1.0), ("hints", 60.0), ("headers", 60.0)]
    return [*(rate(each, *how) for each in (10.0, 50.0) for how in told), *(slots(each) for each in (4, 16, 64))]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One policy in one scenario, medians over the seeds. Shares from 0 to 1, before and after the halving: `goodput`,
    of what the upstream can do in the long run (more is 1), `refused` of what was sent. `seconds_to_converge`: from the
    halving until goodput is at 90 % and at most 2 % are refused, for `SPAN` seconds; None = never. `p95`: seconds of an
    answered call. `in_flight`: calls under way before the halving.
    """

    scenario: str
    policy: str
    goodput: float
    refused: float
    goodput_halved: float
    refused_halved: float
    seconds_to_converge: float | None
    p95: float
    in_flight: float


def compare(seeds: Sequence[int] = (1, 2, 3), concurrency: int = 1000) -> list[Row]:
    """A row for each scenario and policy. `concurrency`: the most that any policy may let through at once."""
    return [
        _median([run(scenario, policy, seed, concurrency) for seed in seeds])
        for scenario in scenarios()
        for policy in POLICIES
    ]


def run(scenario: Scenario, policy: PolicyName, seed: int, concurrency: int) -> Row:
    upstream = scenario.upstream()
    rpm = upstream.capacity() * 60 if policy == "window" else None  # it is made for a limit that is known
    chosen = Limits(concurrency=concurrency, policy=policy, rpm=rpm).policy_now()
    crowd = Crowd(Admission(Throttle(), chosen), upstream, agents=scenario.agents, seed=seed)
    crowd.until(HALVED_AT)
    full = upstream.capacity()
    upstream.halve()
    crowd.until(END)
    half = upstream.capacity()
    before, after = (FINDING, HALVED_AT), (HALVED_AT + FINDING, END)
    answered = sorted(one.ended - one.at for one in crowd.log if one.ended is not None and one.at >= FINDING)
    flying = [one.in_flight for one in crowd.log if before[0] <= one.at < before[1]]
    return Row(
        scenario=scenario.name,
        policy=policy,
        goodput=min(1.0, _goodput(crowd.log, *before) / full),
        refused=_refused(crowd.log, *before),
        goodput_halved=min(1.0, _goodput(crowd.log, *after) / half),
        refused_halved=_refused(crowd.log, *after),
        seconds_to_converge=_converged(crowd.log, half),
        p95=answered[int(0.95 * (len(answered) - 1))] if answered else 0.0,
        in_flight=statistics.median(flying) if flying else 0.0,
    )


def _goodput(log: Sequence[Arrival], start: float, end: float) -> float:
    """Answers completed a second."""
    return sum(1 for one in log if one.ended is not None and start <= one.ended < end) / (end - start)


def _refused(log: Sequence[Arrival], start: float, end: float) -> float:
    within = [one.ended is None for one in log if start <= one.at < end]
    return sum(within) / max(1, len(within))


def _converged(log: Sequence[Arrival], capacity: float) -> float | None:
    for second in range(int(END - HALVED_AT - SPAN)):
        start = HALVED_AT + second
        good = _goodput(log, start, start + SPAN) >= 0.9 * capacity
        if good and _refused(log, start, start + SPAN) <= 0.02:
            return float(second)
    return None


def _median(rows: Sequence[Row]) -> Row:
    """The row of medians. It converged when most did."""
    found = sorted(row.seconds_to_converge for row in rows if row.seconds_to_converge is not None)
    numbers = {
        name: statistics.median(getattr(row, name) for row in rows)
        for name in ("goodput", "refused", "goodput_halved", "refused_halved", "p95", "in_flight")
    }
    converged = found[len(found) // 2] if len(found) * 2 > len(rows) else None
    return Row(scenario=rows[0].scenario, policy=rows[0].policy, seconds_to_converge=converged, **numbers)


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """One policy over all scenarios: means, before and after the halving. `converged`: scenarios, of `scenarios`."""

    policy: str
    goodput: float
    refused: float
    converged: int
    scenarios: int


def totals(rows: Sequence[Row]) -> list[Total]:
    found = []
    for policy in POLICIES:
        own = [row for row in rows if row.policy == policy]
        found.append(
            Total(
                policy=policy,
                goodput=statistics.mean([row.goodput for row in own] + [row.goodput_halved for row in own]),
                refused=statistics.mean([row.refused for row in own] + [row.refused_halved for row in own]),
                converged=sum(row.seconds_to_converge is not None for row in own),
                scenarios=len(own),
            )
        )
    return found
