"""A span for each tool call, of any kind. Requests to MCP servers are spans of the MCP SDK, within it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from siafu.border.canonical import dumps
from siafu.observe import spans
from siafu.observe.calls import CallContext
from siafu.tools.toolset import Tool, ToolResult, ToolSet


class TracedTools:
    """The outermost ToolSet while somebody traces."""

    def __init__(self, inner: ToolSet, tracer: spans.Tracer) -> None:
        self._inner = inner
        self._tracer = tracer

    async def list(self) -> Sequence[Tool]:
        return await self._inner.list()

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        told = {"gen_ai.tool.name": name, "gen_ai.tool.type": "function", "siafu.role": context.role or None}
        with spans.span("execute_tool", name, told) as span:
            if self._tracer.contents:
                span.set({"gen_ai.tool.call.arguments": dumps(arguments).decode()})
            result = await self._inner.call(name, arguments, context)
            if self._tracer.contents:
                span.set({"gen_ai.tool.call.result": result.text})
            if result.is_error:
                span.end("tool_error")
        return result
