"""The swarm as a work function: no barrier, what an answer is made of, what is told of it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from siafu.agents.steps import FinalStep, ModelStep, Step, ToolStep
from siafu.apps.support.classify import Ticket
from siafu.apps.support.requests import parse_request
from siafu.errors import StepLimit
from siafu.gateway.chat import ChatAnswer, ChatRequest
from siafu.gateway.scripted import Scripted, say
from siafu.observe.calls import CallContext
from support.desk import GONE, SUPPORT, answer, model, request, shop, start, ticket, turn


async def test_answers_are_given_before_the_last_request_is_sorted() -> None:
    last = asyncio.Event()
    inner = model(lambda text: ticket("order_status"))

    async def play(asked: ChatRequest, context: CallContext) -> ChatAnswer:
        if context.role == "classify" and context.task == "r49":
            await last.wait()
        return await (await inner.open(asked, context)).message()

    async with (
        asyncio.timeout(20),
        start([request(id=f"r{n}") for n in range(50)], Scripted(play), concurrency=50) as run,
    ):
        before = [await anext(run) for _ in range(49)]  # would wait for ever behind a barrier
        last.set()
        after = [result async for result in run]
    assert {result.key for result in before} == {f"r{n}" for n in range(49)}
    assert [result.key for result in after] == ["r49"]
    assert all(result.ok for result in [*before, *after])


async def test_an_answer_says_what_it_is_made_of() -> None:
    steps: list[tuple[str, Step | Ticket]] = []
    support = msgspec.structs.replace(SUPPORT, on_step=lambda *told: steps.append(told))
    found = await answer(request(), model(lambda text: ticket("order_status", 1)), support=support)
    assert (found.outcome, found.category, found.priority) == ("answered", "order_status", 1)
    assert (found.answer, found.model_used) == ("배송 중입니다.", "small")
    assert (found.steps, found.tool_calls, found.flagged) == (3, 1, "")
    assert [request for request, _ in steps] == ["r1"] * 5
    assert [type(step) for _, step in steps] == [Ticket, ModelStep, ToolStep, ModelStep, FinalStep]


async def test_an_unknown_order_is_a_question_back() -> None:
    found = await answer(request(), model(lambda text: ticket("order_status")), shop(get_order_status=GONE))
    assert (found.outcome, found.flagged) == ("needs_info", "")


async def test_each_request_has_a_context_of_its_own() -> None:
    endpoint = model(lambda text: ticket("order_status"))
    async with start([request(f"문의 {n}", id=f"r{n}") for n in range(20)], endpoint) as run:
        assert [result.ok async for result in run] == [True] * 20
    for asked, context in zip(endpoint.requests, endpoint.contexts, strict=True):
        said = msgspec.json.encode(asked.messages).decode()
        assert [n for n in range(20) if f'"문의 {n}"' in said] == [int(context.task[1:])]


async def test_a_model_that_never_answers_is_stopped_and_nobody_else_is() -> None:
    looks = say(None, ("c", "get_order_status", '{"order_id": "1001"}'))

    def play(asked: ChatRequest, context: CallContext) -> ChatAnswer | str:
        if context.role == "classify":
            return ticket("order_status")
        return looks if context.task == "loop" or turn(asked) == 0 else "답변"

    async with asyncio.timeout(20), start([request(id="loop"), request(id="fine")], Scripted(play)) as run:
        found = {result.key: result async for result in run}
    assert found["fine"].ok
    assert isinstance(found["loop"].exception, StepLimit)
    assert found["loop"].calls <= 8


async def test_a_cut_last_turn_is_flagged() -> None:
    looks = say(None, *((f"c{n}", "get_order_status", f'{{"order_id": "{1000 + n}"}}') for n in range(8)))
    found = await answer(request(), model(lambda text: ticket("order_status"), looks, "여기까지 확인했습니다."))
    assert (found.outcome, found.flagged, found.tool_calls) == ("answered", "last_turn", 8)


@pytest.mark.parametrize("text", ["주문 1001 \ud800 어디", "\x00" * 10, "🙏" * 5_000, "a\u2028b"])
async def test_odd_texts_are_answered(text: str) -> None:
    item = parse_request({"id": "r1", "customer": "kim", "text": text})
    assert (await answer(item, model(lambda text: ticket()))).outcome == "answered"
