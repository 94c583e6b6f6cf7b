"""The breaker's table, and what it promises whatever happens."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.pace.breaker import ROUND, Breaker, Pattern, State

PATTERN = Pattern()
FIRST, LONGEST = PATTERN.first, PATTERN.longest


def broken(*, under_way: int = 0, pattern: Pattern = PATTERN) -> Breaker:
    """Open since 0.0, after calls that had left at -1.0."""
    breaker = Breaker(pattern, 0.0, -1.0)
    while breaker.state != "open":
        breaker.failed(-1.0, 0.0, under_way=under_way)
    return breaker


def returning(*, former: int) -> Breaker:
    """Since 3.0."""
    breaker = broken(under_way=former)
    breaker.take(2.0)
    breaker.answered(2.0, 3.0)
    return breaker


@pytest.mark.parametrize(
    ("state", "event", "after"),
    [
        ("closed", "failure", "closed"),
        ("closed", "enough failures", "open"),
        ("closed", "answer", "closed"),
        ("open", "failure", "open"),
        ("open", "probe fails", "open"),
        ("open", "old answer", "open"),
        ("open", "probe is answered", "returning"),
        ("returning", "failure", "returning"),
        ("returning", "enough failures", "open"),
        ("returning", "old failures", "returning"),
        ("returning", "answer", "returning"),
        ("returning", "answers", "closed"),
    ],
)
def test_the_table(state: State, event: str, after: State) -> None:
    if state == "closed":
        breaker = Breaker(PATTERN, 0.0, -1.0)
    else:
        breaker = broken() if state == "open" else returning(former=100)
    assert breaker.state == state
    at = 3.1  # within the state
    if event in ("failure", "enough failures", "old failures"):
        for _ in range(1 if event == "failure" else PATTERN.failures):
            breaker.failed(-1.0 if event == "old failures" else at, at, under_way=0)
    elif event == "probe fails":
        breaker.take(2.0)
        assert breaker.failed(2.0, at, under_way=0)
    else:
        if event == "probe is answered":
            breaker = broken(under_way=100)
            breaker.take(2.0)
        for _ in range(60 if event == "answers" else 1):
            breaker.answered(-2.0 if event == "old answer" else at, at)
    assert breaker.state == after


@pytest.mark.parametrize(("under_way", "needed"), [(0, 3), (30, 3), (100, 10), (1000, 100)])
def test_a_tenth_of_the_calls_under_way_have_to_fail_in_a_row(under_way: int, needed: int) -> None:
    breaker = Breaker(PATTERN, 0.0, 0.0)
    assert [breaker.failed(0.0, 1.0, under_way=under_way) for _ in range(needed)] == [*[False] * (needed - 1), True]


def test_one_is_enough_when_it_is_certain() -> None:
    assert Breaker(PATTERN, 0.0, 0.0).failed(0.0, 1.0, under_way=1000, certain=True)


def test_an_answer_to_a_call_that_left_before_the_failures_tells_nothing() -> None:
    breaker = Breaker(PATTERN, 1.0, 0.5)
    for _ in range(PATTERN.failures - 1):
        breaker.failed(0.5, 1.0, under_way=0)
    assert not breaker.answered(0.4, 1.1)
    assert breaker.failed(0.6, 1.2, under_way=0)
    breaker = Breaker(PATTERN, 1.0, 0.5)
    assert breaker.answered(0.6, 1.1), "the control: one that left after them does"


def test_each_probe_doubles_the_rest_up_to_the_longest() -> None:
    breaker, now, rests = broken(), 0.0, []
    for _ in range(7):
        rests.append(breaker.ready(now))
        now += breaker.ready(now)
        breaker.take(now)
    assert rests == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_it_is_left_alone_for_as_long_as_it_asks() -> None:
    breaker = Breaker(PATTERN, 0.0, 0.0)
    assert breaker.failed(0.0, 0.0, under_way=0, certain=True, least=75.0)
    assert breaker.ready(0.0) == 75.0
    breaker.take(75.0)
    breaker.failed(75.0, 76.0, under_way=0, least=100.0)
    assert breaker.ready(76.0) == 100.0


@pytest.mark.parametrize("former", [0, 1, 10, 100, 300, 1000])
@pytest.mark.parametrize("attempts", [0, 1])
def test_g4_probes_for_those_who_wait_are_soon_but_paid_for(former: int, attempts: int) -> None:
    """Within a minute: as many as a retry budget would allow, when they are repeats; none rests for long."""
    breaker, now, probes, longest = broken(under_way=former), 0.0, 0, 0.0
    while (now := now + breaker.ready(now)) < 60.0:
        breaker.take(now, attempts)
        probes += 1
        longest = max(longest, breaker.ready(now))
    assert probes <= (10 + 0.1 * former + 1 if attempts else 30)
    assert longest <= 6.0
    if former >= 100 or not attempts:
        assert longest <= 3.0  # so the end of an outage of a minute is seen within 3 s


def test_the_end_of_a_longer_outage_is_seen_within_a_twentieth_of_it() -> None:
    breaker, now = broken(under_way=100), 0.0
    while now < 600.0:
        now += breaker.ready(now)
        breaker.take(now, 0)
        assert breaker.ready(now) <= max(FIRST, now / 20) + 1e-9


def test_while_it_returns_calls_double_with_each_round() -> None:
    breaker, now = returning(former=100), 3.0
    for round in range(1, 5):
        out = 0
        while breaker.ready(now) == 0.0:
            breaker.take(now)
            out += 1
        assert out == 2**round
        taken = breaker._since
        for _ in range(out):
            breaker.ended(taken)
            breaker.answered(now, now)
    assert breaker.state == "returning"


def test_while_it_returns_and_answers_take_long_they_double_with_time() -> None:
    breaker, out = returning(former=100), 0
    for step in range(1, 6):
        now = 3.0 + step * ROUND
        while breaker.ready(now) == 0.0:
            breaker.take(now)
            out += 1
        assert out == 2**step + 1


def test_what_left_before_is_not_counted_as_out() -> None:
    breaker = broken(under_way=100)
    probes = [breaker.take(2.0 + n) for n in range(5)]
    breaker.answered(4.0, 8.0)
    for probe in probes:
        breaker.ended(probe)
    taken = 0
    while breaker.ready(8.0) == 0.0:
        breaker.take(8.0)
        taken += 1
    assert taken == 2


@given(st.lists(st.tuples(st.floats(0.01, 3.0), st.booleans()), min_size=1, max_size=200))
def test_one_probe_a_rest_however_many_ask(steps: list[tuple[float, Any]]) -> None:
    """Tries that nobody tells the end of (they hang, or are cancelled) are as far apart as the rest is long."""
    breaker, now, tries = broken(), 0.0, []
    for gap, waits in steps:
        now += gap
        if breaker.ready(now) == 0.0:
            breaker.take(now, 0 if waits else None)
            tries.append(now)
    assert all(later - earlier >= FIRST - 1e-9 for earlier, later in itertools.pairwise(tries))
    assert tries or now < FIRST


@given(
    st.lists(st.tuples(st.floats(0.0, 5.0), st.sampled_from(["take", "answer", "fail", "fail", "fail"])), max_size=100),
    st.integers(0, 200),
)
def test_it_never_locks_up(steps: list[tuple[float, str]], under_way: int) -> None:
    """Whatever happens, a call may leave within the longest rest."""
    breaker, now = Breaker(PATTERN, 0.0, 0.0), 0.0
    for gap, what in steps:
        now += gap
        if what == "take" and breaker.ready(now) == 0.0:
            breaker.ended(breaker.take(now))
        elif what == "answer":
            breaker.answered(now, now)
        elif what == "fail":
            breaker.failed(now, now, under_way=under_way)
        assert breaker.ready(now) <= LONGEST
    assert breaker.ready(now + LONGEST) == 0.0
