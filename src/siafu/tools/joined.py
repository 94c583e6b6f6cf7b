"""Several tool sets as one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from siafu.border.text import preview
from siafu.errors import ToolDenied
from siafu.observe.calls import CallContext
from siafu.tools.naming import distinct_names
from siafu.tools.toolset import Tool, ToolResult, ToolSet


class Joined:
    """The tools of all `sets`, in their order, under distinct names (see `distinct_names`). A call goes to the set
    the tool came from, under the name it has there.
    """

    def __init__(self, sets: Sequence[ToolSet]) -> None:
        self._sets = tuple(sets)
        self._seen: list[Sequence[Tool]] = []
        self._tools: tuple[Tool, ...] = ()
        self._routes: dict[str, tuple[ToolSet, str]] = {}

    async def list(self) -> Sequence[Tool]:
        """All tools.

        Raises: ToolUnavailable when a server that was never listed cannot be reached; ConfigError when two tools
        cannot be told apart.
        """
        found = await asyncio.gather(*(one.list() for one in self._sets))
        if len(found) != len(self._seen) or any(new is not old for new, old in zip(found, self._seen, strict=True)):
            origin = [(one, tool) for one, tools in zip(self._sets, found, strict=True) for tool in tools]
            names = distinct_names([(tool.server, tool.name) for _, tool in origin])
            self._routes = {name: (one, tool.name) for name, (one, tool) in zip(names, origin, strict=True)}
            self._tools = tuple(
                tool if tool.name == name else msgspec.structs.replace(tool, name=name)
                for name, (_, tool) in zip(names, origin, strict=True)
            )
            self._seen = found
        return self._tools

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        """Call one tool; sets that do not own it are not asked.

        Raises: ToolDenied for an unknown name; ToolFault of the set that owns it.
        """
        if name not in self._routes:
            await self.list()
        route = self._routes.get(name)
        if route is None:
            raise ToolDenied(f"there is no tool {preview(name, 64)!r}", tool=preview(name, 64))
        return await route[0].call(route[1], arguments, context)
