"""Which side of a canary a call is on, where it may go from there, and what is counted of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.errors import RateLimited, UpstreamFault
from siafu.gateway.canary import Split, place_of, side, user_of
from siafu.gateway.chat import ChatRequest
from siafu.gateway.routing import Rule, Target, target
from siafu.gateway.tally import MOST_TASKS, Tally
from siafu.gateway.verdict import quantile
from siafu.observe.calls import CallContext
from siafu.observe.events import AttemptEnded, Hedged
from siafu.store.canary_records import Canary, Numbers, Plan, State
from siafu.store.records import HEDGE_LOST

from .conftest import ASK
from .test_routed import Fleet, answers, fails

STAGES = (5, 25, 50, 100)


def salt_with(inside: str, outside: str) -> str:
    """One by which the first user is among 5 %, and the other not among 50 %."""
    salts = map(str, range(10_000))
    return next(salt for salt in salts if place_of(salt, inside) < 5 and place_of(salt, outside) >= 50)


SALT = salt_with("in", "out")


def canary(old: str = "@legacy", new: str = "@new", state: State = "running", **fields: Any) -> Canary:
    stages = fields.pop("stages", STAGES)
    plan = Plan(old=old, new=new, salt=SALT, stages=stages, window_seconds=60.0, min_samples=10)
    return Canary(id=fields.pop("id", 7), plan=plan, state=state, **fields)


@given(st.text(max_size=40), st.text(max_size=10))
def test_f59_who_is_in_a_stage_stays_in_all_later_ones(user: str, salt: str) -> None:
    in_stage = [place_of(salt, user) < percent for percent in STAGES]
    assert in_stage == sorted(in_stage) and in_stage[-1]
    assert place_of(salt, user) == place_of(salt, user)


def test_users_are_spread_evenly_and_anew_by_each_salt() -> None:
    users = [f"고객-{n}" for n in range(20_000)]
    counts = Counter(place_of("a", user) for user in users)
    assert set(counts) == set(range(100))
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 149  # chi-squared, 99 degrees: p = 0.001
    both = sum(place_of("a", user) < 25 and place_of("b", user) < 25 for user in users)
    assert 1050 < both < 1450  # 1,250 when the salts are independent


@pytest.mark.parametrize(
    ("context", "extra", "user"),
    [
        ({"user": "kim", "task": "t"}, {"user": "other"}, "kim"),
        ({"task": "t"}, {"user": "다른"}, "다른"),
        ({"task": "t"}, {"user": msgspec.Raw('"다른"'.encode())}, "다른"),
        ({"task": "t"}, {"user": msgspec.Raw(b'{"id": 1}')}, "t"),
        ({"task": "t"}, {"user": ""}, "t"),
        ({"task": "t"}, {}, "t"),
    ],
)
def test_a_user_is_known_by_the_best_name_there_is(context: Any, extra: Any, user: str) -> None:
    request = ChatRequest(model="m", messages=[], extra=extra)
    assert user_of(request, CallContext(**context)) == user


NEW, REST, OLD = Target("m", "new"), Target("m", "", ("new",)), Target("m", "legacy")
SMALL = ("big", "small")


@pytest.mark.parametrize(
    ("made", "wanted", "chosen", "others"),
    [
        (canary(), "m", [NEW, REST], [REST]),
        (canary(), "m@legacy", [NEW, OLD], [OLD]),
        (canary(), "m@new", [NEW], [NEW]),  # a route that names it wants it
        (canary(), "m@third", [Target("m", "third")], [Target("m", "third")]),
        (canary(), "only-legacy", [Target("only-legacy")], [Target("only-legacy")]),
        (canary(new="@gone"), "m", [Target("m")], [Target("m")]),
        (canary(state="promoted"), "m", [NEW, REST], [NEW, REST]),
        (canary(state="rolled_back"), "m", [REST], [REST]),
        (canary(state="rolled_back"), "m@new", [NEW], [NEW]),
        (canary(state="retired"), "m", [Target("m", "", ("legacy",))], [Target("m", "", ("legacy",))]),
        (canary(state="retired"), "m@legacy", [NEW], [NEW]),
        (canary(*SMALL), "big", [Target("small"), Target("big")], [Target("big")]),
        (canary(*SMALL), "big@third", [Target("small", "third"), Target("big", "third")], [Target("big", "third")]),
        (canary(*SMALL), "small", [Target("small")], [Target("small")]),
        (canary(*SMALL, state="rolled_back"), "big", [Target("big")], [Target("big")]),
        (canary(*SMALL, state="retired"), "big", [Target("small")], [Target("small")]),
        (canary("big@legacy", "big@new"), "big", [Target("big")], [Target("big")]),
        (
            canary("big@legacy", "small"),
            "big@legacy",
            [Target("small"), Target("big", "legacy")],
            [Target("big", "legacy")],
        ),
    ],
)
def test_where_calls_may_go(made: Canary, wanted: str, chosen: list[Target], others: list[Target]) -> None:
    def offered(each: Target) -> bool:
        return each.upstream != "gone" and (each.model != "only-legacy" or each.upstream in ("", "legacy"))

    found = {}
    for user in ("in", "out"):
        targets = Split([made]).targets([target(wanted)], ASK, CallContext(user=user), offered)
        found[user] = [msgspec.structs.replace(each, bucket="") for each in targets]
    assert (found["in"], found["out"]) == (chosen, others)


def test_what_took_part_in_an_ended_canary_comes_back_with_the_next() -> None:
    lost, again = canary(state="rolled_back"), canary(id=8)
    other = canary(new="@third", id=8)
    away = CallContext(user="in")
    assert Split([lost, again]).targets([Target("m")], ASK, away, lambda _: True)[0].upstream == "new"
    found = Split([lost, other]).targets([Target("m")], ASK, away, lambda _: True)
    assert [(each.upstream, each.but_not) for each in found] == [("third", ()), ("", ("new", "third"))]


def test_retired_models_lead_on_to_their_heirs() -> None:
    ends = [canary("a", "b", state="retired"), canary("b", "c", state="retired", id=8)]
    assert Split(ends).targets([Target("a")], ASK, CallContext(), lambda _: True) == (Target("c"),)


@pytest.mark.parametrize(
    ("text", "found"), [("@legacy", Target("", "legacy")), ("m@u", Target("m", "u")), ("m", Target("m"))]
)
def test_a_side_is_an_upstream_or_a_model(text: str, found: Target) -> None:
    assert side(text) == found


# Through the onion.


def divided(*lanes: Any, made: Canary, rules: list[Rule] | None = None) -> Fleet:
    fleet = Fleet(*lanes, rules=rules)
    fleet.routed.split = Split([made])
    return fleet


async def test_f59_each_user_is_on_one_side_and_the_share_is_kept() -> None:
    fleet = divided(("legacy", answers, {}), ("new", answers, {"tier": 9}), made=canary(stage=1))
    sides: dict[str, set[str]] = {}
    for n in range(1200):
        await fleet.ask(user=f"u{n % 400}")
        sides.setdefault(f"u{n % 400}", set()).add(fleet.lanes[-1])
    assert all(len(lanes) == 1 for lanes in sides.values())
    assert 70 <= sum(lanes == {"new"} for lanes in sides.values()) <= 130  # of 400, a quarter


async def test_what_fails_on_the_new_side_is_answered_by_the_old_one_within_the_same_attempts() -> None:
    fleet = divided(("legacy", answers, {}), ("new", fails(UpstreamFault("x", status=500)), {}), made=canary())
    start = fleet.clock.now()
    assert await fleet.ask(user="in") == "by m"
    assert fleet.asked == [("new", "m", 0), ("legacy", "m", 1)] and fleet.clock.now() == start


async def test_the_old_side_never_falls_on_the_new_one() -> None:
    fleet = divided(("legacy", fails(UpstreamFault("x", status=500)), {}), ("new", answers, {}), made=canary())
    with pytest.raises(UpstreamFault):
        await fleet.ask(user="out")
    assert set(fleet.lanes) == {"legacy"}


async def test_of_two_models_the_new_one_is_asked_first() -> None:
    made = canary("m", "small", stages=(50, 100))
    fleet = divided(("u", answers, {}), made=made)
    assert await fleet.ask(user="in") == "by small"
    assert await fleet.ask(user="out") == "by m"
    fleet.routed.split = Split([canary("m", "small", state="rolled_back")])
    assert await fleet.ask(user="in") == "by m"


async def test_a_thousand_at_once_with_a_failing_new_side_are_all_answered() -> None:
    fleet = divided(("legacy", answers, {}), ("new", fails(UpstreamFault("x", status=500)), {}), made=canary(stage=2))
    assert await asyncio.gather(*(fleet.ask(user=f"u{n}") for n in range(1000))) == ["by m"] * 1000
    assert 50 < fleet.lanes.count("new") < 200  # those under way until it rests


async def test_a_short_wait_for_the_new_side_is_waited_out() -> None:
    fleet = divided(
        ("legacy", answers, {}), ("new", fails(RateLimited("x", status=429, wait=2.0), 1), {}), made=canary()
    )
    assert await fleet.ask(user="in") == "late" and fleet.lanes == ["new", "new"]


# What is counted.


def ended(bucket: str, **fields: Any) -> AttemptEnded:
    return AttemptEnded(**{"bucket": bucket, "task": "t", "seconds": 1.0, "usd_pico": 10**9, **fields})


@pytest.mark.parametrize(
    ("fields", "calls", "ok", "limited"),
    [
        ({}, 1, 1, 0),
        ({"outcome": "failed", "code": "upstream_fault"}, 1, 0, 0),
        ({"outcome": "refused", "code": "request_refused", "status": 404}, 1, 0, 0),
        ({"outcome": "refused", "code": "access_refused"}, 1, 0, 0),
        ({"outcome": "refused", "code": "rate_limited"}, 0, 0, 1),
        ({"outcome": "failed", "code": "overloaded"}, 0, 0, 1),
        ({"outcome": "abandoned", "code": "call_timeout"}, 1, 0, 0),
        ({"outcome": "abandoned", "code": "deadline_reached"}, 1, 0, 0),
        ({"outcome": "abandoned", "code": "cancelled"}, 0, 0, 0),
    ],
)
def test_which_attempts_tell_something(fields: Any, calls: int, ok: int, limited: int) -> None:
    tally = Tally()
    tally(ended("7/new", **fields))
    tally(ended(""))
    ((where, found),) = tally.take().items()
    assert where == (7, "new") and (found.calls, found.ok, found.limited) == (calls, ok, limited)
    assert tally.take() == {}


def test_a_slow_answer_that_lost_to_a_second_request_counts_as_long_as_it_was_waited_for() -> None:
    tally = Tally()
    for first, second in ((9.0, 3.0), (7.5, 2.0)):  # one that is quicker than slow says nothing
        tally(Hedged(run="r", task="t", model="m", seconds=5.0))
        tally(ended("7/new", run="r", outcome="abandoned", code=HEDGE_LOST, seconds=second if first < 8 else first))
        tally(ended("7/new", run="r", seconds=second if first > 8 else first))
    found = tally.take()[7, "new"]
    assert (found.calls, found.ok, sum(found.slots.values())) == (3, 3, 3)
    assert quantile(found.slots, 0.99) == pytest.approx(9.0, rel=0.011)
    assert not tally._slow


def test_a_fallback_belongs_to_the_cost_of_the_new_side_s_task() -> None:
    tally = Tally()
    tally(ended("7/new", outcome="failed", code="upstream_fault", usd_pico=2 * 10**12))
    tally(ended("7/fallback", usd_pico=10**12))
    first = tally.take()[7, "new"]
    tally(ended("7/new", usd_pico=10**12))  # the task's next step, after it was told
    both = first + tally.take()[7, "new"]
    assert (both.calls, both.ok, both.tasks, both.usd_pico) == (2, 1, 1, 4 * 10**12)
    assert both.usd_square == 16.0
    assert quantile(both.slots, 0.5) == pytest.approx(1.0, rel=0.011)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 10**10)), max_size=30), st.integers(1, 7))
def test_numbers_add_up_however_often_they_are_taken(calls: list[tuple[str, int]], every: int) -> None:
    tally, sums = Tally(), Numbers()
    for n, (task, usd) in enumerate(calls):
        tally(ended("7/old", task=task, usd_pico=usd))
        if n % every == 0:
            sums += tally.take()[7, "old"]
    for numbers in tally.take().values():
        sums += numbers
    by_task: Counter[str] = Counter()
    for task, usd in calls:
        by_task[task] += usd
    assert (sums.calls, sums.tasks, sums.usd_pico) == (len(calls), len(by_task), sum(by_task.values()))
    assert sums.usd_square == pytest.approx(sum((usd / 10**12) ** 2 for usd in by_task.values()))


def test_what_is_remembered_of_tasks_is_bounded() -> None:
    tally = Tally()
    for n in range(MOST_TASKS + 100):
        tally(ended("7/old", task=f"t{n}"))
    assert len(tally._tasks) == MOST_TASKS
