"""The test at a window's end and the rails: by tables, and by their error rates over many made-up canaries."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.gateway.verdict import (
    ALPHA,
    LEAST_BAD,
    TRIES,
    Z,
    decide,
    enough,
    findings,
    odds,
    onwards,
    quantile,
    seconds_of,
    slot_of,
    tripped,
    wilson,
)
from siafu.store.canary_records import Bounds, Canary, Numbers, Plan, Seen

BOUNDS = Bounds()
PICO = 10**12


def side(calls: int, failed: int = 0, seconds: float = 1.0, usd: float = 0.01, **fields: Any) -> Numbers:
    """Calls of a side; half of the answers took `seconds`, the others half of that."""
    ok = calls - failed
    slots = {slot_of(seconds): ok - ok // 2, slot_of(seconds / 2): ok // 2}
    low, high = int(usd * PICO * 0.9), int(usd * PICO * 1.1)
    sums = {"usd_pico": (low + high) * calls // 2, "usd_square": calls * ((low / PICO) ** 2 + (high / PICO) ** 2) / 2}
    return Numbers(**{"calls": calls, "ok": ok, "tasks": calls, "slots": slots, **sums, **fields})


def at(percent: int = 5, **fields: Any) -> Canary:
    stages = (5, 25, 50, 100)
    plan = Plan(old="@a", new="@b", salt="s", stages=stages, window_seconds=60.0, min_samples=500)
    return Canary(id=1, plan=plan, stage=stages.index(percent), began_at=1000.0, **fields)


def seen(old: Numbers, new: Numbers, now: float = 1060.0) -> Seen:
    return Seen(now=now, old=old, new=new)


OLD = side(5000, 20)


@pytest.mark.parametrize(
    ("new", "states"),
    [
        (side(1000, 4), ["good", "good", "good"]),
        (side(1000, 100), ["bad", "good", "good"]),
        (side(1000, 22), ["open", "good", "good"]),
        (side(1000, 4, seconds=1.2), ["good", "good", "good"]),
        (side(1000, 4, seconds=1.5), ["good", "bad", "good"]),
        (side(1000, 4, usd=0.0126), ["good", "good", "bad"]),
        (side(1000, 4, usd=0.0125), ["good", "good", "open"]),
        (side(1000, 4, usd=0.001), ["good", "good", "good"]),
        (side(1000, 4, unpriced=1), ["good", "good", "none"]),
    ],
)
def test_the_three_parts(new: Numbers, states: list[str]) -> None:
    assert [part.state for part in findings(OLD, new, BOUNDS)] == states


@pytest.mark.parametrize(
    ("canary", "new", "now", "state", "stage", "tries", "why"),
    [
        (at(), side(1000, 4), 1059.9, None, 0, 0, ""),  # not before the end of its window
        (at(), side(499), 9999.0, None, 0, 0, ""),  # not without samples: it is extended
        (at(), side(1000, 4), 1060.0, "running", 1, 0, "failed"),
        (at(50), side(1000, 4), 1060.0, "running", 3, 0, "failed"),
        (at(100), side(1000, 4), 1060.0, "promoted", 0, 0, "failed"),
        (at(), side(1000, 22), 1060.0, "running", 0, 1, "another window (2 of 3)"),
        (at(tries=1), side(1000, 22), 1060.0, "running", 0, 2, "another window (3 of 3)"),
        (at(tries=2), side(1000, 22), 1060.0, "rolled_back", 0, 0, "3 windows did not show"),
        (at(), side(1000, 4, seconds=1.5), 1060.0, "rolled_back", 0, 0, "worse in latency"),
        (at(), side(20, 20), 1000.1, "rolled_back", 0, 0, "20 of 20 calls failed"),  # a rail, at any time
        (at(), side(200, seconds=3.0), 1000.1, "rolled_back", 0, 0, "longer than 2 x"),
        (at(), side(200, usd=0.05), 1000.1, "rolled_back", 0, 0, "more than 2 x the 0.01"),
        (at(state="promoted"), side(100, 100), 9999.0, None, 0, 0, ""),
        (at(state="rolled_back"), side(100, 100), 9999.0, None, 0, 0, ""),
    ],
)
def test_what_is_decided_when(
    canary: Canary, new: Numbers, now: float, state: str | None, stage: int, tries: int, why: str
) -> None:
    move = decide(canary, seen(OLD, new, now))
    assert (None if move is None else move.state) == state
    if move is not None:
        assert (move.stage, move.tries) == (stage, tries) and why in move.reason


def test_at_the_last_stage_the_old_side_s_last_numbers_stay_to_compare_with() -> None:
    assert onwards(at(25, number=4), "x").reference == 0
    last = onwards(at(50, number=6), "x")
    assert (last.stage, last.reference) == (3, 6)
    again = decide(at(100, number=7, reference=6), seen(OLD, side(1000, 22)))
    assert again is not None and again.reference == 6


def test_a_shared_outage_does_not_look_like_the_new_side_s() -> None:
    old = side(5000, 600)
    assert tripped(old, side(500, 60), BOUNDS) == ""
    assert tripped(side(5000, 5), side(500, 60), BOUNDS) != ""
    assert tripped(side(5000, 4900), side(500, 490), BOUNDS) != ""  # but nobody needs a side that fails so often


def test_a_side_without_calls_trips_nothing_and_passes_nothing() -> None:
    assert tripped(Numbers(), Numbers(), BOUNDS) == "" and tripped(OLD, Numbers(), BOUNDS) == ""
    assert {part.state for part in findings(Numbers(), Numbers(), BOUNDS)} == {"open"}
    assert tripped(Numbers(), side(LEAST_BAD - 1, LEAST_BAD - 1), BOUNDS) == ""
    assert tripped(Numbers(), side(30, 30), BOUNDS) != ""  # the absolute one needs no old side


@pytest.mark.parametrize("worse", [0.01, 0.02, 0.1])
def test_enough_is_the_least_that_can_pass(worse: float) -> None:
    bounds = Bounds(worse=worse)
    least = enough(bounds)
    old = side(100 * least)
    assert {part.state for part in findings(side(least), side(least), bounds)} == {"good"}
    assert "open" in {part.state for part in findings(side(least - 1), side(least - 1), bounds)}
    assert {part.state for part in findings(old, side(least), bounds)} == {"good"}


def test_wilson_by_the_textbook() -> None:
    low, high = wilson(15, 148, 1.959964)  # Newcombe 1998, table I, method 3
    assert (round(low, 4), round(high, 4)) == (0.0624, 0.1605)
    assert wilson(0, 20, 1.959964)[1] == pytest.approx(0.1611, abs=5e-5)
    assert wilson(0, 0, Z) == (0.0, 1.0)


@given(st.floats(0.001, 3600))
def test_a_slot_tells_seconds_within_a_hundredth(seconds: float) -> None:
    assert seconds_of(slot_of(seconds)) == pytest.approx(seconds, rel=0.0101)


@given(st.lists(st.floats(0.001, 600), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_quantiles_are_by_nearest_rank(values: list[float], share: float) -> None:
    slots: dict[int, int] = {}
    for value in values:
        slots[slot_of(value)] = slots.get(slot_of(value), 0) + 1
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    assert quantile(slots, share) == pytest.approx(exact, rel=0.0101)


# How often they are wrong, over many canaries.


def drawn(rng: Random, calls: int, failing: float, slower: float = 1.0, dearer: float = 1.0) -> Numbers:
    failed = sum(rng.random() < failing for _ in range(calls))
    slots: dict[int, int] = {}
    for _ in range(calls - failed):
        slot = slot_of(slower * rng.lognormvariate(0.0, 0.6))
        slots[slot] = slots.get(slot, 0) + 1
    costs = [dearer * rng.lognormvariate(-4.0, 0.5) for _ in range(calls)]
    return Numbers(
        calls=calls, ok=calls - failed, tasks=calls, slots=slots, usd_pico=int(sum(costs) * PICO),
        usd_square=sum(cost * cost for cost in costs),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("worse", "part"),
    [({"failing": 0.03}, 0), ({"failing": 0.01, "slower": 1.25}, 1), ({"failing": 0.01, "dearer": 1.25}, 2)],
)
def test_what_is_just_too_bad_seldom_passes_a_window(worse: Any, part: int) -> None:
    rng, passed, windows = Random(11), 0, 300
    for _ in range(windows):
        old, new = drawn(rng, 1000, 0.01), drawn(rng, 400, **worse)
        passed += findings(old, new, BOUNDS)[part].state == "good"
    assert passed <= windows * ALPHA / TRIES + 3 * math.sqrt(windows * ALPHA / TRIES)


def test_what_is_as_good_mostly_passes_and_is_hardly_ever_called_worse() -> None:
    rng = Random(12)
    pairs = [(drawn(rng, 2000, 0.005), drawn(rng, 600, 0.005)) for _ in range(100)]
    states = [[part.state for part in findings(old, new, BOUNDS)] for old, new in pairs]
    assert sum(each == ["good"] * 3 for each in states) >= 65 and not any("bad" in each for each in states)


def test_a_rail_bears_being_looked_at_after_every_call() -> None:
    """2,000 canaries that fail as often as is allowed, each looked at 500 times: a test at 1 in 1,000 that ignored
    that would be wrong for many of them.
    """
    rng, wrong, naive = Random(13), 0, 0
    for _ in range(2000):
        bad, told, fooled = 0, False, False
        for n in range(1, 501):
            bad += rng.random() < 0.1
            told = told or odds(bad, n, 0.1) >= 1000
            fooled = fooled or (n >= 20 and bad - 0.1 * n > 3.09 * math.sqrt(n * 0.09))
        wrong, naive = wrong + told, naive + fooled
    assert wrong <= 5 < naive


@pytest.mark.parametrize(("failing", "most"), [(1.0, 10), (0.5, 30), (0.15, 400)])
def test_a_rail_sees_a_bad_side_soon(failing: float, most: int) -> None:
    rng, needed = Random(14), []
    for _ in range(50):
        bad, n = 0, 0
        while not tripped(OLD, side(n, bad), BOUNDS):
            n, bad = n + 1, bad + (rng.random() < failing)
        needed.append(n)
    assert sorted(needed)[45] <= most and min(needed) >= LEAST_BAD
