"""Several lanes behind one Endpoint, over scripts in virtual time: who is asked after what."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from siafu.errors import (
    AccessRefused,
    CallTimeout,
    ModelError,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    UnpricedModel,
    Unreachable,
    UpstreamFault,
)
from siafu.gateway.chat import ChatRequest
from siafu.gateway.limits import Limited, Limits
from siafu.gateway.retry import Retrying, RetryRules
from siafu.gateway.routed import NO_CREDIT, PATIENCE, Lane, Routed
from siafu.gateway.routing import Rule, target
from siafu.gateway.scripted import Scripted
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, LaneClosed, Rerouted
from siafu.pace.clock import VirtualClock

from .conftest import ASK

Script = Callable[[ChatRequest], Any]


class Fleet:
    """Retrying over Routed over lanes, each (id, script, options of Lane). `asked`: (lane, model, attempts) in order."""

    def __init__(self, *lanes: tuple[str, Script, dict[str, Any]], rules: list[Rule] | None = None) -> None:
        self.clock = VirtualClock()
        self.asked: list[tuple[str, str, int]] = []
        self.events: list[Event] = []
        common: dict[str, Any] = {"clock": self.clock, "rng": Random(3), "observer": self.events.append}
        built = []
        for id, script, options in lanes:
            limited = Limited(Scripted(self._play(id, script)), Limits(), upstream=id, **common)
            built.append(Lane(limited, id=id, **{"upstream": id, **options}))
        self.routed = Routed(built, rules or (), clock=self.clock, observer=self.events.append)
        self.retrying = Retrying(self.routed, RetryRules(), upstream="", **common)

    def _play(self, id: str, script: Script) -> Callable[[ChatRequest, CallContext], Any]:
        def play(request: ChatRequest, context: CallContext) -> Any:
            self.asked.append((id, request.model, context.attempts))
            return script(request)

        return play

    async def ask(self, request: ChatRequest = ASK, **context: Any) -> str:
        answer = await (await self.retrying.open(request, CallContext(**context))).message()
        return answer.text

    @property
    def lanes(self) -> list[str]:
        return [lane for lane, _, _ in self.asked]


def fails(error: ModelError, times: int = 10**9) -> Script:
    left = iter(range(times))
    return lambda request: error if next(left, None) is not None else "late"


def answers(request: ChatRequest) -> str:
    return f"by {request.model}"


@pytest.mark.parametrize(
    "error",
    [
        UpstreamFault("x", status=500),
        Unreachable("x"),
        CallTimeout("x", phase="first_byte"),
        RateLimited("x", status=429, wait=30.0),
        Overloaded("x", status=529),
        QuotaExhausted("x", status=429),
        AccessRefused("x", status=401),
        AccessRefused("x", status=403),
        RequestRefused("x", status=404),
        RequestRefused("x", status=400, provider_code="context_length_exceeded"),
        UnpricedModel("x", attempts=0),
    ],
)
async def test_what_fails_at_one_is_answered_by_the_other_at_once(error: ModelError) -> None:
    fleet = Fleet(("a", fails(error), {}), ("b", answers, {}))
    start = fleet.clock.now()
    assert await fleet.ask() == "by m"
    assert fleet.lanes == ["a", "b"] and fleet.clock.now() == start
    assert [(e.lane, e.wanted) for e in fleet.events if isinstance(e, Rerouted)][:1] in ([], [("b", "m")])


@pytest.mark.parametrize(
    "error", [RequestRefused("x", status=400), RequestRefused("x", status=422, provider_code="invalid_schema")]
)
async def test_a_wrong_request_is_wrong_everywhere(error: ModelError) -> None:
    fleet = Fleet(("a", fails(error), {}), ("b", answers, {}))
    with pytest.raises(RequestRefused):
        await fleet.ask()
    assert fleet.lanes == ["a"]


async def test_attempts_are_counted_over_all_lanes() -> None:
    fault = UpstreamFault("x", status=500)
    fleet = Fleet(*((name, fails(fault), {}) for name in "abcdef"))
    with pytest.raises(UpstreamFault) as caught:
        await fleet.ask()
    assert fleet.asked == [("a", "m", 0), ("b", "m", 1), ("c", "m", 2)] and caught.value.attempts == 3


async def test_with_every_lane_failing_once_the_call_comes_back_after_a_wait() -> None:
    fault = UpstreamFault("x", status=500)
    fleet = Fleet(("a", fails(fault, 1), {}), ("b", fails(fault, 1), {}))
    start = fleet.clock.now()
    assert await fleet.ask() == "late"
    assert sorted(fleet.lanes[:2]) == ["a", "b"] and len(fleet.lanes) == 3
    assert fleet.clock.now() > start  # the second failure had nowhere else to go


async def test_a_refused_key_is_taken_out_and_said_once() -> None:
    fleet = Fleet(
        ("a#1", fails(AccessRefused("x", status=401)), {"upstream": "a"}), ("a#2", answers, {"upstream": "a"})
    )
    for _ in range(5):
        assert await fleet.ask() == "by m"
    assert fleet.lanes == ["a#1", *["a#2"] * 5]
    assert [(e.lane, e.reason) for e in fleet.events if isinstance(e, LaneClosed)] == [("a#1", "access_refused")]


async def test_a_key_that_may_not_use_one_model_stays_for_the_others() -> None:
    fleet = Fleet(("a", fails(AccessRefused("x", status=403), 1), {}), ("b", answers, {}))
    for _ in range(4):
        await fleet.ask()
    assert fleet.lanes.count("a") >= 2


async def test_when_every_key_is_refused_the_call_says_so() -> None:
    refused = AccessRefused("x", status=401)
    fleet = Fleet(("a", fails(refused), {}), ("b", fails(refused), {}))
    with pytest.raises(AccessRefused):
        await fleet.ask()
    with pytest.raises(AccessRefused, match="every key"):
        await fleet.ask()
    assert fleet.lanes == ["a", "b"]


async def test_a_key_without_credit_is_tried_again_later() -> None:
    fleet = Fleet(("a", fails(QuotaExhausted("x"), 1), {}), ("b", answers, {"tier": 2}))
    assert await fleet.ask() == "by m" and await fleet.ask() == "by m"
    assert fleet.lanes == ["a", "b", "b"]
    await fleet.clock.sleep(NO_CREDIT + 1)
    assert await fleet.ask() == "late" and fleet.lanes[-1] == "a"


async def test_tiers_and_the_way_back() -> None:
    fleet = Fleet(("a", fails(RateLimited("x", status=429, wait=30.0), 1), {}), ("b", answers, {"tier": 2}))
    assert await fleet.ask() == "by m"
    await fleet.clock.sleep(31)
    assert await fleet.ask() == "late"
    assert fleet.lanes == ["a", "b", "a"]


async def test_another_model_stands_in_only_when_the_wait_is_long() -> None:
    rules = [Rule(use=(target("big"), target("small")))]
    models = ({"models": {"big": "big"}}, {"models": {"small": "small"}})
    for wait, lanes in ((PATIENCE - 1, ["a", "a"]), (PATIENCE + 10, ["a", "b"])):
        limited = RateLimited("x", status=429, wait=wait)
        fleet = Fleet(("a", fails(limited, 1), models[0]), ("b", answers, models[1]), rules=rules)
        await fleet.ask()
        assert fleet.lanes == lanes


async def test_the_chain_goes_down_by_model_and_upstream_with_each_ones_own_name() -> None:
    rules = [Rule(use=(target("big@azure"), target("big"), target("small")))]
    fault = UpstreamFault("x", status=500)
    fleet = Fleet(
        ("openai", fails(fault), {"models": {"big": "big", "small": "small"}}),
        ("azure", fails(fault), {"models": {"big": "my-big-deployment"}}),
        ("local", answers, {"models": {"small": "small-q4"}}),
        rules=rules,
    )
    assert await fleet.ask() == "by small-q4"
    assert fleet.asked == [("azure", "my-big-deployment", 0), ("openai", "big", 1), ("local", "small-q4", 2)]


async def test_a_model_that_nobody_offers() -> None:
    fleet = Fleet(("a", answers, {"models": {"big": "big"}}))
    with pytest.raises(RequestRefused, match="no upstream offers the model 'm'"):
        await fleet.ask()
    assert fleet.asked == []


async def test_weights_share_the_calls() -> None:
    fleet = Fleet(("a", answers, {"weight": 3.0}), ("b", answers, {}))
    for _ in range(8):
        await fleet.ask()
    assert fleet.lanes.count("a") == 6
