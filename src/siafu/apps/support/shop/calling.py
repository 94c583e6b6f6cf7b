"""How a tool of the shop is described and called. Plain code; the protocol is elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from siafu.apps.support.shop import brakes
from siafu.apps.support.shop.refusal import Refusal
from siafu.border.identity import Grants
from siafu.store.database import Transaction


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls, as proved outside the arguments. `customer`: None when nobody was identified.

    role: of the agent; "" = nobody says. scopes: the tools this caller may use; None = all. grants: the orders and
    amounts it may act on; None = not limited so. effect_key: names what this call is to bring about, the same for every
    attempt; "" = the client names nothing. expected_refunded_minor: what the caller saw refunded of the order; None =
    it does not say.
    """

    customer: str | None = None
    tenant: str = ""
    run: str = ""
    request: str = ""
    role: str = ""
    scopes: frozenset[str] | None = None
    grants: Grants | None = None
    effect_key: str = ""
    expected_refunded_minor: int | None = None


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool does to the world, as told to clients.

    destructive: it takes something away. outside: it reaches beyond the shop. Every tool of the shop is idempotent:
    the same call, sent again, brings about nothing more.
    """

    destructive: bool = False
    outside: bool = False


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One tool. `run` gets the checked arguments; `for_customer`: it needs to know who asks; `effect`: None = it only
    reads.
    """

    name: str
    title: str
    description: str
    takes: type[msgspec.Struct]
    gives: type[msgspec.Struct]
    for_customer: bool
    run: Callable[[Transaction, Caller, Any], msgspec.Struct]
    effect: Effect | None = None


def use(tool: ToolSpec, tx: Transaction, caller: Caller, arguments: Mapping[str, Any]) -> msgspec.Struct:
    """Check scope, identity, arguments and the switch, in this order, then run the tool. Tools whose effects are
    counted look at the switch themselves, for new ones: what became of an earlier one can be asked for at any time.

    Returns what `tool.run` returns, or a Refusal: not_in_scope, identity_required, invalid_arguments, tool_disabled.
    Raises: StoreError.
    """
    if caller.scopes is not None and tool.name not in caller.scopes:
        return Refusal(code="not_in_scope", message=f"The caller's identity does not cover the tool {tool.name}.")
    if tool.for_customer and caller.customer is None:
        return Refusal(
            code="identity_required",
            message=f"The shop does not know which customer is asking, so {tool.name} cannot answer. No argument "
            "changes that: whoever set this connection up names the customer (shop serve --customer) or sends a token.",
        )
    try:
        question = msgspec.convert(arguments, tool.takes, strict=True)
    except msgspec.ValidationError as error:
        return Refusal(code="invalid_arguments", message=f"The arguments do not fit the tool: {error}")
    stopped = None if tool.name in brakes.CAPPED else brakes.stopped(tx, tool.name, caller.tenant)
    return stopped or tool.run(tx, caller, question)


def schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of a Struct, with its object at the top, as MCP wants it."""
    (_,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    top = parts.pop(kind.__name__)
    top.pop("title", None)
    return {**top, "$defs": parts} if parts else top


def answer_schema(gives: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of what a tool answers: `gives`, or a Refusal.

    Widely used clients hold refusals against a tool's output schema too, and show their own error when one does not
    fit. The alternatives are only in what is required, as clients that make types of a schema need its properties.
    """
    made, refused = schema(gives), schema(Refusal)
    ways = [{"required": made.pop("required")}, {"required": refused["required"]}]
    return {**made, "properties": {**made["properties"], **refused["properties"]}, "anyOf": ways}
