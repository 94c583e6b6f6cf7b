"""Which tools a role may use: deny by default, on `list` and on `call`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from siafu.border.text import preview
from siafu.errors import ToolDenied
from siafu.observe.calls import CallContext
from siafu.tools.toolset import Tool, ToolResult, ToolSet


class Filtered:
    """The tools of `inner` whose names are in `allowed`; the others do not exist for who holds this set.

    `allowed`: exact names, or shell patterns such as `get_*`; an empty list allows nothing. A name counts only
    character for character: another case, a look-alike from another script or an alias is denied.
    """

    def __init__(self, inner: ToolSet, allowed: Iterable[str]) -> None:
        self._inner = inner
        self._allowed = (allowed,) if isinstance(allowed, str) else tuple(allowed)
        self._seen: Sequence[Tool] | None = None
        self._tools: tuple[Tool, ...] = ()

    async def list(self) -> Sequence[Tool]:
        """The allowed tools, in the order of the inner set."""
        found = await self._inner.list()
        if found is not self._seen:
            self._tools = tuple(tool for tool in found if self._allows(tool.name))
            self._seen = found
        return self._tools

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        """Call an allowed tool.

        Raises: ToolDenied for every other name, before anything is sent; ToolFault of the inner set.
        """
        if not self._allows(name) or all(tool.name != name for tool in await self.list()):
            usable = ", ".join(tool.name for tool in await self.list()) or "none"
            raise ToolDenied(
                f"there is no tool {preview(name, 64)!r} here; usable: {preview(usable, 1000)}", tool=preview(name, 64)
            )
        return await self._inner.call(name, arguments, context)

    def _allows(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self._allowed)
