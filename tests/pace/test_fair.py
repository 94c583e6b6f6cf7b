from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from siafu.pace.fair import REMEMBERED, FairQueue

_count = itertools.count()


def queue(gone: set[str] | None = None) -> FairQueue[str]:
    left = gone if gone is not None else set()
    return FairQueue(lambda item: item in left)


def push(held: FairQueue[str], item: str, who: str, priority: int = 2, since: float | None = None) -> None:
    at = float(next(_count)) if since is None else since
    held.push(item, priority=priority, who=who, since=at, fresh=since is None)


def serve(held: FairQueue[str], count: int, cost: dict[str, float], priority: int = 2) -> list[str]:
    served = []
    for _ in range(count):
        item = held.peek()
        assert item is not None
        held.pop(priority, cost[item[0]])
        served.append(item)
    return served


def test_one_who_has_nobody_beside_goes_in_order() -> None:
    held = queue()
    for n in range(5):
        push(held, f"a{n}", "a")
    assert serve(held, 5, {"a": 0}) == ["a0", "a1", "a2", "a3", "a4"]
    assert held.peek() is None and held.held == 0


def test_shares_are_equal_in_tokens_not_in_calls() -> None:
    held = queue()
    for n in range(300):
        push(held, f"a{n}", "a")
    for n in range(300):
        push(held, f"b{n}", "b")
    given_to = Counter(item[0] for item in serve(held, 220, {"a": 1000, "b": 100}))
    assert given_to["a"] == 20 and given_to["b"] == 200


def test_who_comes_late_is_not_owed_the_past_and_does_not_wait_for_the_others() -> None:
    held = queue()
    for n in range(100):
        push(held, f"a{n}", "a")
    push(held, "c0", "c")
    serve(held, 41, {"a": 10, "c": 10})
    for n in range(100):
        push(held, f"b{n}", "b")
    later = serve(held, 20, {"a": 10, "b": 10})
    assert 9 <= Counter(item[0] for item in later)["b"] <= 11


def test_asking_one_by_one_wins_nothing() -> None:
    held = queue()
    for n in range(50):
        push(held, f"a{n}", "a")
    served = []
    for n in range(40):
        push(held, f"b{n}", "b")  # always one in line, never two
        served += serve(held, 1, {"a": 10, "b": 30})
        while held.peek() is not None and "b" in {item[0] for item in held}:
            served += serve(held, 1, {"a": 10, "b": 30})
            if len(served) > 40:
                break
        if len(served) > 40:
            break
    found = Counter(item[0] for item in served[:40])
    assert 28 <= found["a"] <= 32


def test_priority_comes_before_turns() -> None:
    held = queue()
    push(held, "a0", "a", priority=2)
    push(held, "b0", "b", priority=3)
    push(held, "c0", "c", priority=1)
    assert serve(held, 1, {"c": 1}, priority=1) == ["c0"]
    assert serve(held, 1, {"a": 1}, priority=2) == ["a0"]
    assert serve(held, 1, {"b": 1}, priority=3) == ["b0"]


def test_a_call_that_was_refused_keeps_its_place() -> None:
    held = queue()
    push(held, "a1", "a", since=None)
    push(held, "a0", "a", since=-5.0)
    assert serve(held, 2, {"a": 0}) == ["a0", "a1"]


def test_who_left_is_passed_over_and_forgotten() -> None:
    gone: set[str] = set()
    held = queue(gone)
    for n in range(10):
        push(held, f"a{n}", "a")
        push(held, f"b{n}", "b")
    gone |= {f"a{n}" for n in range(10)}
    held.prune()
    assert held.held == 10
    assert serve(held, 10, {"b": 1}) == [f"b{n}" for n in range(10)]


def test_memory_of_runs_that_are_over_is_bounded() -> None:
    held = queue()
    for n in range(3 * REMEMBERED):
        push(held, f"x{n}", f"run{n}")
        push(held, f"y{n}", "y")
        serve(held, 2, {"x": 5, "y": 5})
    assert len(held._classes[2].given) <= REMEMBERED + 1


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3), st.booleans(), st.booleans()), max_size=80),
    st.integers(1, 50),
)
def test_everybody_is_served_exactly_once(steps: list[tuple[str, int, bool, bool]], cost: int) -> None:
    gone: set[str] = set()
    held, pushed, served = queue(gone), dict[str, int](), list[str]()
    for n, (who, priority, leaves, serve_now) in enumerate(steps):
        item = f"{who}{n}"
        push(held, item, who, priority)
        pushed[item] = priority
        if leaves:
            gone.add(item)
        if serve_now and (best := held.peek()) is not None:
            held.pop(pushed[best], cost)
            served.append(best)
    while (best := held.peek()) is not None:
        held.pop(pushed[best], cost)
        served.append(best)
    assert sorted(served) == sorted(set(pushed) - gone)
    assert held.held == 0
