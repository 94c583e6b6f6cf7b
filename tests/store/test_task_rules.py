"""What is decided about tasks, without a database."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.store.task_records import (
    AGED_SHARE,
    LOOK_SECONDS,
    MOST_DELIVERIES,
    TERMINAL,
    Cancelled,
    Expired,
    Failed,
    HandedBack,
    Lapsed,
    Later,
    Succeeded,
    Task,
    aged_claims,
    first_turn,
    look_again,
    move,
)

from .task_house import new

PASSING = Failed(code="overloaded", message="m", passing=True)
VERDICTS = [Succeeded("1"), Failed(code="c", message="m"), PASSING, Later(code="p"), HandedBack(), Cancelled()]
VERDICTS += [Expired(), Lapsed()]


def task(**more: Any) -> Task:
    values = msgspec.to_builtins(new("k")) | {
        "id": "t_1", "print": "", "turn": 0, "state": "leased", "deps_left": 0, "created_at": 0.0, "ready_at": 0.0,
        "deadline_at": None, "deliveries": 1, "lapses": 0, "lease_epoch": 1, "lease_until": 10.0, "worker": "w",
        "fenced": 0,
        "cancel_requested": 0, "waits_since": None, "waits_for": "", "code": "", "message": "", "result": None,
        "ended_at": None,
    }  # fmt: skip
    return Task(**{name: values[name] for name in Task.__struct_fields__} | more)


@pytest.mark.parametrize(
    ("verdict", "more", "state", "code"),
    [
        (Succeeded("1"), {}, "succeeded", ""),
        (Succeeded("1"), {"cancel_requested": 1, "deadline_at": 1.0, "deliveries": 3}, "succeeded", ""),
        (Failed(code="c", message="m"), {}, "failed", "c"),
        (Failed(code="c", message="m"), {"cancel_requested": 1}, "failed", "c"),
        (PASSING, {}, "waiting", "overloaded"),
        (PASSING, {"deliveries": 2}, "waiting", "overloaded"),
        (PASSING, {"deliveries": 3}, "dead_letter", "overloaded"),
        (PASSING, {"cancel_requested": 1}, "cancelled", "cancelled"),
        (PASSING, {"deadline_at": 50.0}, "expired", "deadline_reached"),
        (PASSING, {"deadline_at": 50.1}, "waiting", "overloaded"),
        (Later(code="p"), {"deliveries": 3, "code": "old"}, "waiting", "old"),
        (Later(code="p", failed=True), {"deliveries": 3, "code": "old"}, "waiting", "p"),
        (Later(code="p"), {"cancel_requested": 1}, "cancelled", "cancelled"),
        (HandedBack(), {"deliveries": 3, "code": "old"}, "ready", "old"),
        (HandedBack(), {"deadline_at": 1.0}, "expired", "deadline_reached"),
        (Cancelled(), {}, "cancelled", "cancelled"),
        (Expired(), {}, "expired", "deadline_reached"),
        (Lapsed(), {}, "ready", ""),
        (Lapsed(), {"deliveries": 2, "code": "old"}, "ready", "old"),
        (Lapsed(), {"deliveries": 3}, "dead_letter", "worker_lost"),
        (Lapsed(), {"deliveries": 3, "cancel_requested": 1}, "cancelled", "cancelled"),
        (Lapsed(), {"deliveries": 3, "deadline_at": 1.0}, "expired", "deadline_reached"),
    ],
)
def test_what_becomes_of_a_task(verdict: Any, more: Any, state: str, code: str) -> None:
    decided = move(task(**more), verdict, 50.0)
    assert (decided.state, decided.code) == (state, code)


@given(
    st.sampled_from(VERDICTS),
    st.integers(1, MOST_DELIVERIES),
    st.sampled_from([0, 1]),
    st.sampled_from([None, 1.0, 99.0]),
)
def test_a_verdict_always_has_one_outcome(verdict: Any, deliveries: int, cancel: int, deadline: float | None) -> None:
    row = task(deliveries=deliveries, cancel_requested=cancel, deadline_at=deadline)
    decided = move(row, verdict, 50.0)
    assert decided.state in (*TERMINAL, "ready", "waiting")
    begins_again = decided.state not in TERMINAL
    assert not (begins_again and (cancel or deadline == 1.0)), "what was cancelled or is too late begins again"
    assert not (begins_again and decided.counted and deliveries >= MOST_DELIVERIES), "a fourth delivery"
    assert decided.state != "succeeded" or decided.result is not None


@given(st.integers(0, 10_000), st.lists(st.integers(1, 50), max_size=50))
def test_one_claim_in_eight_is_the_oldests_however_they_are_cut_up(before: int, sizes: list[int]) -> None:
    total, given_ = sum(sizes), 0
    for size in sizes:
        part = aged_claims(before, size)
        assert 0 <= part <= size
        given_, before = given_ + part, before + size
    assert abs(given_ - total / AGED_SHARE) < 1


@given(st.floats(0, 1e7))
def test_looks_at_what_waits_get_rarer(waited: float) -> None:
    assert LOOK_SECONDS[0] <= look_again(waited) <= LOOK_SECONDS[1]
    assert look_again(waited) <= look_again(waited + 60)


@given(st.integers(1, 60), st.integers(0, 59), st.integers(1, 60), st.booleans())
def test_two_tenants_take_turns_whenever_the_second_comes(first: int, served: int, second: int, idle: bool) -> None:
    """So many of the `first` tasks of one tenant are served when another submits `second`. idle: nothing is leased."""
    served = min(served, first - 1)
    waiting = [(tag, "a") for tag in range(served, first)]
    start = first_turn(None, waiting[0][0], None if idle or not served else served - 1, first - 1)
    order = [who for _, who in sorted(waiting + [(start + n, "b") for n in range(second)])]
    both = min(second, first - served)
    for end in range(2 * both + 1):
        assert abs(order[:end].count("a") - order[:end].count("b")) <= 2


def test_the_tag_of_one_who_comes_back_is_that_of_now_or_the_next_of_its_own() -> None:
    assert first_turn(None, None, None, None) == 0
    assert first_turn(7, None, None, 7) == 8
    assert first_turn(7, None, None, 90) == 90
    assert first_turn(7, None, 50, 90) == 50
    assert first_turn(7, 20, 50, 90) == 20  # what is served had waited for long, and went before its turn
    assert first_turn(70, 20, 50, 90) == 71
