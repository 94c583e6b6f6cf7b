"""Tools that are told, with proof, for which customer they are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from siafu.border.identity import Grants, mint
from siafu.border.secrets import Secret
from siafu.observe.calls import CallContext
from siafu.pace.clock import Clock
from siafu.tools.toolset import Tool, ToolResult, ToolSet

AUDIENCE = "siafu-shop"


class Signed:
    """The tools of `inner`, each call with a fresh identity of `customer` that covers the tools in `scopes` only, and
    only what the customer's own words name (`grants`).

    Fresh, because an item may wait longer between two steps than an identity lives.
    """

    def __init__(
        self, inner: ToolSet, key: Secret, clock: Clock, *, customer: str, scopes: Sequence[str], grants: Grants
    ) -> None:
        self._inner = inner
        self._key = key
        self._clock = clock
        self._customer = customer
        self._scopes = tuple(scopes)
        self._grants = grants

    async def list(self) -> Sequence[Tool]:
        return await self._inner.list()

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        """Raises: ToolFault of the inner set; ConfigError when the customer's name makes no identity."""
        identity = mint(
            self._key,
            subject=self._customer,
            audience=AUDIENCE,
            scopes=self._scopes,
            run=context.run,
            request=context.task,
            role=context.role,
            grants=self._grants,
            now=self._clock.wall(),
        )
        return await self._inner.call(name, arguments, msgspec.structs.replace(context, identity=identity))
