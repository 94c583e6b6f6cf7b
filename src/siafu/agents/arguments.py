"""Which tool calls of a reply may run, and what the model is told about those that may not. Nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import msgspec

from siafu.border.canonical import fingerprint
from siafu.border.text import preview
from siafu.errors import OutcomeUnknown, ToolDenied, ToolFault
from siafu.gateway.chat import ChatAnswer, ToolCall
from siafu.tools.schema import parse_arguments, require
from siafu.tools.toolset import Tool

CUT_REASONS = frozenset({"length", "content_filter"})  # finish reasons of a message that is not whole


class ReadyCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that may run, with its parsed and validated arguments."""

    call: ToolCall
    arguments: dict[str, Any]


class RefusedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was not run. `text`: what the model is told.

    `reason`: cut (the reply was), call_limit, tool_denied (no such tool here), tool_arguments_invalid,
    outcome_unknown (the same call was made before and nobody knows whether it worked).
    """

    call: ToolCall
    reason: str
    text: str


def check(
    answer: ChatAnswer, tools: Mapping[str, Tool], *, allowed: int, barred: Set[str] = frozenset()
) -> list[ReadyCall | RefusedCall]:
    """Judge every tool call of `answer`, in order; the first `allowed` good ones are ready.

    `barred`: `identity` of calls that must not be made again. A reply that was cut runs nothing, even where what is
    left of it happens to parse.
    """
    checked: list[ReadyCall | RefusedCall] = []
    for call in answer.tool_calls:
        if answer.finish_reason in CUT_REASONS:
            text = (
                f"your message was cut (finish_reason {answer.finish_reason!r}). Call again, with less in one message."
            )
            checked.append(RefusedCall(call=call, reason="cut", text=text))
            continue
        try:
            arguments = _arguments(call, tools, barred)
        except ToolFault as fault:
            checked.append(RefusedCall(call=call, reason=fault.code, text=fault.message))
            continue
        if allowed > 0:
            checked.append(ReadyCall(call=call, arguments=arguments))
        else:
            text = "the limit of tool calls is reached. Answer with what you have."
            checked.append(RefusedCall(call=call, reason="call_limit", text=text))
        allowed -= 1
    return checked


def identity(name: str, arguments: Mapping[str, Any]) -> str:
    """What makes two calls the same call."""
    return fingerprint([name, arguments])


def _arguments(call: ToolCall, tools: Mapping[str, Tool], barred: Set[str]) -> dict[str, Any]:
    tool = tools.get(call.name)
    if tool is None:
        offered = f"your tools are: {', '.join(tools)}" if tools else "you have no tools"
        raise ToolDenied(f"there is no tool {preview(call.name, 80)!r}; {offered}.")
    arguments = parse_arguments(call.arguments, tool=tool.name)
    require(tool.input_schema, arguments, tool.name)
    if barred and identity(call.name, arguments) in barred:
        raise OutcomeUnknown("this call was made before and its outcome is unknown; it is not repeated.")
    return arguments
