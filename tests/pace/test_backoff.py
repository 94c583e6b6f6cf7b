from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from siafu.pace.backoff import full_jitter


@given(st.integers(1, 10**6), st.integers())
def test_full_jitter_stays_between_zero_and_the_cap(attempt: int, seed: int) -> None:
    assert 0 <= full_jitter(attempt, Random(seed), base=0.5, cap=30) <= min(30, 0.5 * 2 ** min(attempt - 1, 30))


def test_full_jitter_spreads_over_the_whole_range() -> None:
    rng = Random(1)
    waits = [full_jitter(3, rng, base=0.5, cap=30) for _ in range(1000)]
    assert min(waits) < 0.1 and max(waits) > 1.9
