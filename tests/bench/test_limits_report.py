from __future__ import annotations

import math
import statistics
from random import Random

import pytest

from siafu.bench.limits.report import POLICIES, Row, compare, run, scenarios, totals
from siafu.bench.limits.world import Crowd, Verdict
from siafu.gateway.limits import Limits
from siafu.pace.admission import Admission
from siafu.pace.throttle import Throttle


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], Row]:
    return {(row.scenario, row.policy): row for row in compare((1,))}


def test_it_has_a_row_for_each_and_is_the_same_every_time(rows: dict[tuple[str, str], Row]) -> None:
    assert set(rows) == {(each.name, policy) for each in scenarios() for policy in POLICIES}
    first = scenarios()[0]
    assert run(first, "vegas", 5, 1000) == run(first, "vegas", 5, 1000) != run(first, "vegas", 6, 1000)


def test_g5_with_headers_the_fixed_policy_is_never_refused_and_wastes_nothing(
    rows: dict[tuple[str, str], Row],
) -> None:
    for rate in ("10/s", "50/s"):
        row = rows[f"{rate}, 60 s at once, headers", "fixed"]
        assert row.goodput >= 0.95 and row.goodput_halved >= 0.95
        assert row.refused <= 0.002 and row.refused_halved <= 0.002
        assert row.seconds_to_converge is not None and row.seconds_to_converge <= 10
        without = rows[f"{rate}, 60 s at once, hints", "fixed"]
        assert max(without.refused, without.refused_halved) > 0.003, (
            "the control: it is the headers that keep it from refusals"
        )


def test_g5_without_headers_the_fixed_policy_is_rarely_refused_and_finds_a_halved_limit(
    rows: dict[tuple[str, str], Row],
) -> None:
    for scenario in scenarios():
        row = rows[scenario.name, "fixed"]
        if scenario.name.endswith(("nothing", "hints")):
            assert max(row.refused, row.refused_halved) <= 0.02, scenario.name
            assert row.seconds_to_converge is not None and row.seconds_to_converge <= 10, scenario.name


def test_g5_the_fixed_policy_uses_what_there_is_in_every_scenario(rows: dict[tuple[str, str], Row]) -> None:
    for scenario in scenarios():
        row = rows[scenario.name, "fixed"]
        assert min(row.goodput, row.goodput_halved) >= 0.95, scenario.name


def test_vegas_finds_the_slots_of_a_server_and_keeps_calls_short(rows: dict[tuple[str, str], Row]) -> None:
    row = rows["4 slots", "vegas"]
    assert 3 <= row.in_flight <= 5
    assert row.refused == row.refused_halved == 0.0
    assert row.p95 < 0.7 * rows["4 slots", "fixed"].p95


def test_the_default_is_the_policy_with_the_most_goodput(rows: dict[tuple[str, str], Row]) -> None:
    by_policy = {each.policy: each for each in totals(list(rows.values()))}
    assert max(by_policy.values(), key=lambda each: each.goodput).policy == Limits().policy


def test_the_control_a_policy_that_does_not_limit_is_refused_most_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("siafu.pace.throttle.Throttle.ready", lambda self, now: 0.0)
    monkeypatch.setattr("siafu.bench.limits.report.HALVED_AT", 15.0)
    monkeypatch.setattr("siafu.bench.limits.report.END", 30.0)
    row = run(scenarios()[0], "fixed", 1, 1000)
    assert row.refused > 0.5 and row.seconds_to_converge is None


class Chance:
    """Refuses one in twenty, however slowly it is asked, and says to wait for a second, or nothing."""

    def __init__(self, wait: float | None) -> None:
        self._wait = wait

    def ask(self, now: float, rng: Random) -> Verdict:
        if rng.random() < 0.05:
            return Verdict(None, wait=self._wait)
        return Verdict(now + 2.0 * rng.uniform(0.8, 1.2))

    def halve(self) -> None:
        raise NotImplementedError

    def capacity(self) -> float:
        return math.inf


@pytest.mark.parametrize(("wait", "least"), [(None, 8.0), (1.0, 5.5)])
def test_refusals_by_chance_do_not_sink_the_pace(wait: float | None, least: float) -> None:
    """20 agents could have 10 answers a second, and 7 with a pause of a second after every 20th request."""
    found = []
    for seed in range(20):
        crowd = Crowd(Admission(Throttle(), Limits().policy_now()), Chance(wait), agents=20, seed=seed)
        crowd.until(140.0)
        found.append(sum(one.ended is not None and one.ended >= 40.0 for one in crowd.log) / 100.0)
    assert statistics.median(found) >= least
