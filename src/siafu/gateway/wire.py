"""The wire format of `/chat/completions`: requests out, whole answers in. Streams are in `stream.py`.

A body is trusted in nothing: what is no answer becomes a ModelError, what is one becomes a ChatAnswer whose message
can be replayed as it is.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from siafu.border.canonical import dumps, loads, scrubbed
from siafu.border.secrets import redact
from siafu.errors import BoundaryError, ModelError
from siafu.gateway.chat import MAX_ANSWER_BYTES, ChatAnswer, ChatRequest, ToolCall
from siafu.gateway.classify import Detail, error_detail, judge, malformed
from siafu.gateway.usage import read_usage

OWN_FIELDS = frozenset(
    {
        "model",
        "messages",
        "tools",
        "tool_choice",
        "response_format",
        "temperature",
        "max_tokens",
        "stream",
        "stream_options",
    }
)
MAX_TOOL_CALLS = 128
MAX_ID = 256  # characters of a tool call's id; a longer one is replaced
MAX_WORD = 200  # characters of the names and words of an upstream that go into records and labels
_CHARSET = re.compile(r"charset=\"?([\w-]{1,40})", re.IGNORECASE)
_encode = msgspec.json.Encoder().encode


class _Body(msgspec.Struct):
    """The top of a completion; other fields are skipped unread."""

    id: Any = None
    model: Any = None
    choices: Any = None
    usage: Any = None
    error: Any = None
    object: Any = None
    message: Any = None
    code: Any = None

    def failure(self) -> Any:
        """The error object in it, None when there is none: of the whole, of its choice, or the body itself when it has
        a code or a message in place of choices.
        """
        choice = self.choices[0] if isinstance(self.choices, list) and self.choices else None
        found = self.error or (choice.get("error") if isinstance(choice, dict) else None)
        if found or self.object == "error" or (not self.choices and (self.code or isinstance(self.message, str))):
            return found or {"message": self.message, "code": self.code}
        return None


_decode = msgspec.json.Decoder(_Body).decode


def encode(request: ChatRequest) -> bytes:
    """The JSON body of a request. Lone surrogates and the like are replaced, so one bad character in a tool's output
    does not end a conversation.
    """
    try:
        return _encode(request.body())
    except UnicodeEncodeError:
        return _encode(scrubbed(request.body()))


def parse_answer(body: bytes, *, content_type: str = "", max_bytes: int = MAX_ANSWER_BYTES) -> ChatAnswer:
    """The answer in the body of a plain reply with status 200.

    Raises: MalformedReply when there is none; the error that the body's error object stands for (429 -> RateLimited).
    """
    found = decode(body, content_type=content_type, max_bytes=max_bytes)
    if (error := found.failure()) is not None:
        raise body_error(error)
    choices = found.choices
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise malformed("it has no choices", content_type=content_type, body=body)
    choice = choices[0]
    message = choice.get("message")
    if not isinstance(message, dict):
        raise malformed("its choice has no message", content_type=content_type, body=body)
    usage = found.usage if found.usage is not None else choice.get("usage")
    return answer(message, choice.get("finish_reason"), usage, model=found.model, id=found.id)


def decode(data: bytes, *, content_type: str = "", max_bytes: int = MAX_ANSWER_BYTES) -> _Body:
    """The top of a completion or chunk.

    Raises: MalformedReply when `data` is too large, no JSON, or no object.
    """
    if len(data) > max_bytes:
        raise malformed(f"it is larger than {max_bytes:,} bytes", content_type=content_type, body=data)
    try:
        if b"\\u0000" not in data:
            return _decode(data)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:  # again and slowly: lone surrogates, NUL and broken UTF-8 are replaced
        return msgspec.convert(loads(_in_utf8(data, content_type), max_bytes=max_bytes, what="it"), _Body)
    except (BoundaryError, msgspec.ValidationError) as error:
        what = error.message if isinstance(error, BoundaryError) else "it is no JSON object"
        raise malformed(what, content_type=content_type, body=data) from None


def _in_utf8(data: bytes, content_type: str) -> bytes | str:
    """JSON in another encoding, when the head of the answer names one: there are gateways that speak EUC-KR."""
    named = _CHARSET.search(content_type)
    try:
        return data if named is None else data.decode(named[1])
    except (LookupError, UnicodeError):
        return data


def body_error(error: Any) -> ModelError:
    """The error that an error object in a 200 body or a stream stands for."""
    return judge(200, error_detail({"error": error}) or Detail(text="it gave no reason"))


def answer(message: dict[str, Any], finish: Any, usage: Any, *, model: Any, id: Any) -> ChatAnswer:
    """The validated answer made of a raw message (which is changed in place where ids or types need it).

    Raises: MalformedReply, UpstreamFault.
    """
    if not isinstance(finish, str) or not finish:
        raise malformed("it was cut: there is no finish reason")
    if finish == "error":
        raise judge(200, Detail(text="generation stopped with an error"))
    message["role"] = "assistant"
    finish, model, id = _words(finish, model, id)
    return ChatAnswer(
        message=message,
        content=_content(message.get("content")),
        tool_calls=_tool_calls(message) if message.get("tool_calls") else (),
        finish_reason=finish,
        usage=read_usage(usage),
        model=model,
        id=id,
    )


def _words(*values: Any) -> list[str]:
    """Names and words of an upstream as they go into records: short, and without secrets."""
    words = [value[:MAX_WORD] if isinstance(value, str) else "" for value in values]
    together = "\n".join(words)
    return words if redact(together) == together else [redact(word) for word in words]


def _content(content: Any) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    raise malformed("its content is no text")


def _tool_calls(message: dict[str, Any]) -> tuple[ToolCall, ...]:
    """The calls, with ids made unique here and in the message."""
    raw = message["tool_calls"]
    if not isinstance(raw, list) or len(raw) > MAX_TOOL_CALLS:
        raise malformed(f"its tool calls are no list of at most {MAX_TOOL_CALLS}")
    given = [call.get("id") if isinstance(call, dict) else None for call in raw]
    taken = {id for id in given if isinstance(id, str) and id}
    used: set[str] = set()
    calls, written = [], []
    for index, (call, id) in enumerate(zip(raw, given, strict=True)):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise malformed("a tool call in it names no function")
        if not isinstance(id, str) or not 0 < len(id) <= MAX_ID or id in used:
            id = _free_id(id if isinstance(id, str) and 0 < len(id) <= MAX_ID else "call", index, taken)
        used.add(id)
        taken.add(id)
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else "" if arguments is None else dumps(arguments).decode()
        calls.append(ToolCall(id, function["name"], text))
        written.append({**call, "id": id, "function": {**function, "arguments": text}})
    message["tool_calls"] = written
    return tuple(calls)


def _free_id(stem: str, index: int, taken: set[str]) -> str:
    id = f"{stem}_{index}"
    while id in taken:
        id += "_"
    return id
