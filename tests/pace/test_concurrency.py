from __future__ import annotations

import math
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.pace.aimd import Aimd
from siafu.pace.concurrency import Fixed, Policy, Sample
from siafu.pace.vegas import RELEARN, Vegas
from siafu.pace.window import SlidingWindow


def ok(now: float, in_flight: int, first_token: float | None = None, seconds: float = 0.0) -> Sample:
    """An answer that took `seconds`."""
    return Sample(sent_at=now - seconds, now=now, in_flight=in_flight, first_token=first_token)


def refused(now: float, sent_at: float | None = None, outcome: Any = "refused") -> Sample:
    return Sample(sent_at=now if sent_at is None else sent_at, now=now, in_flight=1, outcome=outcome)


def room(policy: Policy, now: float = 0.0) -> int:
    """How many calls may be under way."""
    return next(n for n in range(10_000) if policy.ready(now, n) > 0.0)


def test_fixed_is_fixed() -> None:
    policy = Fixed(7)
    assert room(policy) == 7 and policy.ready(0.0, 7) == math.inf


def test_a_ramp_rises_from_the_first_call_on() -> None:
    policy = Fixed(24, ramp=10.0)
    policy.take(100.0)
    assert [room(policy, 100.0 + seconds) for seconds in (0.0, 1.0, 5.0, 10.0, 50.0)] == [4, 6, 14, 24, 24]
    assert policy.ready(100.0, 4) == pytest.approx(0.5)
    assert policy.ready(200.0, 24) == math.inf


def test_aimd_doubles_a_round_then_adds_one_a_round() -> None:
    policy = Aimd(100)
    assert room(policy) == 4
    for _ in range(4):
        policy.ended(ok(1.0, 4))
    assert room(policy) == 8
    policy.ended(refused(2.0))
    assert room(policy) == 7
    for _ in range(8):
        policy.ended(ok(3.0, 7))
    assert room(policy) == 8


@pytest.mark.parametrize("make", [Aimd, Vegas])
def test_refusals_of_one_window_cut_once_and_timeouts_count(make: Any) -> None:
    policy = make(100)
    policy._aim = 50.0
    for _ in range(20):
        policy.ended(refused(10.0, sent_at=9.0))
    assert room(policy) == 45
    policy.ended(refused(11.0, sent_at=10.5, outcome="timeout"))
    assert room(policy) == 40
    policy.ended(refused(12.0, sent_at=11.5, outcome="other"))
    assert room(policy) == 40, "a client error is no sign of overload"


@pytest.mark.parametrize("make", [Aimd, Vegas])
def test_a_limit_that_is_not_used_does_not_grow(make: Any) -> None:
    policy = make(100)
    policy._aim = 40.0
    for n in range(200):
        policy.ended(ok(float(n), 10, first_token=0.1, seconds=0.5))
    assert room(policy) <= 40


def test_vegas_keeps_thin_windows_and_ignores_refusals_in_the_average() -> None:
    policy = Vegas(100)
    for n in range(9):
        policy.ended(ok(n / 10, 2, first_token=0.1))
        policy.ended(refused(n / 10, sent_at=-1.0, outcome="other"))
    assert room(policy) == 2
    policy.ended(ok(1.0, 2, first_token=0.1))
    assert room(policy) == 4


def test_vegas_grows_again_after_everything_became_slower() -> None:
    """Not only the waiting: a model that is slower to its first token, and the same otherwise."""
    policy, now, seen = Vegas(32), 0.0, []
    for n in range(5000):
        now = n * 0.05
        first = 1.0 if n < 400 else 3.0
        policy.ended(ok(now, policy.limit, first_token=first, seconds=first + 0.1))
        seen.append(policy.limit)
    assert now > 2 * RELEARN
    assert min(seen[400:]) < 16 < policy.limit, "the control: it took them to wait at first"


@pytest.mark.parametrize(
    ("slots", "lengths", "settles"),
    [
        (100, (20, 40, 60), (32, 32)),
        (6, (20, 40, 60), (6, 8)),
        (100, (40, 40, 40), (1, 6)),  # the control: nothing tells slower work from waiting
    ],
)
def test_of_answers_in_one_piece_slower_work_is_not_taken_for_waiting(
    slots: int, lengths: tuple[int, ...], settles: tuple[int, int]
) -> None:
    """All calls that have a slot share one processor; the others wait, the longer the more they are."""
    policy, seen = Vegas(32), list[int]()
    for n in range(800):
        busy, tokens = min(policy.limit, slots), lengths[n % len(lengths)]
        seconds = 0.2 + 0.01 * busy * tokens + 0.4 * (policy.limit - busy)
        now = 30.0 * n
        policy.ended(Sample(sent_at=now - seconds, now=now, in_flight=policy.limit, tokens=tokens))
        seen.append(policy.limit)
    assert settles[0] <= median(seen[400:]) <= settles[1], seen[::20]


def test_the_sliding_window_has_the_figures_of_its_sources() -> None:
    policy = SlidingWindow(1000, rpm=60)
    assert (policy.rpm, policy.limit) == (55, 48)
    for _ in range(55):
        assert policy.ready(100.0, 0) == 0.0
        policy.take(100.0)
    assert policy.ready(100.0, 0) == pytest.approx(60.0, abs=1e-3)
    assert policy.ready(130.0, 0) == pytest.approx(30.0, abs=1e-3)
    policy.ended(refused(101.0))
    policy.ended(refused(101.0))
    assert policy.rpm == 55
    policy.ended(refused(101.0))
    assert policy.rpm == 44
    for _ in range(30):
        policy.ended(refused(101.0))
    assert policy.rpm == 20
    for n in range(100):
        policy.ended(ok(200.0 + n / 10, 1))
    assert policy.rpm == 30, "one a second"


def test_a_success_between_refusals_begins_the_row_anew() -> None:
    policy = SlidingWindow(10, rpm=60)
    for _ in range(5):
        policy.ended(refused(1.0))
        policy.ended(refused(1.0))
        policy.ended(ok(1.0, 1))
    assert policy.rpm >= 55


def test_a_crowd_in_one_step_gets_what_the_window_allows() -> None:
    policy = SlidingWindow(1000, rpm=600)
    granted = 0
    for _ in range(445):
        if policy.ready(5.0, granted) == 0.0:
            policy.take(5.0)
            granted += 1
    assert granted == 55
    policy.undo(5.0)
    assert policy.ready(5.0, 54) == 0.0


@given(
    st.sampled_from(["aimd", "vegas", "window"]),
    st.integers(1, 50),
    st.lists(
        st.tuples(
            st.sampled_from(["ok", "refused", "timeout", "other"]),
            st.floats(0, 2),
            st.one_of(st.none(), st.floats(0, 5)),
            st.integers(1, 60),
        ),
        max_size=150,
    ),
)
def test_no_policy_leaves_its_bounds(name: str, most: int, ends: list[tuple[Any, float, float | None, int]]) -> None:
    policy: Policy = {"aimd": Aimd, "vegas": Vegas, "window": SlidingWindow}[name](most)
    now = 0.0
    for outcome, pause, latency, in_flight in ends:
        now += pause
        sent_at, tokens = now - pause / 2, in_flight if outcome == "ok" else None
        first = latency if outcome == "ok" else None
        policy.ended(
            Sample(sent_at=sent_at, now=now, in_flight=in_flight, outcome=outcome, first_token=first, tokens=tokens)
        )
        assert 1 <= policy.limit <= most
        assert policy.ready(now, 0) == 0.0
        assert policy.ready(now, most) > 0.0
