from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.pace.bucket import EPSILON
from siafu.pace.tokens import Estimate, Reserved, TokenBucket

call = st.tuples(
    st.floats(0, 8),  # seconds since the call before asked
    st.integers(1, 100),  # tokens it uses
    st.integers(0, 100),  # tokens by which it was overestimated
    st.floats(0, 30),  # seconds until it ends
)


def run(bucket: TokenBucket, calls: list[tuple[float, int, int, float]]) -> list[tuple[float, int]]:
    """When each call left, one after the other, and what it used in the end."""
    now = 0.0
    left: list[tuple[float, int]] = []
    open_calls: list[tuple[float, int, int, Reserved]] = []
    for pause, used, over, seconds in calls:
        now += pause
        while True:
            for entry in sorted(e for e in open_calls if e[0] <= now):
                bucket.settle(entry[3], entry[2], entry[0])
                open_calls.remove(entry)
            wait = bucket.ready(now, used + over)
            if wait == 0.0:
                break
            now = min([now + wait, *(e[0] for e in open_calls if e[0] > now)])
        open_calls.append((now + seconds, len(left), used, bucket.take(now, used + over)))
        left.append((now, used))
    return left


def breaks(left: list[tuple[float, int]], rate: float, burst: float) -> bool:
    for i, (start, _) in enumerate(left):
        used = 0
        for at, tokens in left[i:]:
            used += tokens
            if used > rate * (at - start) + burst + 1e-3:
                return True
    return False


@settings(max_examples=400, deadline=None)
@given(st.floats(1, 50), st.lists(call, min_size=1, max_size=40))
def test_g12_what_calls_used_keeps_the_limit_in_every_window(
    rate: float, calls: list[tuple[float, int, int, float]]
) -> None:
    assert not breaks(run(TokenBucket(rate, 200), calls), rate, 200)


def test_giving_everything_back_would_break_it() -> None:
    class Generous(TokenBucket):
        def settle(self, reserved, used, now):  # type: ignore[no-untyped-def]
            self._full_at -= (reserved.tokens - used) * self._interval

    calls = [(0.0, 1, 199, 190.0), (189.0, 180, 0, 500.0), (1.0, 180, 0, 500.0)]
    assert breaks(run(Generous(1.0, 200), calls), 1.0, 200)
    assert not breaks(run(TokenBucket(1.0, 200), calls), 1.0, 200)


def test_what_a_call_did_not_use_comes_back() -> None:
    bucket = TokenBucket(1.0, 100)
    reserved = bucket.take(0.0, 100)
    assert bucket.ready(0.0, 90) == pytest.approx(90)
    bucket.settle(reserved, 10, 0.5)
    assert bucket.ready(0.5, 90) == 0.0
    assert bucket.ready(0.5, 100) == pytest.approx(9.5)


def test_what_a_call_used_beyond_is_owed() -> None:
    bucket = TokenBucket(1.0, 100)
    bucket.settle(bucket.take(0.0, 50), 150, 1.0)
    assert bucket.ready(1.0, 1) == pytest.approx(50)


def test_a_call_larger_than_the_burst_leaves_when_the_bucket_is_full_and_owes_the_rest() -> None:
    bucket = TokenBucket(1.0, 100)
    assert bucket.ready(0.0, 500) == 0.0
    bucket.take(0.0, 500)
    assert bucket.ready(0.0, 100) == pytest.approx(500)
    assert bucket.ready(500.0, 100) < EPSILON or math.isclose(bucket.ready(500.0, 100), 0.0)


def test_an_estimate_begins_with_the_bytes_and_learns() -> None:
    estimate = Estimate()
    assert estimate.tokens(1000, 50) == 1051
    assert estimate.tokens(1000, None) == 1501
    for _ in range(100):
        estimate.learn(1000, 250, 20)
    assert estimate.tokens(1000, 50) == pytest.approx(271, abs=3)
    assert estimate.tokens(4000, 10) == pytest.approx(1011, abs=3)
    for n in range(100):
        estimate.learn(1000, 250, 10 if n % 2 else 30)
    assert 271 < estimate.tokens(1000, None) <= 300, "two mean deviations above the mean"
