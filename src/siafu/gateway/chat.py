"""The words of a model call: request, tool call, usage, answer. Chat messages are plain dicts in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from siafu.border.canonical import canonical, dumps, loads
from siafu.errors import OutputInvalid, SiafuError

Message = Mapping[str, Any]
MAX_ANSWER_BYTES = 4 * 1024 * 1024


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to `/chat/completions`. `None` = not sent. `max_tokens`: tokens of output.

    `extra`: further body fields, sent untouched (a field named like one of ours is refused by the transport).
    `given`: fields of ours as `msgspec.Raw`, sent byte for byte instead of what stands here. `keep_raw`: the answer and
    its deltas hold the upstream's own bytes too. Both are for passing on what somebody else asked.
    """

    model: str
    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] | None = None
    response_format: Mapping[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    stream: bool = False
    extra: Mapping[str, Any] = {}
    given: Mapping[str, Any] = {}
    keep_raw: bool = False

    def body(self) -> dict[str, Any]:
        """The JSON body, without `None`s, in a fixed key order (a stable prefix for prompt caches)."""
        body: dict[str, Any] = {"model": self.model}
        if self.tools:
            body["tools"] = self.tools
        body["messages"] = self.messages
        if self.tool_choice is not None:
            body["tool_choice"] = self.tool_choice
        if self.response_format is not None:
            body["response_format"] = self.response_format
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        if self.stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        if self.given:
            body.update(self.given)
        if self.extra:
            body.update(self.extra)
        return body

    def canonical(self) -> bytes:
        """What makes two requests the same: the body in canonical JSON, whether streamed or not."""
        body = self.body()
        body.pop("stream", None)
        body.pop("stream_options", None)
        return canonical(body)


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """A model's wish to call a tool. `arguments`: the JSON text as the model wrote it, unparsed and untrusted.

    `id` is unique within its message (the gateway makes it so) and stands in the raw message too.
    """

    id: str
    name: str
    arguments: str


class Usage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tokens of one answer. `cached` and `cache_write` are parts of `input`; `reasoning` is a part of `output`.
    `doubtful`: the upstream's counts of the cache contradict each other, and were cut to what can be.
    """

    input: int = 0
    output: int = 0
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0
    doubtful: bool = False


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole, validated answer.

    `message`: the assistant's message as it came (with `reasoning_content` and other unknown fields; tool-call ids
    made unique), to be replayed verbatim. `content`: its text, None when there is none. `finish_reason`: stop,
    length, tool_calls, content_filter or the upstream's own word. `usage`: None = the upstream did not say.
    `model`: the model that answered, as the upstream names it. `usd_pico`: None = unknown. `instead_of`: the model that
    was wanted, when a cheaper one was asked to keep a budget. `raw`: the body as it came, when the request asked to
    keep it and the answer was not streamed.
    """

    message: Mapping[str, Any]
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = "stop"
    usage: Usage | None = None
    model: str = ""
    id: str = ""
    usd_pico: int | None = None
    attempts: int = 1
    instead_of: str = ""
    raw: bytes | None = None

    @property
    def text(self) -> str:
        """The content, or an empty string."""
        return self.content or ""

    def json(self) -> Any:
        """The content as JSON; a Markdown fence around it is taken off.

        Raises: OutputInvalid when it is no JSON (also when the answer was cut).
        """
        try:
            return loads(unfenced(self.text), max_bytes=MAX_ANSWER_BYTES, what="the model's answer")
        except SiafuError as error:
            raise OutputInvalid(error.message) from None


def packed(answer: ChatAnswer) -> bytes:
    """An answer as JSON, to be kept. Its text, which may be long, stands in its message only."""
    once = answer.content is not None and answer.message.get("content") == answer.content
    return dumps(msgspec.structs.replace(answer, content=None) if once else answer)


def unpacked(data: bytes) -> ChatAnswer:
    """The answer of `packed`."""
    answer = msgspec.json.decode(data, type=ChatAnswer)
    text = answer.message.get("content")
    return msgspec.structs.replace(answer, content=text) if answer.content is None and isinstance(text, str) else answer


def unfenced(text: str) -> str:
    """`text` without a Markdown code fence around the whole of it. Fences inside string values stay."""
    body = text.strip()
    if not body.startswith("```"):
        return body
    first, newline, rest = body.partition("\n")
    if not newline or "`" in first[3:] or not rest.rstrip().endswith("```"):
        return body
    return rest.rstrip()[:-3].strip()
