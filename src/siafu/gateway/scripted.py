"""A scripted Endpoint for tests: answers from a list or a function, without a socket. Ships with siafu."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from siafu.gateway.chat import ChatAnswer, ChatRequest, ToolCall, Usage
from siafu.gateway.endpoint import PlainReply, Reply
from siafu.observe.calls import CallContext

Answer = ChatAnswer | BaseException | str
Script = Callable[[ChatRequest, CallContext], Answer | Awaitable[Answer]]


class Scripted:
    """Endpoint that plays `script`: an iterable of answers in order of arrival, or a function of the request.

    A str becomes an answer with that content; an exception is raised, a copy each time. `requests` and `contexts` hold
    what came in; `peak` the largest number of calls at once.
    """

    def __init__(self, script: Iterable[Answer] | Script) -> None:
        self._function = script if callable(script) else None
        self._answers = iter(()) if callable(script) else iter(script)
        self.requests: list[ChatRequest] = []
        self.contexts: list[CallContext] = []
        self.peak = 0
        self._now = 0

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        self.requests.append(request)
        self.contexts.append(context)
        self._now += 1
        self.peak = max(self.peak, self._now)
        try:
            await asyncio.sleep(0)
            given = self._function(request, context) if self._function else next(self._answers, None)
            answer = await given if isinstance(given, Awaitable) else given
        finally:
            self._now -= 1
        if answer is None:
            raise AssertionError(f"the script is over; request {len(self.requests)} was not expected")
        if isinstance(answer, BaseException):
            raise _anew(answer)
        return PlainReply(say(answer) if isinstance(answer, str) else answer)


def _anew(error: BaseException) -> BaseException:
    """The same error as an object of its own, as whoever passes it on writes on it."""
    twin = type(error).__new__(type(error))
    twin.args = error.args
    vars(twin).update(vars(error))
    return twin


def say(content: str | None, *calls: tuple[str, str, str], finish: str | None = None, **message: Any) -> ChatAnswer:
    """An answer with `content` and tool `calls` given as (id, name, arguments); further fields go into the message."""
    raw: dict[str, Any] = {"role": "assistant", "content": content, **message}
    if calls:
        raw["tool_calls"] = [
            {"id": i, "type": "function", "function": {"name": name, "arguments": text}} for i, name, text in calls
        ]
    return ChatAnswer(
        message=raw,
        content=content,
        tool_calls=tuple(ToolCall(*call) for call in calls),
        finish_reason=finish or ("tool_calls" if calls else "stop"),
        usage=Usage(input=10, output=2),
        model="scripted",
        usd_pico=0,
    )


def by_last_message(table: Mapping[str, Answer], default: Answer = "ok") -> Script:
    """A script that answers by the first key of `table` that occurs in the last message's content."""

    def script(request: ChatRequest, context: CallContext) -> Answer:
        text = str(request.messages[-1].get("content"))
        return next((answer for key, answer in table.items() if key in text), default)

    return script
