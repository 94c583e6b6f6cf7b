"""The window: bounded, by priority, first come first served, in order when asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from siafu.swarm.window import Window


def test_a_full_window_takes_no_more() -> None:
    window: Window[str, str] = Window(2)
    assert [window.enter(), window.enter(), window.room] == [0, 1, 0]
    with pytest.raises(OverflowError, match="holds 2"):
        window.enter()


@given(st.lists(st.integers(1, 3), max_size=30))
def test_the_smallest_priority_goes_first_and_within_it_the_first_read(priorities: list[int]) -> None:
    window: Window[tuple[int, int], str] = Window(30)
    for priority in priorities:
        index = window.enter()
        window.wait(index, priority, (priority, index))
    left = [window.next() for _ in priorities]
    assert left == sorted((p, i) for i, p in enumerate(priorities))
    assert window.next() is None


@given(st.permutations(range(8)))
def test_ordered_results_come_in_the_order_of_the_items(finishing: list[int]) -> None:
    window: Window[int, int] = Window(8, ordered=True)
    for _ in range(8):
        window.enter()
    taken = []
    for index in finishing:
        window.finish(index, index)
        while (result := window.take()) is not None:
            taken.append(result)
        assert taken == list(range(len(taken)))
    assert taken == list(range(8))


@pytest.mark.parametrize("ordered", [False, True])
def test_an_item_that_gets_no_result_frees_its_place(ordered: bool) -> None:
    window: Window[int, int] = Window(3, ordered=ordered)
    for index in range(3):
        window.enter()
        window.finish(index, index if index == 2 else None)
    assert (window.take(), window.held, window.take()) == (2, 0, None)


def test_a_closed_window_gives_out_what_waited_for_a_turn_that_never_comes() -> None:
    window: Window[int, int] = Window(5, ordered=True)
    for _ in range(5):
        window.enter()
    for index in (4, 2):
        window.finish(index, index)
    assert window.take() is None
    window.close()
    assert [window.take(), window.take(), window.take()] == [2, 4, None]


class Life(RuleBasedStateMachine):
    """Random lives of a window, beside a plain model of it."""

    def __init__(self) -> None:
        super().__init__()
        self.window: Window[int, int] = Window(5)
        self.waiting: list[tuple[int, int]] = []
        self.working: list[int] = []
        self.finished: list[int] = []

    @precondition(lambda self: self.window.room > 0)
    @rule(priority=st.integers(1, 3))
    def read(self, priority: int) -> None:
        index = self.window.enter()
        self.window.wait(index, priority, index)
        self.waiting.append((priority, index))

    @rule()
    def work(self) -> None:
        index = self.window.next()
        self.waiting.sort()
        assert index == (self.waiting.pop(0)[1] if self.waiting else None)
        if index is not None:
            self.working.append(index)

    @precondition(lambda self: self.working)
    @rule(pick=st.integers(0, 4))
    def finish(self, pick: int) -> None:
        index = self.working.pop(pick % len(self.working))
        self.window.finish(index, index)
        self.finished.append(index)

    @rule()
    def take(self) -> None:
        assert self.window.take() == (self.finished.pop(0) if self.finished else None)

    @invariant()
    def bounded(self) -> None:
        held = len(self.waiting) + len(self.working) + len(self.finished)
        assert held == self.window.held <= 5
        assert self.window.room == 5 - held


TestLife = Life.TestCase
