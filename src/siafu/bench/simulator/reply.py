"""An answer, and its two spellings: one JSON body, or the chunks of a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from siafu.bench.simulator.tokens import count, pieces

Json = dict[str, Any]


class Call(msgspec.Struct, frozen=True):
    """One tool call; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the assistant says. `content` is None when it only calls tools."""

    content: str | None = None
    calls: tuple[Call, ...] = ()
    finish: str = "stop"
    reasoning: str | None = None

    @property
    def tokens(self) -> int:
        """Tokens of everything in it; an answer costs at least one."""
        texts = [self.content or "", self.reasoning or "", *(call.name + call.arguments for call in self.calls)]
        return max(1, sum(map(count, texts)) + 3 * len(self.calls))


class Head(msgspec.Struct, frozen=True):
    """What every chunk and body of one answer repeats."""

    id: str
    created: int
    model: str

    def wrap(self, kind: str, choices: list[Json], **more: Any) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices, **more}


def message(answer: Answer) -> Json:
    """The assistant's message."""
    said: Json = {"role": "assistant", "content": answer.content}
    if answer.reasoning is not None:
        said["reasoning_content"] = answer.reasoning
    if answer.calls:
        said["tool_calls"] = [_call(call) for call in answer.calls]
    return said


def _call(call: Call) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def completion(head: Head, answer: Answer, usage: Json) -> Json:
    """The body of a plain answer."""
    choice = {"index": 0, "message": message(answer), "logprobs": None, "finish_reason": answer.finish}
    return head.wrap("chat.completion", [choice], usage=usage)


def chunks(head: Head, answer: Answer, usage: Json | None, size: int) -> Iterator[Json]:
    """The chunks of a streamed answer, `size` tokens of text each; `usage` in a last one without choices, if given."""

    def chunk(delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return head.wrap("chat.completion.chunk", [choice], **({"usage": None} if usage is not None else {}))

    yield chunk({"role": "assistant", "content": ""})
    for field, text in (("reasoning_content", answer.reasoning), ("content", answer.content)):
        for piece in pieces(text or "", size):
            yield chunk({field: piece})
    for index, call in enumerate(answer.calls):
        empty = Call(call.id, call.name, "")
        yield chunk({"tool_calls": [{"index": index, **_call(empty)}]})
        for piece in pieces(call.arguments, size):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, answer.finish)
    if usage is not None:
        yield head.wrap("chat.completion.chunk", [], usage=usage)


def usage_of(prompt: int, completed: int, cached: int) -> Json:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completed,
        "total_tokens": prompt + completed,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def error(message: str, kind: str, *, param: str | None = None, code: str | int | None = None) -> Json:
    """An error body in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
