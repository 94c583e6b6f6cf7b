"""Several lanes behind one Endpoint, over scripts in virtual time: who is asked after what."""

from __future__ import annotations

import asyncio
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
from siafu.gateway.guard import FAULTS, Guard, Guarded, Patience
from siafu.gateway.limits import Limited, Limits
from siafu.gateway.retry import Retrying, RetryRules
from siafu.gateway.routed import PATIENCE, Lane, Routed
from siafu.gateway.routing import Rule, target
from siafu.gateway.scripted import Scripted
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, LaneClosed, Rerouted
from siafu.pace.clock import VirtualClock

from .conftest import ASK

Script = Callable[[ChatRequest], Any]
FAILURES = FAULTS.failures


class Fleet:
    """Retrying over Routed over lanes, each (id, script, options of Lane, limits among them).

    `asked`: (lane, model, attempts) in order.
    """

    def __init__(
        self, *lanes: tuple[str, Script, dict[str, Any]], rules: list[Rule] | None = None, **patience: Any
    ) -> None:
        self.clock = VirtualClock()
        self.asked: list[tuple[str, str, int]] = []
        self.events: list[Event] = []
        self.down: Callable[[str], bool] = lambda lane: False
        common: dict[str, Any] = {"clock": self.clock, "rng": Random(3), "observer": self.events.append}
        guard = Guard(Patience(**patience), clock=self.clock, observer=self.events.append)
        built = []
        for id, script, options in lanes:
            limited = Limited(Scripted(self._play(id, script)), options.pop("limits", Limits()), upstream=id, **common)
            options = {"upstream": id, **options}
            built.append(Lane(Guarded(limited, guard, upstream=options["upstream"], lane=id), id=id, **options))
        self.routed = Routed(built, rules or (), clock=self.clock, observer=self.events.append)
        self.retrying = Retrying(self.routed, RetryRules(), upstream="", **common)

    def _play(self, id: str, script: Script) -> Callable[[ChatRequest, CallContext], Any]:
        def play(request: ChatRequest, context: CallContext) -> Any:
            self.asked.append((id, request.model, context.attempts))
            return UpstreamFault("down", status=500) if self.down(id) else script(request)

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


async def test_keys_of_one_upstream_do_not_share_a_fault_s_attempts() -> None:
    """Each key of a dead upstream would fail alike; the third and last attempt must not be lost on them."""
    keys = ((f"a#{n}", fails(Unreachable("x")), {"upstream": "a"}) for n in (1, 2, 3))
    fleet = Fleet(*keys, ("b", answers, {"tier": 2}))
    assert await fleet.ask() == "by m" and fleet.lanes == ["a#1", "b"]


@pytest.mark.parametrize(
    "error",
    [UpstreamFault("x", status=503), RequestRefused("x", status=400, provider_code="context_length_exceeded")],
)
async def test_another_model_of_the_same_upstream_stands_in(error: ModelError) -> None:
    rules = [Rule(use=(target("big"), target("small")))]
    fleet = Fleet(("a", lambda request: error if request.model == "big" else answers(request), {}), rules=rules)
    assert await fleet.ask() == "by small"
    assert fleet.asked == [("a", "big", 0), ("a", "small", 1)]


async def test_a_dead_upstream_costs_three_attempts_and_then_one_a_rest() -> None:
    """Hundreds of calls, more than a retry budget would pay for: every one is answered."""
    fleet = Fleet(("a", fails(Unreachable("x")), {}), ("b", answers, {}))
    for _ in range(300):
        assert await fleet.ask() == "by m"
        await fleet.clock.sleep(0.1)
    assert fleet.lanes.count("b") == 300
    assert FAILURES < fleet.lanes.count("a") <= FAILURES + 4  # after rests of 2, 4, 8 and 16 s, in 30 s
    assert [(e.lane, e.reason) for e in fleet.events if isinstance(e, LaneClosed)] == [("a", "unreachable")]


async def test_calls_in_flight_when_an_upstream_dies_are_all_answered() -> None:
    """A hundred at once: their repeats are not paid from the purse of ten, as the other upstream had none of them."""
    fleet = Fleet(("a", fails(UpstreamFault("x")), {}), ("b", answers, {}))
    assert await asyncio.gather(*(fleet.ask() for _ in range(200))) == ["by m"] * 200


async def test_who_waits_for_a_lane_leaves_it_when_it_fails() -> None:
    """Behind a limit of one at once, 99 wait; after three failures, of a second each, they are gone. But for the one
    that got the permit of the third.
    """

    async def hangs(request: ChatRequest) -> ModelError:
        await fleet.clock.sleep(1.0)
        return CallTimeout("x", phase="first_byte")

    fleet = Fleet(("a", hangs, {"limits": Limits(concurrency=1)}), ("b", answers, {}))
    start = fleet.clock.now()
    assert await asyncio.gather(*(fleet.ask() for _ in range(200))) == ["by m"] * 200
    assert fleet.lanes.count("a") == FAILURES + 1 and fleet.clock.now() - start < FAILURES + 2


async def test_while_everything_fails_repeats_stay_few() -> None:
    """G4 with two upstreams: while both rest, calls fail unsent."""
    fleet = Fleet(("a", fails(UpstreamFault("x", status=500)), {}), ("b", fails(UpstreamFault("x", status=500)), {}))
    firsts = 600
    for _ in range(firsts):
        with pytest.raises(UpstreamFault):
            await fleet.ask()
        await fleet.clock.sleep(0.1)
    assert 2 * FAILURES <= len(fleet.asked) <= 30


async def test_an_upstream_that_works_again_gets_its_share_again() -> None:
    fleet = Fleet(("a", fails(Unreachable("x"), FAILURES), {}), ("b", answers, {}))
    for _ in range(80):
        await fleet.ask()
        await fleet.clock.sleep(0.1)
    assert 14 <= fleet.lanes[-30:].count("a") <= 16


async def test_one_model_s_faults_leave_the_others_alone() -> None:
    down = UpstreamFault("x", status=503)
    fleet = Fleet(
        ("a", lambda request: down if request.model == "n" else answers(request), {}), ("b", answers, {"tier": 2})
    )
    for _ in range(10):
        await fleet.ask(ChatRequest(model="n", messages=ASK.messages))
    fleet.asked.clear()
    await fleet.ask()
    await fleet.ask(ChatRequest(model="n", messages=ASK.messages))
    assert fleet.asked == [("a", "m", 0), ("b", "n", 0)]


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
    await fleet.clock.sleep(Patience().probe + 1)
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
