"""What became of a request that got an answer: judged by what its tools did, never by the wording of the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from siafu.agents.arguments import RefusedCall
from siafu.agents.steps import Step, ToolStep
from siafu.apps.support.requests import Outcome, Refund, RefundState
from siafu.apps.support.routes import REFUND, Route
from siafu.apps.support.shop.refusal import Why
from siafu.border.identity import Amount
from siafu.border.text import preview
from siafu.errors import OutcomeUnknown, ToolArgumentsInvalid, ToolTimeout, ToolUnavailable
from siafu.tools.toolset import ToolResult

# Codes of tools, beside *_not_found, that say: with what the customer told, nothing can be looked up or done.
_LACKING = frozenset(
    {
        *(ToolArgumentsInvalid.code, "invalid_arguments", "empty_query"),
        *("order_not_requested", "amount_not_requested", "amount_needed"),
    }
)
REUSED = "idempotency_key_reused"  # the request has its refund already, with other values
# Codes of process_refund after which the money may have moved. -32603: the protocol's internal error.
_UNSURE = frozenset(
    {
        REUSED,
        *(OutcomeUnknown.code, ToolTimeout.code, ToolUnavailable.code),
        *("", "unknown_outcome", "in_progress", "shop_unavailable", "-32603"),
    }
)
_PAID = ("refunded", "succeeded")
# Of several tries on one order the one that stands first here counts, and of equals the last one: money that was paid,
# then what was decided or left open about a refund that was begun, then what came to nothing before one was.
_STATES: dict[RefundState, int] = {
    "paid": 0,
    "unknown": 1,
    "pending_approval": 1,
    "not_yet": 2,
    "refused": 3,
    "needs_info": 4,
}
_CODES = {"declined": 1, REUSED: 2}
# Of several orders the first of these counts: what is not settled, before what is.
_OF_ORDERS: dict[RefundState, Outcome] = {
    "unknown": "unknown",
    "pending_approval": "pending_approval",
    "not_yet": "unknown",
    "paid": "answered",
    "refused": "refused",
    "needs_info": "needs_info",
}


def refunds(steps: Iterable[Step]) -> tuple[Refund, ...]:
    """What became of each order that a refund was tried on, in the order of the first tries."""
    found: dict[str, Refund] = {}
    for step in steps:
        if isinstance(step, ToolStep) and step.call.name == REFUND:
            tried = _refund(step)
            known = found.get(tried.order_id)
            if known is None or _place(tried) <= _place(known):
                found[tried.order_id] = tried
    return tuple(found.values())


def outcome(route: Route, steps: Sequence[Step]) -> Outcome:
    """Where a refund was tried, what became of it.

    Else `answered`: a tool found something, or none was needed. `needs_info`: nothing was found by what the customer
    told, or nothing was looked up where it has to be. `unknown`: the tools that were tried failed for other reasons.
    """
    states = {refund.state for refund in refunds(steps)}
    for state, became in _OF_ORDERS.items():
        if state in states:
            return became
    came = {_came_of(step) for step in steps if isinstance(step, ToolStep | RefusedCall)}
    if "found" in came:
        return "answered"
    if "lacking" in came:
        return "needs_info"
    if "failed" in came:
        return "unknown"
    return "needs_info" if route.looks_up else "answered"


def _place(tried: Refund) -> int:
    return _CODES.get(tried.code, _STATES[tried.state])


def _refund(step: ToolStep) -> Refund:
    order, result = preview(str(step.arguments.get("order_id", "")), 40), step.result
    data = result.structured if isinstance(result.structured, Mapping) else {}
    if not result.is_error and data.get("status", _PAID[0]) in _PAID:
        amount, currency = data.get("amount_minor"), data.get("currency")
        return Refund(
            order_id=order,
            state="paid",
            amount_minor=amount if type(amount) is int else None,
            currency=currency if isinstance(currency, str) else None,
        )
    code = result.code
    if code == "pending_approval":
        return Refund(order_id=order, state="pending_approval", code=code)
    if code in _UNSURE:
        return Refund(order_id=order, state="unknown", code=code or "no_code")
    if result.later:
        return Refund(order_id=order, state="not_yet", code=code)
    return Refund(order_id=order, state="needs_info" if _lacks(code) else "refused", code=code, why=_why(data))


def _why(data: Mapping[str, Any]) -> Why | None:
    try:
        return msgspec.convert(data.get("details"), Why)
    except msgspec.ValidationError:  # another shop's, or none
        return None


def refunded(steps: Iterable[Step]) -> frozenset[Amount]:
    """The sums that tools have shown as paid back or on their way back, of any order that was read."""
    found: set[Amount] = set()
    for step in steps:
        data = step.result.structured if isinstance(step, ToolStep) and not step.result.is_error else None
        if isinstance(data, Mapping) and isinstance(data.get("currency"), str):
            whole, open_ = (_minor(data.get(name)) for name in ("refunded_minor", "refund_pending_minor"))
            found |= {(data["currency"], minor) for minor in (whole, open_, whole - open_) if minor > 0}
    return frozenset(found)


def _minor(value: Any) -> int:
    return value if type(value) is int else 0


def out_of_reach(steps: Iterable[Step]) -> str:
    """The code of a look-up that failed only because its tool could not be reached; empty when there is none."""
    results = (step.result for step in steps if isinstance(step, ToolStep))
    return next((r.code for r in results if r.later or r.code == ToolUnavailable.code), "")


def _came_of(step: ToolStep | RefusedCall) -> Literal["found", "lacking", "failed"]:
    if isinstance(step, ToolStep) and not step.result.is_error:
        return "lacking" if _empty(step.result) else "found"
    code = step.result.code if isinstance(step, ToolStep) else step.reason
    return "lacking" if _lacks(code) else "failed"


def _lacks(code: str) -> bool:
    return code.endswith("_not_found") or code in _LACKING


def _empty(result: ToolResult) -> bool:
    """A search without a hit: nothing but empty lists."""
    data = result.structured
    values = list(data.values()) if isinstance(data, Mapping) else [data]
    return bool(values) and all(isinstance(value, list) and not value for value in values)
