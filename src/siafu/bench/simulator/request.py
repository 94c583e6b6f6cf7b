"""What was asked, and what a real provider would refuse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from siafu.bench.simulator.checks import schema_error

ROLES = ("system", "developer", "user", "assistant", "tool")


class Refused(Exception):
    """The request is wrong: answered with `status` and an error body in OpenAI's shape."""

    def __init__(self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code


class Asked(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/chat/completions`. Unknown fields are ignored, as providers do."""

    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    user: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def most_tokens(self) -> int | None:
        """The largest answer wanted, in tokens; None = no maximum."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The tools' function objects."""
        return [tool["function"] for tool in self.tools or []]


_DECODER = msgspec.json.Decoder(Asked)


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message, whether its content is a string, parts or null."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def read(body: bytes, *, thinking: bool = False) -> Asked:
    """The request in `body`. With `thinking`, assistant tool calls must carry their `reasoning_content` back.

    Raises: Refused.
    """
    try:
        asked = _DECODER.decode(body)
    except msgspec.ValidationError as error:
        raise Refused(f"Invalid request: {error}", code="invalid_type") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Refused(f"We could not parse the JSON body of your request: {error}") from None
    if not asked.model:
        raise Refused("you must provide a model parameter", param="model")
    if not asked.messages:
        raise Refused("[] is too short - 'messages'", param="messages", code="empty_array")
    if asked.n not in (None, 1):
        raise Refused("this endpoint is simulated and gives one choice only; leave n away", param="n")
    if asked.most_tokens is not None and asked.most_tokens < 1:
        raise Refused("the maximum of output tokens must be at least 1", param="max_tokens", code="integer_below_min")
    _check_format(asked.response_format)
    _check_tools(asked)
    _check_messages(asked.messages, thinking)
    return asked


def _check_format(form: dict[str, Any] | None) -> None:
    if form is None:
        return
    if form.get("type") not in ("text", "json_object", "json_schema"):
        raise Refused("type must be text, json_object or json_schema", param="response_format.type")
    if form["type"] == "json_schema":
        described = form.get("json_schema")
        wrong = schema_error(described.get("schema")) if isinstance(described, dict) else "json_schema is missing"
        if wrong:
            raise Refused(f"Invalid schema for response_format: {wrong}", param="response_format.json_schema")


def _check_tools(asked: Asked) -> None:
    names = set()
    for number, tool in enumerate(asked.tools or []):
        function = tool.get("function")
        if (
            tool.get("type") != "function"
            or not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
        ):
            raise Refused(f"tools[{number}] must be a function with a name", param=f"tools[{number}]")
        wrong = schema_error(function.get("parameters") or {}, "parameters")
        if wrong:
            raise Refused(f"Invalid schema for function: {wrong}", param=f"tools[{number}].function.parameters")
        if function["name"] in names:
            raise Refused(f"duplicate tool name {function['name']!r}", param=f"tools[{number}].function.name")
        names.add(function["name"])
    choice = asked.tool_choice
    if choice is None:
        return
    if not asked.tools and choice != "none":
        raise Refused("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
    if isinstance(choice, str) and choice not in ("none", "auto", "required"):
        raise Refused(f"tool_choice {choice[:40]!r} is none of none, auto, required", param="tool_choice")
    if isinstance(choice, dict) and forced_name(choice) not in names:
        raise Refused("tool_choice names a function that is not among the tools", param="tool_choice")


def forced_name(choice: Mapping[str, Any]) -> str | None:
    """The function that a `tool_choice` object forces."""
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _check_messages(messages: list[dict[str, Any]], thinking: bool) -> None:
    """Every tool message answers a call of the assistant message before it, every call has exactly one answer."""
    waiting: dict[str, int] = {}  # ids of the last assistant message that have no tool message yet
    answered: set[str] = set()
    for number, message in enumerate(messages):
        where, role = f"messages[{number}]", message.get("role")
        if role not in ROLES:
            raise Refused(f"Invalid value: {role!r}. Supported values are {', '.join(ROLES)}.", param=f"{where}.role")
        if role == "tool":
            call_id = message.get("tool_call_id")
            if call_id in answered:
                raise Refused(f"Duplicate tool message for tool_call_id {call_id!r}", param=f"{where}.tool_call_id")
            if call_id not in waiting:
                raise Refused("messages with role 'tool' must answer a preceding tool call", param=f"{where}.role")
            answered.add(call_id)
            del waiting[call_id]
            _check_content(message, where)
            continue
        _none_waiting(waiting)
        calls = message.get("tool_calls") if role == "assistant" else None
        if calls:
            waiting, answered = _ids(calls, f"{where}.tool_calls", number), set()
            if thinking and not message.get("reasoning_content"):
                raise Refused(
                    "thinking is enabled but reasoning_content is missing in assistant tool call message "
                    f"at index {number}",
                    param=f"{where}.reasoning_content",
                )
        else:
            _check_content(message, where)
    _none_waiting(waiting)


def _none_waiting(waiting: dict[str, int]) -> None:
    if waiting:
        ids = ", ".join(list(waiting)[:5])
        raise Refused(
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
            f"'tool_call_id'. The following tool_call_ids did not have response messages: {ids}",
            param=f"messages[{next(iter(waiting.values()))}]",
        )


def _ids(calls: Any, where: str, number: int) -> dict[str, int]:
    ids: dict[str, int] = {}
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Refused("each tool call needs a function with a name", param=where)
        if not isinstance(function.get("arguments"), str):
            raise Refused("the arguments of a tool call must be a string", param=where)
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id:
            raise Refused("each tool call needs a non-empty id", param=where)
        if call_id in ids:
            raise Refused(f"Duplicate tool call id {call_id!r}", param=where)
        ids[call_id] = number
    return ids


def _check_content(message: dict[str, Any], where: str) -> None:
    content = message.get("content")
    if content is None and message["role"] == "assistant" and "content" in message:
        return
    if not isinstance(content, str | list):
        raise Refused("content must be a string or a list of parts", param=f"{where}.content", code="invalid_type")
