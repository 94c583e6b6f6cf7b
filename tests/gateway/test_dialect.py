"""Which models want another spelling of the output limit is learned from their refusals."""

from __future__ import annotations

from typing import Any

import pytest

import siafu
from siafu.errors import RequestRefused
from siafu.gateway.chat import ChatRequest
from siafu.gateway.dialect import Spelled
from siafu.gateway.scripted import Scripted
from siafu.observe.calls import CallContext

from .conftest import KEY
from .fake_upstream import OK, Arrival, error, http, upstream

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


SCHEMA = {"type": "object", "properties": {"이름": {"type": "string"}}, "required": ["이름"]}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}


def refuses(*kinds: str, message: str = "response_format type is unavailable now", **fields: Any) -> Any:
    def answer(request: ChatRequest, context: CallContext) -> str | RequestRefused:
        form = (request.response_format or {}).get("type")
        return RequestRefused(message, **{"status": 400, **fields}) if form in kinds else "{}"

    return answer


@pytest.mark.parametrize(
    ("kinds", "forms"),
    [
        ((), ["json_schema"] * 2),
        (("json_schema",), ["json_schema", "json_object", "json_object"]),
        (("json_schema", "json_object"), ["json_schema", "json_object", None, None]),
    ],
)
@pytest.mark.parametrize("system", [True, False])
async def test_a_form_that_a_model_does_not_know_is_told_in_words_and_remembered(
    kinds: tuple[str, ...], forms: list[str | None], system: bool
) -> None:
    inner = Scripted(refuses(*kinds))
    spelled = Spelled(inner)
    talk = [{"role": "system", "content": "상담원"}] * system + [{"role": "user", "content": "안녕"}]
    for _ in range(2):
        assert await spelled.open(ChatRequest(model="m", messages=talk, response_format=FORM), CALL)
    assert [(request.response_format or {}).get("type") for request in inner.requests] == forms
    told = inner.requests[-1].messages
    assert told[-1] == talk[-1] and told[0]["role"] == ("system" if system or kinds else "user")
    assert ('"이름"' in told[0]["content"]) is bool(kinds) and told[0]["content"].startswith("상담원") is system
    plain = ChatRequest(model="m", messages=talk)
    assert await spelled.open(plain, CALL) and inner.requests[-1] == plain


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({"param": "response_format"}, 2),
        ({"status": 422, "message": "json_schema: extra fields not permitted"}, 2),
        ({"param": "response_format.json_schema"}, 1),
        ({"message": "Invalid schema for response_format 'answer'"}, 1),
        ({"message": "messages: too many"}, 1),
        ({"status": 404}, 1),
    ],
)
async def test_only_a_refusal_of_the_form_itself_asks_for_another(fields: dict[str, Any], sent: int) -> None:
    inner = Scripted(refuses("json_schema", **fields))
    call = Spelled(inner).open(ChatRequest(model="m", messages=TALK[:1], response_format=FORM), CALL)
    if sent == 1:
        with pytest.raises(RequestRefused):
            await call
    else:
        await call
    assert len(inner.requests) == sent


async def test_an_agent_gets_its_answer_from_a_server_that_knows_no_schemas() -> None:
    """The first answer to the schema in words does not fit: one repair turn, and it does."""
    seen: list[Any] = []

    def server(arrival: Arrival) -> Any:
        seen.append(arrival.json)
        form = arrival.json.get("response_format", {}).get("type")
        if form == "json_schema":
            return error(400, "This response_format type is unavailable now", type="invalid_request_error")
        said = '{"이름": 3}' if "cannot be used" not in arrival.body.decode() else '{"이름": "kim"}'
        return http({**OK, "choices": [{"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}]})

    agent = siafu.Agent(name="ask", instructions="상담원", output=SCHEMA)
    async with upstream(server) as fake:
        run = siafu.map(agent, ["누구?"] * 3, base_url=fake.base_url, api_key=KEY, model="m", concurrency=1)
        results = [result async for result in run]
    assert [result.value for result in results] == [{"이름": "kim"}] * 3
    assert [each.get("response_format", {}).get("type") for each in seen] == ["json_schema", *["json_object"] * 6]
