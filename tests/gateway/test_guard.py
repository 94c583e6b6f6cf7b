"""Who is let through to an upstream that fails or an account without credit, and who waits how long; virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from siafu.errors import (
    AccessRefused,
    DeadlineReached,
    ModelError,
    Outage,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    Unreachable,
    UpstreamFault,
)
from siafu.gateway.chat import ChatRequest
from siafu.gateway.guard import FAULTS, Patience
from siafu.gateway.limits import Limits
from siafu.gateway.retry import RetryRules
from siafu.observe.events import LaneClosed, LaneOpened, Waited
from siafu.pace.allowance import Allowance

from .conftest import ASK
from .outages import World
from .test_routed import Fleet, answers, fails

QUOTA = QuotaExhausted("no credit", status=429, provider_code="insufficient_quota")


def broken() -> ModelError:
    return UpstreamFault("broken", status=500)


async def alive(fails: Callable[[float], ModelError | None], **options: Any) -> World:
    """A World whose upstream has answered."""
    world = World(fails, **options)
    assert await world.ask() == "ok"
    return world


@pytest.mark.parametrize(
    ("error", "opens"),
    [
        (RequestRefused("x", status=400), False),
        (RequestRefused("x", status=404), False),
        (RequestRefused("x", status=422), False),
        (AccessRefused("x", status=401), False),
        (RateLimited("x", status=429), False),
        (UpstreamFault("x", status=500), True),
        (Overloaded("x", status=503), True),
        (Unreachable("x"), True),
    ],
)
async def test_f55_client_errors_and_rate_limits_do_not_open_it_but_failures_do(error: ModelError, opens: bool) -> None:
    left = iter(range(1 + (5 if opens else 10)))
    world = World(lambda at: error if 0 < next(left, 100) < 100 else None)
    results: list[Any] = []
    for _ in range(12):
        results += await asyncio.gather(world.ask(), return_exceptions=True)
    assert [e.reason for e in world.events if isinstance(e, LaneClosed)] == ([error.code] if opens else [])
    assert results[0] == results[-1] == "ok"


async def test_f55_it_is_one_model_s() -> None:
    fleet = Fleet(("a", lambda request: broken() if request.model == "n" else answers(request), {}), outage=600.0)
    await fleet.ask()
    with pytest.raises(UpstreamFault):
        await fleet.ask(ChatRequest(model="n", messages=ASK.messages))
    start = fleet.clock.now()
    assert await fleet.ask() == "by m" and fleet.clock.now() == start


async def test_overload_of_an_upstream_that_works_on_others_is_the_limiter_s_matter() -> None:
    """Slots are full: some are refused while others are under way."""

    def full(at: float) -> ModelError | None:
        return Overloaded("full", status=503) if world.guarded.in_flight > 4 else None

    world = World(full, latency=1.0)
    await asyncio.gather(*(world.ask() for _ in range(30)))
    assert not [e for e in world.events if isinstance(e, LaneClosed)]
    assert any(not request.ok for request in world.requests)


async def test_calls_wait_for_an_upstream_that_fails_and_are_told_so() -> None:
    world = await alive(lambda at: broken() if 1.0 <= at < 20.0 else None)
    await world.clock.sleep(1.0)
    assert await asyncio.gather(*(world.ask(str(n)) for n in range(40))) == ["ok"] * 40
    waits = [e for e in world.events if isinstance(e, Waited) and e.reason == "outage"]
    assert waits and {(e.upstream, e.task) for e in waits} == {("u", "")}
    assert 1.0 <= waits[0].seconds <= FAULTS.first
    assert [type(e) for e in world.events if isinstance(e, LaneClosed | LaneOpened)] == [LaneClosed, LaneOpened]
    assert 20.0 <= world.now < 25.0


async def test_an_upstream_that_never_answered_is_not_waited_for() -> None:
    """It is rather the wrong address."""
    world = World(lambda at: Unreachable("nothing listens"))
    results = await asyncio.gather(*(world.ask(str(n)) for n in range(50)), return_exceptions=True)
    assert {type(result) for result in results} == {Unreachable} and world.now < 3.0
    assert len(world.requests) <= 70
    with pytest.raises(Unreachable, match=r"not sent, as u has failed for .* s: nothing listens") as caught:
        await world.ask()
    assert caught.value.attempts == 0


async def test_nobody_waits_longer_than_the_patience() -> None:
    world = await alive(lambda at: broken() if at >= 1.0 else None, patience=Patience(outage=30.0))
    await world.clock.sleep(1.0)
    results = await asyncio.gather(*(world.ask(str(n)) for n in range(40)), return_exceptions=True)
    assert {type(result) for result in results} == {UpstreamFault} and 25.0 <= world.now <= 32.0
    before = len(world.requests)
    for _ in range(20):
        with pytest.raises(UpstreamFault):
            await world.ask()
    assert len(world.requests) - before <= 1, "but for a probe"


async def test_who_has_too_little_time_for_the_next_probe_is_told_at_once_and_others_wait() -> None:
    world = await alive(lambda at: broken() if 1.0 <= at < 9.0 else None)
    await world.clock.sleep(1.0)
    start = world.clock.now()
    calls = [asyncio.create_task(world.ask(str(n), deadline=start + (1.0 if n % 2 else 60.0))) for n in range(20)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[::2] == ["ok"] * 10
    assert {type(result) for result in results[1::2]} <= {UpstreamFault, DeadlineReached}


async def test_a_cancelled_call_leaves_the_queue_and_holds_up_nobody() -> None:
    world = await alive(lambda at: broken() if 1.0 <= at < 6.0 else None)
    await world.clock.sleep(1.0)
    calls = [asyncio.create_task(world.ask(str(n))) for n in range(20)]
    await world.clock.sleep(1.5)
    for call in calls[::2]:
        call.cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[1::2] == ["ok"] * 10 and all(isinstance(e, asyncio.CancelledError) for e in results[::2])
    assert await asyncio.gather(*(world.ask() for _ in range(10))) == ["ok"] * 10
    assert len(asyncio.all_tasks()) <= 2, "itself, and at most the clock"


async def test_a_cancelled_probe_is_followed_by_another() -> None:
    world = await alive(lambda at: broken() if 1.0 <= at < 6.0 else None, fault_seconds=1.0)
    await world.clock.sleep(1.0)
    calls = [asyncio.create_task(world.ask(str(n))) for n in range(20)]
    await world.clock.sleep(3.5)
    assert world.guarded.in_flight == 1, "the probe"
    for call in calls[:-1]:
        call.cancel()
    await asyncio.gather(*calls[:-1], return_exceptions=True)
    assert world.guarded.in_flight <= 1
    assert await calls[-1] == "ok" and world.now < 12.0


async def test_used_up_credit_pauses_everybody_and_goes_on_by_itself() -> None:
    """F04: what is under way at the first refusal, and then one request at growing intervals."""
    world = await alive(lambda at: QUOTA if 1.0 <= at < 200.0 else None)
    await world.clock.sleep(1.0)
    assert await asyncio.gather(*(world.ask(str(n)) for n in range(300))) == ["ok"] * 300
    refused = [r for r in world.requests if not r.ok]
    assert len(refused) <= 100 + 1 + 2, "the one more is admitted before the first refusal is known"
    probes = sorted(r.at for r in refused)[101:]
    gaps = [b - a for a, b in itertools.pairwise([1.0, *probes])]
    assert [round(gap) for gap in gaps] == [30, 60]
    waits = [e for e in world.events if isinstance(e, Waited)]
    assert [(e.reason, round(e.seconds), e.task) for e in waits] == [("quota", n, "") for n in (30, 60, 120)]
    closed = [(type(e), e.lane) for e in world.events if isinstance(e, LaneClosed | LaneOpened)]
    assert closed == [(LaneClosed, "u"), (LaneOpened, "u")]


@pytest.mark.parametrize("patience", [Patience(outage=600.0), Patience(quota=100.0), Patience(quota=0.5)])
async def test_credit_that_does_not_come_back_ends_it_and_few_were_sent(patience: Patience) -> None:
    world = await alive(lambda at: QUOTA if at >= 1.0 else None, patience=patience)
    await world.clock.sleep(1.0)
    results = await asyncio.gather(*(world.ask(str(n)) for n in range(300)), return_exceptions=True)
    assert {type(result) for result in results} == {QuotaExhausted}
    assert len(world.requests) - 1 <= 100 + 1 + 2
    assert world.now <= 1.0 + patience.quota + 1.0
    with pytest.raises(QuotaExhausted):
        await world.ask()


async def test_a_call_with_too_little_time_for_the_next_look_is_the_only_one_that_fails() -> None:
    """An error that says "no credit" would end the run, though others wait for some."""
    world = await alive(lambda at: QUOTA if 1.0 <= at < 40.0 else None)
    await world.clock.sleep(1.0)
    others = [asyncio.create_task(world.ask(str(n))) for n in range(5)]
    for _ in range(2):  # the first is refused, the second not even sent
        with pytest.raises(DeadlineReached, match="no credit"):
            await world.ask(deadline=world.clock.now() + 20.0)
    assert world.now < 2.0 and await asyncio.gather(*others) == ["ok"] * 5


def lasting(seconds: float) -> Patience:
    return Patience(outage=seconds, ends_run=True)


async def test_what_an_outage_leaves_is_left_to_a_later_run() -> None:
    world = await alive(lambda at: broken() if at >= 1.0 else None, patience=lasting(60.0))
    await world.clock.sleep(1.0)
    results = await asyncio.gather(*(world.ask(str(n)) for n in range(100)), return_exceptions=True)
    assert {type(result) for result in results} == {Outage} and 55.0 <= world.now <= 62.0
    assert all(error.lasts for error in results if isinstance(error, Outage))
    assert max(world.steps.values()) <= 3


async def test_who_has_had_three_attempts_meanwhile_is_left_too_and_ends_nothing() -> None:
    world = await alive(lambda at: broken() if 1.0 <= at < 60.0 else None, patience=lasting(600.0))
    await world.clock.sleep(1.0)
    results = await asyncio.gather(*(world.ask(str(n)) for n in range(8)), return_exceptions=True)
    left = [result for result in results if isinstance(result, Outage)]
    assert left and not any(error.lasts for error in left)
    assert results.count("ok") + len(left) == 8 and max(world.steps.values()) == 3


@pytest.mark.parametrize(("leaves", "kind"), [(True, Outage), (False, UpstreamFault)])
async def test_who_is_not_asked_again_as_the_retry_budget_is_empty_is_left_too(leaves: bool, kind: type) -> None:
    """As when an upstream dies with many calls under way."""
    world = await alive(lambda at: broken() if at >= 1.0 else None, patience=lasting(600.0))
    world.retrying.rules = RetryRules(leaves=leaves)
    world.retrying._allowance = Allowance(purse=0.0)
    await world.clock.sleep(1.0)
    with pytest.raises(UpstreamFault) as caught:
        await world.ask()
    assert type(caught.value) is kind and caught.value.attempts == 1 and not getattr(caught.value, "lasts", False)


async def test_a_request_that_fails_alone_is_no_outage() -> None:
    world = await alive(lambda at: broken() if at >= 1.0 else None, patience=lasting(600.0))
    await world.clock.sleep(1.0)
    with pytest.raises(UpstreamFault) as caught:
        await world.ask("alone")
    assert type(caught.value) is UpstreamFault and caught.value.attempts == 3


async def test_what_a_wrong_address_leaves_is_left_at_once() -> None:
    world = World(lambda at: Unreachable("nothing listens"), patience=lasting(600.0))
    results = await asyncio.gather(*(world.ask(str(n)) for n in range(50)), return_exceptions=True)
    assert {type(result) for result in results} == {Outage} and world.now < 3.0
    with pytest.raises(Outage, match="u has not answered since this run began: nothing listens"):
        await world.ask()


async def test_wording_that_may_mean_either_is_tried_three_times_and_then_taken_for_used_up() -> None:
    unsure = RateLimited("quota", status=429, provider_code="quota_exceeded", wait=1.0)
    world = await alive(lambda at: unsure if 1.0 <= at < 60.0 else None)
    await world.clock.sleep(1.0)
    assert await asyncio.gather(*(world.ask(str(n)) for n in range(50))) == ["ok"] * 50
    assert sum(not r.ok for r in world.requests) <= 50 + 10
    assert [e.reason for e in world.events if isinstance(e, LaneClosed)] == ["quota_exhausted"]
    assert "quota" in {e.reason for e in world.events if isinstance(e, Waited)}


async def test_without_patience_such_wording_fails_after_three_tries() -> None:
    unsure = RateLimited("quota", status=429, provider_code="quota_exceeded", wait=1.0)
    world = await alive(lambda at: unsure if at >= 1.0 else None, patience=Patience())
    await world.clock.sleep(1.0)
    with pytest.raises(QuotaExhausted, match="3 times"):
        await world.ask()


async def test_another_key_takes_the_calls_and_nobody_waits() -> None:
    fleet = Fleet(("a#1", fails(QUOTA), {"upstream": "a"}), ("a#2", answers, {"upstream": "a"}), quota=600.0)
    start = fleet.clock.now()
    assert await asyncio.gather(*(fleet.ask() for _ in range(50))) == ["by m"] * 50
    assert fleet.clock.now() - start < 1.0


async def test_with_every_key_used_up_the_one_that_has_credit_first_takes_all_who_wait() -> None:
    fleet = Fleet(("a#1", fails(QUOTA), {"upstream": "a"}), ("a#2", fails(QUOTA, 31), {"upstream": "a"}), quota=600.0)
    start = fleet.clock.now()
    assert await asyncio.gather(*(fleet.ask() for _ in range(60))) == ["late"] * 60
    assert 30.0 <= fleet.clock.now() - start <= 100.0
    assert len(fleet.asked) <= 60 + 60 + 5


async def test_with_every_upstream_down_the_first_that_answers_takes_all_who_wait() -> None:
    fleet = Fleet(("a", fails(broken()), {}), ("b", lambda request: answers(request), {}), outage=600.0)
    assert await asyncio.gather(*(fleet.ask() for _ in range(5))) == ["by m"] * 5
    start, out = fleet.clock.now(), 20.0
    fleet.down = lambda lane: lane == "b" and fleet.clock.now() < start + out
    results = await asyncio.gather(*(fleet.ask() for _ in range(50)), return_exceptions=True)
    assert results.count("by m") >= 47, "a probe may be the third attempt of its step"
    assert out <= fleet.clock.now() - start <= out + 6.0


async def test_a_limited_upstream_that_fails_keeps_its_limits() -> None:
    world = await alive(
        lambda at: broken() if 1.0 <= at < 12.0 else None, limits=Limits(concurrency=5, rpm=600), latency=0.1
    )
    await world.clock.sleep(1.0)
    assert await asyncio.gather(*(world.ask(str(n)) for n in range(60))) == ["ok"] * 60
    times = sorted(r.at for r in world.requests)
    assert max(sum(at <= t < at + 1 for t in times) for at in times) <= 21
