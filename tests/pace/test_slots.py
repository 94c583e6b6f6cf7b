"""A worker's slots follow the work and the endpoint's limit, with patience."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.pace.slots import GROW, PATIENCE, Slots

LOOK = 2.0  # seconds


def play(slots: Slots, seconds: float, *, tasks: int, limit: float, at: float = 0.0, noise: int = 0) -> list[int]:
    """So many tasks are there all the time, and so many calls may be under way. Returns every count."""
    rng, found = Random(7), []
    for look in range(int(seconds / LOOK)):
        busy = min(slots.count, tasks)
        free = limit + rng.randint(-noise, noise) if noise else limit
        waiting = int(max(0, busy - free))
        found.append(slots.look(at + look * LOOK, ready=tasks - busy, busy=busy, waiting=waiting))
    return found


def turns(counts: list[int]) -> int:
    """How often it changed its direction."""
    steps = [b - a for a, b in itertools.pairwise(counts) if a != b]
    return sum((a > 0) != (b > 0) for a, b in itertools.pairwise(steps))


def test_a_backlog_takes_it_to_the_top_by_doubling() -> None:
    slots = Slots(8, 256)
    counts = play(slots, 20, tasks=1000, limit=math.inf)
    assert counts[:6] == [16, 32, 64, 128, 256, 256]


@pytest.mark.parametrize(("start", "found"), [(None, 8), (50, 50), (1, 8), (900, 256)])
def test_it_begins_where_it_is_told_within_its_bounds(start: int | None, found: int) -> None:
    assert Slots(8, 256, start).count == found


def test_two_looks_at_once_are_one_step() -> None:
    slots = Slots(8, 256)
    slots.look(0.0, ready=9, busy=8, waiting=0)
    assert slots.look(GROW / 2, ready=9, busy=16, waiting=0) == 16
    assert slots.look(GROW, ready=9, busy=16, waiting=0) == 32


@pytest.mark.parametrize(
    ("ready", "busy", "waiting"),
    [(0, 8, 0), (50, 7, 0), (50, 8, 1)],
    ids=["nothing waits for a slot", "a slot is free", "calls wait for the endpoint"],
)
def test_it_grows_only_when_more_slots_would_be_of_use(ready: int, busy: int, waiting: int) -> None:
    slots = Slots(8, 256)
    assert {slots.look(n * LOOK, ready=ready, busy=busy, waiting=waiting) for n in range(100)} == {8}


def test_it_finds_the_limit_of_the_endpoint_and_stays_there() -> None:
    counts = play(Slots(8, 256), 1800, tasks=1000, limit=100)
    assert max(counts) == 128 and 100 <= counts[-1] <= 115
    assert len(set(counts[100:])) == 1 and turns(counts) == 1


def test_an_outage_does_not_make_it_grow() -> None:
    assert set(play(Slots(8, 256), 600, tasks=1000, limit=0)) == {8}


def test_idle_slots_are_given_back_slowly_and_a_short_lull_costs_none() -> None:
    slots = Slots(8, 256)
    play(slots, 60, tasks=1000, limit=math.inf)
    assert set(play(slots, PATIENCE - 2 * LOOK, tasks=0, limit=math.inf, at=60)) == {256}
    counts = play(slots, 1200, tasks=0, limit=math.inf, at=90)
    assert counts[-1] == 8 and turns(counts) == 0
    assert all(before - after <= max(1, before // 8) for before, after in itertools.pairwise(counts))


def test_after_an_idle_time_it_grows_as_fast_as_before() -> None:
    slots = Slots(8, 256)
    play(slots, 60, tasks=1000, limit=math.inf)
    play(slots, 1200, tasks=0, limit=math.inf, at=60)
    assert play(slots, 20, tasks=1000, limit=math.inf, at=1260)[-1] == 256


def test_a_limit_that_is_raised_is_found_again() -> None:
    slots = Slots(8, 256)
    assert play(slots, 1200, tasks=1000, limit=40)[-1] < 50
    assert play(slots, 900, tasks=1000, limit=math.inf, at=1200)[-1] == 256


@given(
    least=st.integers(1, 20),
    most=st.integers(1, 500),
    tasks=st.integers(0, 600),
    limit=st.integers(0, 600),
    noise=st.integers(0, 5),
)
def test_whatever_the_load_it_stays_within_its_bounds_and_settles(
    least: int, most: int, tasks: int, limit: int, noise: int
) -> None:
    slots = Slots(least, most)
    counts = play(slots, 3600, tasks=tasks, limit=limit, noise=noise)
    assert all(slots.least <= count <= slots.most for count in counts)
    late = counts[len(counts) // 2 :]
    assert max(late) - min(late) <= max(noise + 2, max(late) // 3)


@pytest.mark.parametrize("forgetful", [False, True])
def test_the_threshold_keeps_it_still_where_calls_queue_up(forgetful: bool) -> None:
    """Also as a check that can fail: without the threshold the slots swing for ever."""
    slots, counts = Slots(8, 256), []
    for look in range(3600):
        if forgetful:
            slots._threshold = math.inf
        busy = slots.count
        counts.append(slots.look(look * LOOK, ready=9, busy=busy, waiting=busy - 33 if busy > 40 else 0))
    assert (max(counts[1000:]) - min(counts[1000:]) > 20) == forgetful
