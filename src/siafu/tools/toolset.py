"""The ToolSet seam: `list()` and `call(name, arguments, context)`. Everything that offers or wraps tools is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from siafu.observe.calls import CallContext

NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a model sees it. `name`: at most 64 characters of [A-Za-z0-9_-]. Schemas are JSON Schema objects.

    The hints are what its author claims; they never relax a policy. annotations: all that its author claims, as sent.
    guarded: called through the effect contract (`siafu.tools.effects`), so the same call, made again at its step, has
    no second effect.
    """

    name: str
    description: str = ""
    input_schema: Mapping[str, Any] = msgspec.field(default_factory=lambda: dict(NO_ARGUMENTS))
    output_schema: Mapping[str, Any] | None = None
    read_only: bool = False
    idempotent: bool = False
    annotations: Mapping[str, Any] = {}
    guarded: bool = False
    server: str = ""

    def function(self) -> dict[str, Any]:
        """The tool in the shape of a chat request's `tools`."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.input_schema,
            },
        }


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool answered. `text`: for the model, bounded. `structured`: the same as data, when the tool has it.

    `is_error`: the tool said that it failed; `code`: its machine-readable word for it, empty when it gave none.
    `later`: nothing was done, and the same call may do it later.
    """

    text: str
    structured: Any = None
    is_error: bool = False
    code: str = ""
    later: bool = False


class ToolSet(Protocol):
    async def list(self) -> Sequence[Tool]:
        """All tools, in a stable order."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        """Call one tool. `arguments` have been parsed, not yet validated against the schema.

        Raises: ToolFault (ToolDenied, ToolArgumentsInvalid, ToolUnavailable, ToolTimeout, OutcomeUnknown).
        Cancelling tells the server, where the server can be told.
        """
        ...
