"""The judgement, by tables. Each column is shown to be able to fail."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from siafu.bench.demo.account import IN_FLIGHT_SECONDS, Column, Evidence, Notes, ToolCall, judge, unexplained
from siafu.bench.demo.payouts import Refunds
from siafu.bench.demo.seen import Seen
from siafu.gateway.chat import Usage

KILL = 100.0
MODEL = "m"


def call(at: float, request: str | None = "r1", question: str = "q1", **changes: Any) -> Seen:
    """A complete answer to `question` that came at `at` and took a second, unless `changes` say otherwise."""
    values: dict[str, Any] = {
        "request": request,
        "question": question,
        "model": MODEL,
        "arrived": at,
        "ended": at + 1,
        "status": 200,
        "usage": Usage(input=100, output=10),
        "service_seconds": 1.0,
        "complete": True,
        "wants_tools": False,
        "final": True,
    }
    return Seen(**{**values, **changes})


REFUSED: dict[str, Any] = {"status": 429, "usage": None, "complete": False, "final": False, "service_seconds": 0.0}
CUT: dict[str, Any] = {"ended": KILL + 0.01, "complete": False, "final": False}
COST = 100 + 10
PAID = Refunds(due=1, paid=1, waiting=0, unpaid=0, twice=0, wrongly=0, unapproved=0)


def price(model: str, usage: Usage) -> int | None:
    return usage.input + usage.output if model == MODEL else None


def known(*calls: Seen) -> Notes:
    """The cost records of a program that wrote down each of these."""
    usages = [found.usage for found in calls if found.usage is not None]
    return Notes(known=Counter((MODEL, usage.input, usage.cached, usage.output) for usage in usages))


def column(*calls: Seen, notes: Notes | None = None, **changes: Any) -> Column:
    values: dict[str, Any] = {
        "requests": ["r1"],
        "calls": calls,
        "killed_at": KILL,
        "answers": {"r1": 1},
        "tool_calls": [],
        "refunds": PAID,
        "notes": known(*calls) if notes is None else notes,
        "wall": 3.0,
    }
    return judge(Evidence(**{**values, **changes}), price)


def test_work_done_once_is_clean() -> None:
    found = column(call(90.0))
    assert found.clean
    assert (found.answered, found.lost, found.run_twice, found.wasted, found.usd_pico) == (1, 0, 0, 0, COST)


@pytest.mark.parametrize(
    ("answers", "calls", "lost"),
    [
        ({"r1": 1}, [call(90.0)], 0),
        ({}, [call(90.0)], 1),  # the endpoint answered, the program lost it
        ({"r1": 2}, [call(90.0)], 1),  # which of the two lines is the answer?
        ({"r1": 1}, [call(90.0, wants_tools=True, final=False)], 1),  # the program made it up
        ({"r1": 1}, [call(90.0, request=None)], 1),
        ({"r2": 1}, [call(90.0)], 1),
    ],
)
def test_lost(answers: dict[str, int], calls: list[Seen], lost: int) -> None:
    found = column(*calls, answers=answers)
    assert (found.answered, found.lost) == (1 - lost, lost)
    assert found.clean == (lost == 0)


@pytest.mark.parametrize(
    ("calls", "twice"),
    [
        ([call(90.0)], 0),
        ([call(90.0), call(105.0)], 1),
        ([call(90.0), call(105.0, **REFUSED)], 1),  # to ask again is enough
        ([call(90.0), call(105.0, "r2", "q2")], 0),  # another request
        ([call(90.0, final=False), call(105.0, question="q2")], 0),  # half done before the kill, finished after it
        ([call(KILL - 1 - IN_FLIGHT_SECONDS / 2), call(105.0)], 0),  # given at the last moment: perhaps not read
        ([call(KILL - 0.5), call(105.0)], 0),  # open at the kill
    ],
)
def test_run_twice(calls: list[Seen], twice: int) -> None:
    assert column(*calls).run_twice == twice


@pytest.mark.parametrize(
    ("calls", "wasted", "in_flight"),
    [
        ([call(90.0), call(92.0, question="q2")], 0, 0),
        ([call(90.0), call(105.0)], 1, 0),
        ([call(90.0), call(105.0), call(107.0)], 2, 0),
        ([call(KILL - 0.5, **CUT), call(105.0)], 1, 1),  # cut off by the kill
        ([call(KILL - 0.5, **CUT, usage=None, status=0), call(105.0)], 0, 1),  # cut off before anything was billed
        ([call(KILL - 0.5, **CUT)], 1, 1),  # never asked again: billed for nothing
        ([call(90.0, **REFUSED), call(91.0)], 0, 0),  # a refusal costs nothing
        ([call(90.0, **{**REFUSED, "status": 500}), call(91.0)], 0, 0),
    ],
)
def test_wasted_calls(calls: list[Seen], wasted: int, in_flight: int) -> None:
    found = column(*calls)
    assert (found.wasted, found.wasted_pico, found.in_flight) == (wasted, wasted * COST, in_flight)


def test_more_wasted_calls_than_in_flight_are_not_clean() -> None:
    assert not column(call(90.0), call(KILL - 5, question="q2", final=False), call(95.0, question="q2")).clean
    assert column(call(90.0), call(KILL - 0.5, "r2", "q2", **CUT), call(105.0, "r2", "q2")).clean


def test_refusals_and_failures_are_counted_apart() -> None:
    found = column(call(90.0, **REFUSED), call(91.0, **{**REFUSED, "status": 503}), call(92.0))
    assert (found.calls, found.refused, found.failed, found.wasted) == (3, 1, 1, 0)


@pytest.mark.parametrize(
    ("notes", "left"),
    [
        (known(call(90.0)), 0),
        (Notes(known=Counter()), COST),  # nothing written down
        (Notes(known=Counter({(MODEL, 100, 0, 11): 1})), COST),  # of another call
        (Notes(known=Counter({("other", 100, 0, 10): 1})), COST),
        (Notes(known=Counter({(MODEL, 100, 0, 10): 5})), 0),
        (Notes(known=Counter(), unknown=[(MODEL, COST)]), 0),  # its usage was never learned, but it was known of
        (Notes(known=Counter(), unknown=[(MODEL, COST - 1)]), COST),  # costs more than was allowed for
        (Notes(known=Counter(), unknown=[("other", 10 * COST)]), COST),
    ],
)
def test_what_is_not_explained(notes: Notes, left: int) -> None:
    found = column(call(90.0), notes=notes)
    assert found.unexplained_pico == left
    assert found.clean == (left == 0)


def test_each_line_explains_one_call() -> None:
    calls = [call(90.0), call(91.0, question="q2")]
    assert unexplained(calls, known(calls[0]), price) == COST
    assert unexplained(calls, Notes(known=Counter(), unknown=[(MODEL, COST)]), price) == COST


def test_cheap_calls_leave_the_large_lines_to_the_dear_ones() -> None:
    dear = call(91.0, usage=Usage(input=1000, output=0))
    lines = [(MODEL, 2000), (MODEL, COST)]
    assert unexplained([call(90.0), dear], Notes(known=Counter(), unknown=lines), price) == 0


def test_a_model_without_a_price_makes_amounts_unknown_not_zero() -> None:
    found = column(call(90.0, model="new"), notes=Notes(known=Counter()))
    assert found.usd_pico is None and found.unexplained_pico is None
    assert not found.clean


@pytest.mark.parametrize(
    ("times", "twice"),
    [
        ([90.0], 0),
        ([90.0, 91.0], 0),  # what a program needs to do twice is its own affair
        ([90.0, 105.0], 1),
        ([90.0, 91.0, 105.0], 1),
        ([90.0, 91.0, 105.0, 106.0], 2),
        ([105.0, 106.0], 0),
        ([KILL - IN_FLIGHT_SECONDS / 2, 105.0], 0),  # its answer was perhaps not read
    ],
)
def test_tool_calls_made_twice(times: list[float], twice: int) -> None:
    calls = [ToolCall(what=("kim", "get_order_status", "a"), at=at) for at in times]
    other = ToolCall(what=("lee", "get_order_status", "a"), at=106.0)
    found = column(call(90.0), tool_calls=[*calls, other])
    assert (found.tool_calls, found.tool_calls_twice) == (len(times) + 1, twice)


@pytest.mark.parametrize("wrong", ["unpaid", "twice", "wrongly", "unapproved"])
def test_refunds_that_are_not_as_they_should_be_are_not_clean(wrong: str) -> None:
    assert column(call(90.0), refunds=replace(PAID, waiting=1)).clean
    assert not column(call(90.0), refunds=replace(PAID, **{wrong: 1})).clean
