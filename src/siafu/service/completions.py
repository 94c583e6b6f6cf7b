"""`POST /v1/chat/completions`: the question passed on, the answer passed back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import msgspec

from siafu.border.money import to_usd
from siafu.border.text import preview
from siafu.gateway.chat import ChatAnswer
from siafu.gateway.endpoint import Delta, Endpoint, Reply, ReplyHead
from siafu.observe.calls import CallContext
from siafu.service.exchange import Exchange, Header
from siafu.service.reading import Asked

STREAM_HEADERS: list[Header] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]
DONE = b"data: [DONE]\n\n"


class _Top(msgspec.Struct):
    choices: list[Any] | None = None


_top = msgspec.json.Decoder(_Top).decode


async def complete(x: Exchange, endpoint: Endpoint, asked: Asked, context: CallContext) -> None:
    """Ask and answer. Raises: SiafuError; after the answer has begun, too."""
    reply = await endpoint.open(asked.request, context)
    headers = about(reply.head, x.arrived)
    if asked.request.stream:
        await _stream(x, reply, headers, wants_usage=asked.wants_usage)
        return
    answer = await reply.message()
    if answer.usd_pico is not None:
        headers.append(cost_header(answer.usd_pico))
    await x.answer(answer.raw or b"", headers)


def about(head: ReplyHead, arrived: float) -> list[Header]:
    """What siafu did, as headers."""
    waited = max(0.0, head.began - arrived) * 1000
    found = [
        (b"x-siafu-upstream", head.upstream.encode("ascii", "replace")),
        (b"x-siafu-attempts", b"%d" % head.attempts),
        (b"x-siafu-queue-ms", b"%.1f" % waited),
    ]
    if head.request_id:
        found.append((b"x-siafu-upstream-request-id", preview(head.request_id, 200).encode("ascii", "replace")))
    return found


def cost_header(usd_pico: int) -> Header:
    usd: Decimal = to_usd(usd_pico)
    return (b"x-siafu-cost-usd", format(usd, "f").encode())


async def _stream(x: Exchange, reply: Reply, headers: list[Header], *, wants_usage: bool) -> None:
    """Pass events on as they come. The next one is read when the client has room for it."""
    try:
        await x.begin(200, STREAM_HEADERS + headers)
        whole = True
        deltas: AsyncIterator[Delta] = reply.deltas()
        async for delta in deltas:
            if not delta.events:  # the upstream did not stream
                whole = False
            elif passed := b"".join([event(data) for data in delta.events if wants_usage or not _is_usage(data)]):
                await x.write(passed)
        answer = await reply.message()
        if not whole:
            await x.write(b"".join(spoken(answer, wants_usage=wants_usage)))
        await x.write(DONE, more=False)
    finally:
        await reply.aclose()


def event(data: bytes) -> bytes:
    """Data as a server-sent event."""
    if b"\n" in data:
        data = data.replace(b"\n", b"\ndata: ")
    return b"data: " + data + b"\n\n"


def _is_usage(data: bytes) -> bool:
    """Whether this is the event that tells tokens only: siafu asks for it, many clients cannot take one without
    choices.
    """
    if b'"usage"' not in data or b'"choices"' not in data:
        return False
    try:
        return _top(data).choices == []
    except msgspec.DecodeError:
        return False


def spoken(answer: ChatAnswer, *, wants_usage: bool, created: float = 0.0) -> list[bytes]:
    """A whole answer as the events of a stream: one with all of it, and one with the tokens for who wants them."""
    message = dict(answer.message)
    if calls := message.get("tool_calls"):
        message["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    head = {"id": answer.id, "object": "chat.completion.chunk", "created": int(created), "model": answer.model}
    choice = {"index": 0, "delta": message, "finish_reason": answer.finish_reason}
    parts: list[dict[str, Any]] = [{**head, "choices": [choice]}]
    if wants_usage and answer.usage is not None:
        parts.append({**head, "choices": [], "usage": usage(answer.usage.input, answer.usage.output)})
    return [event(msgspec.json.encode(part)) for part in parts]


def usage(input: int, output: int) -> dict[str, int]:
    """Tokens as OpenAI tells them."""
    return {"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output}
