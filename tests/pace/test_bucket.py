from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.pace.bucket import Bucket

EDGE = 1e-5


def most_in_a_window(times: list[float], window: float) -> int:
    return max((sum(start <= t <= start + window for t in times) for start in times), default=0)


class Careless(Bucket):
    """The mistake that the property must find: it forgets what it granted."""

    def take(self, now: float) -> tuple[float, float]:
        self._next = now
        return now, now


def run(bucket: Bucket, gaps: list[float], unused: list[bool]) -> list[float]:
    """Ask at random times; some grants are given back unused. Returns when requests left."""
    now, sent = 1_000_000.0, []
    for gap, back in zip(gaps, unused, strict=True):
        now += gap
        now += bucket.ready(now)
        grant = bucket.take(now)
        if back:
            bucket.undo(grant)
        else:
            sent.append(now)
    return sent


def keeps_the_limit(sent: list[float], rate: float, burst: int) -> bool:
    return all(most_in_a_window(sent, w) <= rate * w + burst + EDGE for w in (0.0, 0.5 / rate, 1 / rate, 3 / rate, 1.0))


schedules = st.lists(st.tuples(st.floats(0, 3), st.booleans()), min_size=1, max_size=60)


@settings(max_examples=300)
@given(st.floats(0.1, 500), st.integers(1, 20), schedules)
def test_g12_grants_in_any_window_stay_below_rate_times_window_plus_burst(
    rate: float, burst: int, schedule: list[tuple[float, bool]]
) -> None:
    sent = run(Bucket(rate, burst), [gap / rate for gap, _ in schedule], [back for _, back in schedule])
    assert keeps_the_limit(sent, rate, burst)


def test_the_property_finds_a_careless_bucket() -> None:
    sent = run(Careless(1.0, 2), [0.0] * 10, [False] * 10)
    assert not keeps_the_limit(sent, 1.0, 2)


@pytest.mark.parametrize("burst", [1, 5])
def test_a_bucket_gives_all_it_may(burst: int) -> None:
    sent = run(Bucket(10.0, burst), [0.0] * 50, [False] * 50)
    assert sent[-1] - sent[0] == pytest.approx((50 - burst) / 10)


def test_undo_gives_the_place_back_only_while_nothing_builds_on_it() -> None:
    bucket = Bucket(1.0)
    first = bucket.take(100.0)
    bucket.undo(first)
    assert bucket.ready(100.0) == 0.0
    first = bucket.take(100.0)
    bucket.take(105.0)
    bucket.undo(first)
    assert bucket.ready(105.0) == pytest.approx(1.0)
