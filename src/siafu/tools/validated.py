"""Arguments that do not fit a tool's schema never reach it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from siafu.border.text import preview
from siafu.errors import ConfigError, ToolDenied
from siafu.observe.calls import CallContext
from siafu.tools.schema import check_schema, require, validate
from siafu.tools.toolset import Tool, ToolResult, ToolSet

_log = logging.getLogger("siafu.tools")


class Validated:
    """The tools of `inner`; arguments are checked before anything is sent, structured results when they come back.

    A tool whose own schema cannot be used is left out, with a warning. A structured result that breaks the tool's
    output schema is dropped; the text of the result stays.
    """

    def __init__(self, inner: ToolSet) -> None:
        self._inner = inner
        self._seen: Sequence[Tool] | None = None
        self._tools: tuple[Tool, ...] = ()
        self._by_name: dict[str, Tool] = {}

    async def list(self) -> Sequence[Tool]:
        """The tools whose schemas can be used."""
        found = await self._inner.list()
        if found is not self._seen:
            self._tools = tuple(tool for tool in found if _usable(tool))
            self._by_name = {tool.name: tool for tool in self._tools}
            self._seen = found
        return self._tools

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        """Call one tool with arguments that fit it.

        Raises: ToolArgumentsInvalid or ToolDenied (unknown name) before anything is sent; ToolFault of the inner set.
        """
        await self.list()
        tool = self._by_name.get(name)
        if tool is None:
            raise ToolDenied(f"there is no usable tool {preview(name, 64)!r}", tool=preview(name, 64))
        require(tool.input_schema, arguments, name)
        result = await self._inner.call(name, arguments, context)
        if tool.output_schema is None or result.is_error or result.structured is None:
            return result
        problems = validate(tool.output_schema, result.structured)
        if problems:
            _log.warning("%s answered with data that breaks its own output schema: %s", name, problems[0])
            return msgspec.structs.replace(result, structured=None)
        return result


def _usable(tool: Tool) -> bool:
    try:
        check_schema(tool.input_schema)
        if tool.output_schema is not None:
            check_schema(tool.output_schema)
    except ConfigError as error:
        _log.warning("the tool %s of %s is left out: %s", tool.name, tool.server or "the functions", error.message)
        return False
    return True
