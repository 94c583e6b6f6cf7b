from __future__ import annotations

import statistics
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.pace.throttle import LONGEST, SPREAD, START, Throttle

NOW = 1_000_000.0


def grants(throttle: Throttle, start: float, seconds: float) -> list[float]:
    """When requests leave, if there is always one that waits and each is answered at once."""
    now, sent = start, []
    while (now := now + throttle.ready(now)) < start + seconds:
        if throttle.ready(now) == 0.0:
            throttle.take(now)
            throttle.accepted(now, now)
            sent.append(now)
    return sent


def test_without_a_limit_and_refusals_nobody_waits() -> None:
    throttle = Throttle()
    for _ in range(1000):
        assert throttle.ready(NOW) == 0.0
        throttle.take(NOW)


@given(st.floats(0.001, 100), st.integers())
def test_f01_nobody_leaves_within_a_server_given_wait(wait: float, seed: int) -> None:
    throttle = Throttle(rate=100.0, burst=10)
    throttle.take(NOW)
    throttle.refused(NOW, NOW + 0.01, wait, Random(seed))
    until = NOW + 0.01 + wait
    assert throttle.ready(NOW + 0.01) >= wait - 1e-6
    assert throttle.ready(until - 0.0005) > 0.0
    assert throttle.ready(until + SPREAD) == 0.0


def test_f03_a_longer_hint_lengthens_the_pause_and_a_shorter_one_does_not_shorten_it() -> None:
    throttle = Throttle()
    throttle.refused(NOW, NOW + 1, 5.0, Random(1))
    throttle.refused(NOW, NOW + 1, 9.0, Random(1))
    throttle.refused(NOW, NOW + 1, 2.0, Random(1))
    assert NOW + 10 <= throttle.paused_until <= NOW + 10 + SPREAD


def test_refusals_without_a_hint_back_off_longer_and_longer() -> None:
    longest = []
    for streak in range(1, 9):
        waits = []
        for seed in range(200):
            throttle, now, rng = Throttle(), NOW, Random(seed)
            for _ in range(streak):
                throttle.refused(now, now + 0.001, None, rng)
                wait = throttle.paused_until - now
                now = throttle.paused_until + 0.01
            waits.append(wait)
        longest.append(max(waits))
        assert min(waits) < 0.2 * max(waits)
    assert longest[:4] == sorted(longest[:4])
    assert longest[0] <= 0.6 and 0.9 * LONGEST < longest[-1] <= LONGEST


def test_f06_after_a_refusal_requests_leave_one_by_one_and_faster_and_faster() -> None:
    throttle = Throttle()
    throttle.refused(NOW, NOW, 2.0, Random(1))
    sent = grants(throttle, NOW, 6.0)
    assert sent[0] >= NOW + 2
    first, second, third = (sum(s <= t - sent[0] < s + 1 for t in sent) for s in (0, 1, 2))
    assert START <= first <= 2 * START
    assert first < second < third


def test_an_upstream_that_refuses_all_is_tried_slowly_and_its_first_answer_brings_the_pace_back() -> None:
    throttle, rng = Throttle(), Random(1)
    throttle.refused(NOW, NOW, 0.1, rng)
    now = grants(throttle, NOW, 2.5)[-1]
    throttle.refused(now, now, 0.1, rng)  # the limit is being searched for, at some pace
    now = throttle.paused_until
    before = len(grants(throttle, now, 1.0))
    now += 1.0
    for _ in range(20):
        now += throttle.ready(now)
        throttle.take(now)
        throttle.refused(now, now + 0.001, None, rng)
        now += 0.001
    now += throttle.ready(now)
    throttle.take(now)
    assert throttle.ready(now) == pytest.approx(1 / START)
    throttle.accepted(now - 100.0, now + 0.01)  # the answer to an old request tells nothing
    assert throttle.ready(now + 0.01) == pytest.approx(1 / START - 0.01, rel=0.1)
    throttle.accepted(now, now + 0.02)
    assert len(grants(throttle, now + 0.2, 1.0)) == pytest.approx(before, rel=0.1)


