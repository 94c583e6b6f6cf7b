"""One goes first, in virtual time: over the real limiter and a cache that learns a prompt when its answer begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from siafu.errors import ModelError, Overloaded, UpstreamFault
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import PlainReply, Reply, ReplyHead
from siafu.gateway.limits import Limited, Limits
from siafu.gateway.prefix import FIRST_CALLS, PromptCache
from siafu.gateway.scripted import say
from siafu.gateway.warmed import Warmed
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, HeadsDiffer, WentFirst
from siafu.pace.clock import VirtualClock

SYSTEM = "너는 쇼핑몰의 상담원이다. " * 20
TTL = 300.0


def ask(name: str = "a", text: str = "주문?", system: str = SYSTEM) -> ChatRequest:
    messages = [{"role": "system", "content": name + system}, {"role": "user", "content": text}]
    return ChatRequest(model="m", messages=messages)


class Caching:
    """An upstream that answers after 2 s, and knows a system text from then on, for TTL. `fail`: by number of call."""

    def __init__(self, clock: VirtualClock, fail: Callable[[int], ModelError | None]) -> None:
        self.clock = clock
        self.fail = fail
        self.known: dict[str, float] = {}
        self.hits: list[bool] = []  # in order of arrival
        self.requests: list[ChatRequest] = []
        self.now = self.peak = 0
        self.held: asyncio.Event | None = None  # answers come when it is set, not by the clock

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        text, began = str(request.messages[0]["content"]), self.clock.now()
        self.requests.append(request)
        number = len(self.hits)
        self.hits.append(began - self.known.get(text, -TTL) < TTL)
        self.now += 1
        self.peak = max(self.peak, self.now)
        try:
            await (self.clock.sleep(2.0) if self.held is None else self.held.wait())
        finally:
            self.now -= 1
        if (error := self.fail(number)) is not None:
            raise error
        self.known[text] = self.clock.now()
        return PlainReply(say("ok"), ReplyHead(began=began))


class House:
    def __init__(
        self, limits: Limits | None = None, *, fail: Callable[[int], ModelError | None] = lambda n: None, **wanted: Any
    ) -> None:
        self.clock = VirtualClock()
        self.upstream = Caching(self.clock, fail)
        self.events: list[Event] = []
        limited = Limited(
            self.upstream,
            limits or Limits(concurrency=1000),
            clock=self.clock,
            rng=Random(1),
            upstream="u",
            observer=self.events.append,
        )
        cache = PromptCache(**{"lead": True, "min_tokens": 50, **wanted})
        self.warmed = Warmed(limited, cache, clock=self.clock, upstream="u", observer=self.events.append)

    async def ask(self, request: ChatRequest | None = None, **context: Any) -> str:
        reply = await self.warmed.open(request or ask(), CallContext(**{"run": "r", "role": "desk", **context}))
        return (await reply.message()).text

    async def fan_out(self, count: int, name: str = "a", **context: Any) -> list[str | BaseException]:
        calls = [self.ask(ask(name, f"주문 {n}?"), **context) for n in range(count)]
        return await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize("concurrency", [1, 7, 1000])
async def test_of_a_hundred_one_misses(concurrency: int) -> None:
    house = House(Limits(concurrency=concurrency))
    assert await house.fan_out(100) == ["ok"] * 100
    assert house.upstream.hits == [False] + [True] * 99
    (event,) = [event for event in house.events if isinstance(event, WentFirst)]
    assert (event.siblings, event.seconds, event.role, event.upstream) == (99, 2.0, "desk", "u")


@pytest.mark.parametrize("wanted", [{"lead": False}, {"min_tokens": 5000}])
async def test_the_check_can_fail(wanted: dict[str, Any]) -> None:
    house = House(**wanted)
    await house.fan_out(100)
    assert house.upstream.hits == [False] * 100


async def test_different_beginnings_never_wait_for_each_other() -> None:
    house = House()
    start = house.clock.now()
    await asyncio.gather(*(house.fan_out(10, name) for name in "abcde"))
    assert house.upstream.hits.count(False) == 5
    assert house.clock.now() - start == 4.0
    assert house.upstream.peak == 45


async def test_when_the_first_one_fails_the_next_goes_first() -> None:
    house = House(fail=lambda n: UpstreamFault("x", status=500) if n < 2 else None)
    found = await house.fan_out(10)
    assert [isinstance(each, UpstreamFault) for each in found] == [True, True] + [False] * 8
    assert house.upstream.hits == [False] * 3 + [True] * 7


async def test_when_the_first_one_is_cancelled_the_next_goes_first() -> None:
    house = House()
    calls = [asyncio.create_task(house.ask(ask(text=f"{n}"))) for n in range(10)]
    await house.clock.sleep(1.0)
    assert len(house.upstream.hits) == 1
    calls[0].cancel()
    calls[5].cancel()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert done.count("ok") == 8
    assert house.upstream.hits == [False, False] + [True] * 7


async def test_a_beginning_that_was_used_stays_warm_and_a_cold_one_gets_a_new_first() -> None:
    house = House()
    await house.fan_out(5)
    for _ in range(3):  # each use keeps it
        await house.clock.sleep(200.0)
        assert await house.ask() == "ok"
    assert house.upstream.hits.count(False) == 1
    await house.clock.sleep(TTL)
    await house.fan_out(20)
    assert house.upstream.hits[8:] == [False] + [True] * 19


async def test_nobody_waits_longer_than_set() -> None:
    house = House(wait=0.02)
    held = house.upstream.held = asyncio.Event()
    calls = [asyncio.create_task(house.ask()) for _ in range(5)]
    async with asyncio.timeout(20):
        while len(house.upstream.hits) < 5:
            await asyncio.sleep(0.005)
    held.set()
    assert await asyncio.gather(*calls) == ["ok"] * 5


async def test_an_urgent_call_does_not_wait_for_one_that_is_not() -> None:
    house = House()
    batch = [asyncio.create_task(house.ask(priority=3)) for _ in range(3)]
    await house.clock.sleep(1.0)
    await house.ask(priority=1)
    assert house.upstream.hits[:2] == [False, False]
    assert await asyncio.gather(*batch) == ["ok"] * 3


async def test_the_place_in_the_queue_is_that_of_the_time_of_asking() -> None:
    house = House(Limits(concurrency=1))
    calls = []
    for name in ("a", "a", "b", "c"):  # a sibling, then strangers, of whom one goes while the sibling hears of it
        calls.append(asyncio.create_task(house.ask(ask(name))))
        await house.clock.sleep(0.1)
    await asyncio.gather(*calls)
    assert [str(request.messages[0]["content"])[0] for request in house.upstream.requests] == ["a", "b", "a", "c"]


async def test_who_waits_for_the_first_is_turned_away_with_the_others() -> None:
    house = House()
    calls = [asyncio.create_task(house.ask()) for _ in range(3)]
    await house.clock.sleep(1.0)
    house.warmed.turn_away(lambda: Overloaded("closed", attempts=0))
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in done] == [str, Overloaded, Overloaded]


async def test_f57_a_clock_in_the_system_text_is_told() -> None:
    house = House()
    for second in range(FIRST_CALLS):
        await house.ask(ask(system=f"12:00:{second:02} {SYSTEM}"))
    (event,) = [event for event in house.events if isinstance(event, HeadsDiffer)]
    assert (event.run, event.role, event.part, event.at) == ("r", "desk", "system", len("a12:00:0"))


async def test_marks_reach_the_upstream_only_where_it_wants_them() -> None:
    plain, marked = House(), House(marks="5m", key=True)
    await plain.ask()
    await marked.ask()
    assert plain.upstream.requests == [ask()]
    assert "prompt_cache_key" in marked.upstream.requests[0].extra
    assert marked.upstream.requests[0].messages[0]["content"][0]["cache_control"]["ttl"] == "5m"
