from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from siafu.pace.allowance import Allowance


@given(st.lists(st.booleans(), max_size=400))
def test_repeats_stay_below_a_tenth_of_first_tries_plus_ten(steps: list[bool]) -> None:
    allowance = Allowance()
    first = repeats = 0
    for is_first in steps:
        if is_first:
            allowance.earn()
            first += 1
        else:
            repeats += allowance.spend()
        assert repeats <= 0.1 * first + 10 + 1e-6


def test_a_long_good_time_saves_nothing_up() -> None:
    allowance = Allowance()
    for _ in range(10_000):
        allowance.earn()
    assert sum(allowance.spend() for _ in range(1000)) == 10


def test_ten_first_tries_pay_for_one_repeat() -> None:
    allowance = Allowance(purse=1)
    assert allowance.spend() and not allowance.spend()
    for _ in range(10):
        allowance.earn()
    assert allowance.spend() and not allowance.spend()