def test_g13_a_storm_of_refusals_is_forgotten_soon() -> None:
    throttle, rng, now = Throttle(rate=100.0), Random(1), NOW
    for _ in range(100):  # it accepts 20 a second
        throttle.take(now)
        throttle.accepted(now, now)
        now += 0.05
    for _ in range(12):  # then it refuses whatever comes, however slowly
        now += throttle.ready(now) + 0.001
        throttle.take(now)
        throttle.refused(now, now + 0.001, 1.0, rng)
    sent = grants(throttle, now, 20.0)
    rates = [sum(s <= t - now < s + 1 for t in sent) for s in range(19)]
    assert rates[0] <= 2 * START, "it is tried slowly"
    assert rates[15] > 10, "and soon used again"


def test_refusals_of_one_burst_slow_the_pace_once() -> None:
    once, many = Throttle(), Throttle()
    for throttle, count in ((once, 1), (many, 100)):
        for i in range(100):
            throttle.take(NOW)
            throttle.accepted(NOW, NOW + i / 1000)
        for i in range(count):
            throttle.refused(NOW, NOW + 0.2 + i / 1000, 1.0, Random(1))
    pace = [len(grants(t, t.paused_until, 5.0)) for t in (once, many)]
    assert pace[0] == pytest.approx(pace[1], abs=2)


@pytest.mark.parametrize("hint", [None, 0.5])
def test_refusals_now_and_then_do_not_bring_it_to_a_standstill(hint: float | None) -> None:
    """One of twenty is refused, whatever the pace. Halving at each would end at one request a minute."""
    rates = []
    for seed in range(10):
        throttle, rng, now, answered = Throttle(), Random(seed), NOW, 0
        while answered < 1000:
            now += throttle.ready(now)
            throttle.take(now)
            if rng.random() < 0.05:
                throttle.refused(now, now + 0.01, hint, rng)
            else:
                throttle.accepted(now, now + 0.01)
                answered += 1
            now += 0.01
        rates.append(answered / (now - NOW))
    assert statistics.median(rates) > 2.0 and min(rates) > 0.4


def test_a_slow_upstream_is_still_found() -> None:
    """It accepts one request a second; the pace gets there from ten a second, and stays near."""
    throttle, rng, now, free_at = Throttle(), Random(3), NOW, NOW
    accepted, refused = 0, list[float]()
    while now < NOW + 120:
        now += throttle.ready(now)
        throttle.take(now)
        if now >= free_at:
            free_at = max(free_at, now - 1) + 1
            throttle.accepted(now, now + 0.01)
            accepted += 1
        else:
            throttle.refused(now, now + 0.01, None, rng)
            refused.append(now)
        now += 0.02
    assert accepted > 90
    assert len(refused) < 160


steps = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "ask", "refuse", "hint", "undo"]), st.floats(0, 2)),
    min_size=1,
    max_size=80,
)


@settings(max_examples=200)
@given(st.floats(0.2, 50), st.integers(1, 10), steps, st.integers())
def test_g12_whatever_happens_the_configured_rate_is_kept(
    rate: float, burst: int, schedule: list[tuple[str, float]], seed: int
) -> None:
    throttle, rng, now, sent = Throttle(rate=rate, burst=burst), Random(seed), NOW, list[float]()
    for what, gap in schedule:
        now += gap / rate
        if what in ("ask", "undo"):
            while wait := throttle.ready(now):
                now += wait
            grant = throttle.take(now)
            if what == "undo":
                throttle.undo(grant)
            else:
                sent.append(now)
                throttle.accepted(now, now)
        else:
            throttle.refused(sent[-1] if sent else NOW, now, gap if what == "hint" else None, rng)
    for window in (0.0, 0.5 / rate, 1 / rate, 5 / rate):
        most = max((sum(t <= other <= t + window for other in sent) for t in sent), default=0)
        assert most <= rate * window + burst + 1e-3
