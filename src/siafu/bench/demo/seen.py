"""What the endpoint saw of a program: its records, read without that program's help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from siafu.gateway.chat import Usage


class CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int | None = 0


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """A `usage` object of the wire."""

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: CachedTokens | None = None

    def usage(self) -> Usage:
        details = self.prompt_tokens_details
        cached = (details.cached_tokens or 0) if details else 0
        return Usage(input=self.prompt_tokens, output=self.completion_tokens, cached=cached)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that count of a record of `/_sim/requests`. Times: seconds since 1970; None = not yet."""

    n: int
    arrived: float
    ended: float | None = None
    service_seconds: float = 0.0
    status: int = 0
    model: str | None = None
    sha256: str = ""
    usage: Tokens | None = None
    finish_reason: str | None = None
    client_left: bool = False
    body: str | None = None


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One call as the endpoint saw it.

    request: the customer request it belongs to, None when it is none of them. question: equal for calls with the same
    bytes. usage: what is billed, also for an answer that was cut off; None = nothing. complete: the whole answer was
    sent. wants_tools: that answer asks for tools. final: it is the text for the customer.
    """

    request: str | None
    question: str
    model: str
    arrived: float
    ended: float | None
    status: int
    usage: Usage | None
    service_seconds: float
    complete: bool
    wants_tools: bool
    final: bool


class _Message(msgspec.Struct):
    role: str = ""
    content: Any = None


class _Body(msgspec.Struct):
    messages: list[_Message] = []
    tools: list[Any] | None = None


_decode = msgspec.json.Decoder(_Body).decode


class Reader:
    """Reads records of calls about the given requests.

    texts: what each customer wrote, by request id; no two are the same.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._ids = {text: key for key, text in texts.items()}
        self._longest_first = sorted(self._ids, key=len, reverse=True)

    def read(self, record: Record) -> Seen:
        body = _body(record.body)
        complete = record.status == 200 and record.ended is not None and not record.client_left
        wants_tools = complete and record.finish_reason == "tool_calls"
        return Seen(
            request=self._request(body),
            question=record.sha256,
            model=record.model or "",
            arrived=record.arrived,
            ended=record.ended,
            status=record.status,
            usage=None if record.usage is None else record.usage.usage(),
            service_seconds=record.service_seconds,
            complete=complete,
            wants_tools=wants_tools,
            final=complete and not wants_tools and _answers(body),
        )

    def _request(self, body: _Body) -> str | None:
        """The id of the request whose text the first user message is, or contains."""
        asked = next((_text(message.content) for message in body.messages if message.role == "user"), "")
        if asked in self._ids:
            return self._ids[asked]
        return next((self._ids[text] for text in self._longest_first if text in asked), None)


def _answers(body: _Body) -> bool:
    """Whether a text in reply to `body` is an answer to the customer: whoever only sorts is offered no tools."""
    return bool(body.tools) or any(message.role == "tool" for message in body.messages)


def _body(text: str | None) -> _Body:
    try:
        return _decode(text or "{}")
    except msgspec.MsgspecError:  # refused by the endpoint, too
        return _Body()


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""
