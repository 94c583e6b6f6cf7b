"""Calls that wait for a tool server that is away, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.errors import OutcomeUnknown, ToolFault, ToolUnavailable
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, LaneClosed, LaneOpened, Waited
from siafu.pace.clock import VirtualClock
from siafu.tools.patience import LONGEST, SOON, SPREAD, TIMES, ToolPatience, rest
from siafu.tools.toolset import Tool, ToolResult

CALL = CallContext(run="r")
OK = ToolResult(text="여기 있습니다")


class Shop:
    """A server, and its tools, that is away from `leaves` on for `away` seconds."""

    def __init__(self, clock: VirtualClock, *, leaves: float = 0.0, away: float = 0.0) -> None:
        self.name = "shop"
        self.clock = clock
        self.leaves = clock.now() + leaves
        self.returns = self.leaves + away
        self.knocked: list[float] = []
        self.knocking = 0
        self.calls: list[float] = []
        self.fault: ToolFault = ToolUnavailable("MCP server shop cannot be reached")
        self.helps = True  # to wait for it

    @property
    def gone(self) -> bool:
        return self.leaves <= self.clock.now() < self.returns

    async def knock(self) -> bool:
        self.knocked.append(self.clock.now())
        self.knocking += 1
        assert self.knocking == 1, "two knock at once"
        try:
            await self.clock.sleep(0.1)
            return not self.gone
        finally:
            self.knocking -= 1

    async def list(self) -> Sequence[Tool]:
        return [Tool(name="find", server="shop"), Tool(name="die", server="shop"), Tool(name="other", server="post")]

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        self.calls.append(self.clock.now())
        if name == "die" or (self.gone and name != "other"):
            fault = type(self.fault)(self.fault.message)
            fault.away = self if self.helps else None
            raise fault
        return OK


class House:
    """A shop, who waits for it, and what people hear."""

    def __init__(self, seconds: float = 600.0, **shop: float) -> None:
        self.clock = VirtualClock()
        self.began = self.clock.now()
        self.events: list[Event] = []
        self.shop = Shop(self.clock, **shop)
        self.patience = ToolPatience(seconds, clock=self.clock, rng=Random(7), observer=self.events.append)

    async def ask(self, name: str = "find", context: CallContext = CALL) -> ToolResult:
        return await self.patience.call(self.shop, name, {}, context)

    @property
    def now(self) -> float:
        return self.clock.now() - self.began

    def heard(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.mark.parametrize("away", [2.0, 20.0, 120.0])
async def test_all_calls_wait_while_one_of_them_knocks(away: float) -> None:
    house = House(away=away)
    results = await asyncio.gather(*(house.ask() for _ in range(300)))
    assert results == [OK] * 300
    assert away <= house.now <= away + max(SOON, away / 20) + SOON + 0.2
    assert len(house.shop.knocked) <= 5 + away  # by all of them together
    assert len(house.shop.calls) == 301  # the first learns of it; then each is made once
    assert house.heard(LaneClosed) == [LaneClosed(run="r", lane="MCP server shop", reason="tool_unavailable")]
    assert house.heard(LaneOpened) == [LaneOpened(run="r", lane="MCP server shop")]
    assert {event.reason for event in house.heard(Waited) if isinstance(event, Waited)} == {"tools"}
    assert not house.patience.away


async def test_calls_leave_one_after_the_other_when_it_is_back() -> None:
    house = House(away=5.0)
    await asyncio.gather(*(house.ask() for _ in range(50)))
    left = house.shop.calls[1:]
    assert max(left) - min(left) > SPREAD * 50 / 2
    assert len(set(left)) > 40


async def test_control_without_patience_they_fail_as_the_server_does() -> None:
    house = House(0.0, away=5.0)
    results = await asyncio.gather(*(house.ask() for _ in range(20)), return_exceptions=True)
    assert all(isinstance(result, ToolUnavailable) for result in results)
    assert (house.now, house.shop.knocked, house.events) == (0.0, [], [])


async def test_what_waiting_does_not_help_fails_at_once() -> None:
    house = House(away=5.0)
    house.shop.helps = False
    with pytest.raises(ToolUnavailable):
        await house.ask()
    assert (house.now, house.shop.knocked) == (0.0, [])


async def test_after_its_time_is_over_calls_fail_at_once_until_it_answers() -> None:
    house = House(60.0, away=100.0)
    results = await asyncio.gather(*(house.ask() for _ in range(20)), return_exceptions=True)
    assert all(isinstance(result, ToolUnavailable) for result in results)
    assert 60.0 - SOON * 1.5 <= house.now <= 60.5
    began = house.now
    for _ in range(20):
        with pytest.raises(ToolUnavailable):
            await house.ask()
    assert house.now - began <= 0.2  # one of them at most knocked
    await house.clock.sleep(60.0)
    assert await house.ask() == OK
    assert len(house.heard(LaneClosed)) == len(house.heard(LaneOpened)) == 1


async def test_an_old_failure_says_nothing_about_the_next_one() -> None:
    house = House(10.0, away=20.0)
    with pytest.raises(ToolUnavailable):
        await house.ask()
    await house.clock.sleep(3600.0)
    house.shop.leaves, house.shop.returns = house.clock.now(), house.clock.now() + 5.0
    assert await house.ask() == OK
    assert len(house.heard(LaneClosed)) == 2


async def test_a_call_that_has_too_little_time_does_not_wait() -> None:
    house = House(away=20.0)
    hasty = CallContext(deadline=house.clock.now() + 3.0)
    late = asyncio.create_task(house.ask())
    with pytest.raises(ToolUnavailable):
        await house.ask(context=hasty)
    assert house.now <= 3.0
    assert await late == OK


async def test_nothing_is_begun_at_a_server_that_is_known_to_be_away() -> None:
    house = House(away=5.0)
    first = asyncio.create_task(house.ask())
    await house.clock.sleep(1.0)
    others = [asyncio.create_task(house.ask()) for _ in range(30)]
    assert await house.ask("other") == OK  # of another server
    await house.clock.sleep(1.0)
    assert len(house.shop.calls) == 2
    assert await asyncio.gather(first, *others) == [OK] * 31
    assert len(house.shop.calls) == 2 + 31


async def test_who_is_cancelled_stops_waiting_and_another_knocks() -> None:
    house = House(away=10.0)
    tasks = [asyncio.create_task(house.ask()) for _ in range(5)]
    await house.clock.sleep(3.0)
    for task in tasks[:3]:  # the first of them knocks
        task.cancel()
    ended = await asyncio.gather(*tasks[:3], return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended)
    assert house.now <= 3.1
    assert await asyncio.gather(*tasks[3:]) == [OK] * 2


async def test_a_call_that_the_server_dies_of_is_not_made_for_ever() -> None:
    house = House()
    with pytest.raises(ToolUnavailable):
        await house.ask("die")
    assert len(house.shop.calls) == TIMES + 1


async def test_an_effect_that_its_contract_can_settle_is_asked_for_again() -> None:
    house = House(away=5.0)
    house.shop.fault = OutcomeUnknown("it was sent")
    assert await house.ask() == OK


@given(st.integers(0, 500), st.floats(0, 1e5), st.integers())
def test_rests_are_bounded(knocks: int, away: float, seed: int) -> None:
    pause = rest(knocks, away, Random(seed))
    assert 0.25 <= pause <= min(LONGEST, max(SOON, away / 20))
