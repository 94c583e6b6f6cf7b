"""How long an upstream that fails again and again is left alone."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from siafu.pace.standing import FAILURES, FIRST_REST, LONGEST_REST, Standing


def failed(times: int = FAILURES, at: float = 0.0) -> Standing:
    standing = Standing()
    for _ in range(times):
        standing.failed(at, at)
    return standing


def test_a_few_failures_are_no_reason() -> None:
    assert failed(FAILURES - 1).rests(0.0) == 0.0
    assert failed().rests(0.0) == FIRST_REST


def test_the_one_that_begins_the_rest_says_so() -> None:
    standing = Standing()
    assert [standing.failed(0.0, 0.0) for _ in range(FAILURES + 2)] == [*[False] * (FAILURES - 1), True, False, False]


def test_what_was_under_way_does_not_lengthen_the_rest() -> None:
    standing = failed(at=1.0)
    for _ in range(100):
        standing.failed(0.5, 1.5)
    assert standing.rests(1.0) == FIRST_REST


def test_each_failed_try_doubles_the_rest_up_to_the_longest() -> None:
    standing, now, rests = failed(), 0.0, []
    for _ in range(6):
        now += standing.rests(now)
        standing.sending(now)
        standing.failed(now, now)
        rests.append(standing.rests(now))
    assert rests == [4.0, 8.0, 16.0, LONGEST_REST, LONGEST_REST, LONGEST_REST]


@given(st.lists(st.floats(0.01, 3.0), min_size=1, max_size=200))
def test_one_try_a_rest_however_many_ask(gaps: list[float]) -> None:
    """Tries that nobody tells the end of (they hang, or are cancelled) are as far apart as the rest is long."""
    standing, now, tries = failed(), 0.0, []
    for gap in gaps:
        now += gap
        if standing.rests(now) <= 0.0:
            standing.sending(now)
            tries.append(now)
    assert all(later - earlier >= FIRST_REST - 1e-9 for earlier, later in itertools.pairwise(tries))
    assert tries or now < FIRST_REST
