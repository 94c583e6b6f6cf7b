"""Which models want another spelling of the output limit is learned from their refusals."""

from __future__ import annotations

from typing import Any

import pytest

from siafu.errors import RequestRefused
from siafu.gateway.chat import ChatRequest
from siafu.gateway.dialect import Spelled
from siafu.gateway.scripted import Scripted
from siafu.observe.calls import CallContext

CALL = CallContext()


def asks(model: str = "o-new", **fields: object) -> ChatRequest:
    return ChatRequest(model=model, messages=[{"role": "user", "content": "안녕"}], max_tokens=50, extra=fields)


def modern(request: ChatRequest, context: CallContext) -> str | RequestRefused:
    if request.max_tokens is not None:
        return RequestRefused("no max_tokens here", status=400, provider_code="unsupported_parameter")
    assert request.extra["max_completion_tokens"] == 50
    return "ok"


async def test_a_refused_spelling_is_sent_the_other_way_and_remembered_for_that_model() -> None:
    inner = Scripted(modern)
    spelled = Spelled(inner)
    for _ in range(2):
        reply = await spelled.open(asks(user="kim"), CALL)
        assert (await reply.message()).text == "ok"
    assert [request.max_tokens for request in inner.requests] == [50, None, None]
    assert inner.requests[-1].extra["user"] == "kim"
    inner.requests.clear()
    await spelled.open(asks("another"), CALL)
    assert inner.requests[0].max_tokens == 50


async def test_when_another_parameter_was_meant_the_first_refusal_counts() -> None:
    first = RequestRefused("temperature", status=400, provider_code="unsupported_parameter")
    inner = Scripted([first, RequestRefused("again", status=400), first, RequestRefused("again", status=400)])
    spelled = Spelled(inner)
    for _ in range(2):
        with pytest.raises(RequestRefused, match="temperature"):
            await spelled.open(asks(), CALL)
    assert len(inner.requests) == 4


async def test_other_refusals_and_requests_without_a_limit_pass() -> None:
    inner = Scripted([RequestRefused("bad", status=400, provider_code="invalid"), "ok"])
    spelled = Spelled(inner)
    with pytest.raises(RequestRefused, match="bad"):
        await spelled.open(asks(), CALL)
    assert await spelled.open(ChatRequest(model="m", messages=[]), CALL)
    assert len(inner.requests) == 2


TURN: dict[str, Any] = {
    "role": "assistant",
    "content": "주문",
    "reasoning_content": "r1",
    "reasoning_details": [1],
    "tool_calls": [],
}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "reasoning_content"},
    TURN,
    {"role": "tool", "content": "1", "tool_call_id": "a"},
]


@pytest.mark.parametrize("status", [400, 422])
async def test_f14_fields_of_another_model_are_left_out_for_one_that_refuses_them(status: int) -> None:
    def strict(request: ChatRequest, context: CallContext) -> str | RequestRefused:
        if request.model == "strict" and "reasoning_content" in request.messages[-2]:
            return RequestRefused("property 'reasoning_content' is unsupported", status=status)
        return "ok"

    inner = Scripted(strict)
    spelled = Spelled(inner)
    for model in ("strict", "strict", "kimi"):
        assert await spelled.open(ChatRequest(model=model, messages=TALK), CALL)
    bare = [TALK[0], {"role": "assistant", "content": "주문", "tool_calls": []}, TALK[2]]
    assert [request.messages for request in inner.requests] == [TALK, bare, bare, TALK]
    assert await spelled.open(ChatRequest(model="strict", messages=TALK[1:]), CALL)


async def test_f14_a_model_that_wants_them_back_is_not_sent_less() -> None:
    """The refusal of one that misses the field names it too; what has none to leave out is sent once."""
    missing = RequestRefused("reasoning_content is missing in message 1", status=400)
    inner = Scripted([missing, missing, missing])
    spelled = Spelled(inner)
    with pytest.raises(RequestRefused):
        await spelled.open(ChatRequest(model="kimi", messages=TALK[:1]), CALL)
    assert len(inner.requests) == 1
    with pytest.raises(RequestRefused):
        await spelled.open(ChatRequest(model="kimi", messages=TALK), CALL)
    assert len(inner.requests) == 3
    again = Scripted(["ok"])
    spelled._inner = again
    assert await spelled.open(ChatRequest(model="kimi", messages=TALK), CALL)
    assert again.requests[0].messages == TALK
