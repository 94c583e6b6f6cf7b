"""A request passed on byte for byte, and the upstream's own bytes kept."""

from __future__ import annotations

import json

import msgspec

from siafu.gateway.chat import ChatRequest
from siafu.observe.calls import CallContext

from .conftest import transport
from .fake_upstream import SSE_HEAD, http, http_chunk, piece, trickle, upstream

BODY = b'{ "id":"x","odd":1.0e2,"choices":[{"message":{"content":"\\ub124"},"finish_reason":"stop","logprobs":null}] }'
SAID = b'[{"role":"user" , "content":"\\uc548\xeb\x85\x95", "n": 1.0}]'
PASSED = ChatRequest(
    model="m", messages=(), given={"messages": msgspec.Raw(SAID), "temperature": msgspec.Raw(b"0.10")}, keep_raw=True
)


async def test_given_fields_are_sent_as_they_are_and_the_answer_kept_as_it_came() -> None:
    async with upstream([http(BODY)]) as gw, transport(gw.base_url) as t:
        reply = await t.open(PASSED, CallContext(attempts=1))
        answer = await reply.message()
        (arrival,) = gw.arrivals
    assert (answer.raw, answer.content) == (BODY, "네")
    assert arrival.body == b'{"model":"m","messages":' + SAID + b',"temperature":0.10}'
    assert reply.head.attempts == 2
    assert reply.head.began > 0


async def test_without_the_wish_nothing_is_kept() -> None:
    async with upstream([http(BODY)]) as gw, transport(gw.base_url) as t:
        reply = await t.open(msgspec.structs.replace(PASSED, keep_raw=False), CallContext())
        assert (await reply.message()).raw is None


async def test_each_event_of_a_stream_is_kept_as_it_came() -> None:
    events = [
        json.dumps(piece(role="assistant")),
        json.dumps(piece("네"), ensure_ascii=False),
        json.dumps(piece(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}])),
        json.dumps(piece(finish="stop")),
        '{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}',
    ]
    data = [http_chunk(f"data: {event}\n\n".encode()) for event in events]
    sent = trickle(SSE_HEAD, *data, http_chunk(b": a comment\n\ndata: [DONE]\n\n"), b"0\r\n\r\n", gap=0.01)
    async with upstream([sent]) as gw, transport(gw.base_url) as t:
        reply = await t.open(msgspec.structs.replace(PASSED, stream=True), CallContext())
        deltas = [delta async for delta in reply.deltas()]
        answer = await reply.message()
    assert [data.decode() for delta in deltas for data in delta.events] == events
    assert answer.text == "네"
    assert answer.usage is not None
    assert answer.usage.input == 3
