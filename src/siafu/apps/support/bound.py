"""Tools that act for one customer request: what trusted code adds to their calls, and what it lets through."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from siafu.apps.support.routes import HAND_OVER, REFUND
from siafu.border.canonical import canonical
from siafu.border.identity import Grants
from siafu.observe.calls import CallContext
from siafu.tools.toolset import Tool, ToolResult, ToolSet

NOT_NAMED = ToolResult(
    text="The customer has not named this order. Refund only orders that the customer's own messages name; ask for the "
    "order number if there is none.",
    is_error=True,
    code="order_not_requested",
)
_NAMESPACE = uuid.UUID("0e3d1c52-7a0b-5d5e-9a55-1d3c5a9e6b10")


class Bound:
    """The tools of `inner` for one request.

    A refund is let through only for an order that the customer's own words name, and carries the total that was paid
    back, or was on its way, when the order was last read in this conversation: the shop refuses when that has changed.
    A request is handed over to a person once, however often it runs.
    """

    def __init__(self, inner: ToolSet, grants: Grants) -> None:
        self._inner = inner
        self._grants = grants
        self._totals: dict[str, int] = {}

    def saw(self, result: ToolResult) -> None:
        """Learn from a tool's result, also from one that came from the journal."""
        data = result.structured
        if not result.is_error and isinstance(data, Mapping) and isinstance(data.get("refunded_minor"), int):
            self._totals[str(data.get("order_id"))] = data["refunded_minor"]

    async def list(self) -> Sequence[Tool]:
        return await self._inner.list()

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        """Raises: ToolFault of the inner set."""
        if name == REFUND:
            order = arguments.get("order_id")
            if order not in self._grants.orders:
                return NOT_NAMED
            if order in self._totals:
                bound = {**context.bound, "expected_refunded_minor": self._totals[order]}
                context = msgspec.structs.replace(context, bound=bound)
        elif name == HAND_OVER and not context.effect_key:
            key = uuid.uuid5(_NAMESPACE, canonical([context.run, context.task, name]).decode())
            context = msgspec.structs.replace(context, effect_key=str(key))
        return await self._inner.call(name, arguments, context)
