"""Whole answers used again, over a script in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from siafu.errors import UpstreamFault
from siafu.gateway.chat import ChatAnswer, ChatRequest, Usage
from siafu.gateway.reuse import MOST_BYTES, MOST_KEPT, ReuseRule, Reusing, reusable
from siafu.gateway.scripted import Scripted, say
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, Reused
from siafu.pace.clock import VirtualClock

RULE = ReuseRule(seconds=60.0, roles=frozenset({"classify"}))


def ask(text: str = "환불?", **fields: Any) -> ChatRequest:
    return ChatRequest(model="m", messages=[{"role": "user", "content": text}], **{"temperature": 0.0, **fields})


class House:
    def __init__(self, answer: Callable[[int], ChatAnswer | BaseException] = lambda n: say(f"답 {n}")) -> None:
        self.clock = VirtualClock()
        self.events: list[Event] = []
        self.script = Scripted(self._play)
        self.endpoint = Reusing(self.script, [RULE], clock=self.clock, observer=self.events.append)
        self._answer = answer
        self.number = 0
        self.seconds = 1.0

    async def _play(self, request: ChatRequest, context: CallContext) -> Any:
        self.number += 1
        number = self.number
        await self.clock.sleep(self.seconds)
        answer = self._answer(number)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def ask(self, request: ChatRequest | None = None, **context: Any) -> ChatAnswer:
        reply = await self.endpoint.open(request or ask(), CallContext(**{"role": "classify", **context}))
        return await reply.message()

    async def many(self, count: int, **fields: Any) -> list[ChatAnswer | BaseException]:
        return await asyncio.gather(*(self.ask(ask(**fields)) for _ in range(count)), return_exceptions=True)

    @property
    def calls(self) -> int:
        return len(self.script.requests)


async def test_g23_equal_questions_at_once_are_one_call() -> None:
    house = House(lambda n: ChatAnswer(message={}, content="환불", usage=Usage(input=9, output=1), usd_pico=7))
    found = [each for each in await house.many(100) if isinstance(each, ChatAnswer)]
    assert house.calls == 1
    assert [answer.text for answer in found] == ["환불"] * 100
    assert sum(answer.usd_pico or 0 for answer in found) == 7
    assert sum(answer.usage.input for answer in found if answer.usage) == 9
    assert [event.usd_pico for event in house.events if isinstance(event, Reused)] == [7] * 99


async def test_it_is_asked_again_after_its_time() -> None:
    house = House()
    assert [(await house.ask()).text for _ in range(3)] == ["답 1"] * 3
    await house.clock.sleep(60.0)
    assert (await house.ask()).text == "답 2"


async def test_g23_errors_are_nobody_elses() -> None:
    house = House(lambda n: UpstreamFault("x", status=500) if n < 3 else say("답"))
    found = await house.many(10)
    assert house.calls == 3
    assert [isinstance(each, UpstreamFault) for each in found] == [True, True] + [False] * 8


async def test_a_cancelled_call_lets_the_next_one_go() -> None:
    house = House()
    first, second = (asyncio.create_task(house.ask()) for _ in range(2))
    await house.clock.sleep(0.5)
    first.cancel()
    assert (await second).text == "답 2"


@pytest.mark.parametrize(
    "answer", [say("반만", finish="length"), say("금지", finish="content_filter"), say("가" * MOST_BYTES)]
)
async def test_only_whole_answers_of_some_size_are_kept(answer: ChatAnswer) -> None:
    house = House(lambda n: answer)
    await house.ask()
    await house.ask()
    assert house.calls == 2


async def test_tenants_and_other_roles_share_nothing() -> None:
    house = House()
    await asyncio.gather(house.ask(tenant="a"), house.ask(tenant="b"), house.ask(role="desk"), house.ask(role="desk"))
    assert house.calls == 4
    assert len({(await house.ask(tenant=name)).text for name in "ab"}) == 2 and house.calls == 4


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": None},
        {"temperature": 0.2},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"extra": {"tools": []}},
        {"stream": True},
        {"keep_raw": True},
        {"messages": [{"role": "tool", "tool_call_id": "1", "content": "7"}]},
    ],
)
def test_what_may_be_answered_in_another_way_is_asked_each_time(fields: dict[str, Any]) -> None:
    assert reusable(ask())
    given: dict[str, Any] = {"model": "m", "messages": [], "temperature": 0.0, **fields}
    assert not reusable(ChatRequest(**given))


async def test_no_more_than_some_are_kept() -> None:
    house = House()
    house.seconds = 0.01
    for number in range(MOST_KEPT + 1):
        await house.ask(ask(f"{number}"))
    await house.ask(ask("1"))
    assert house.calls == MOST_KEPT + 1
    await house.ask(ask("0"))
    assert house.calls == MOST_KEPT + 2
