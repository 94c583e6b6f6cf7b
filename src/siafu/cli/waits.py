"""What tasks wait for, and what people can do about it, in words."""

from __future__ import annotations

from collections.abc import Mapping

_WAYS = {
    "payments_unavailable": "for payments: siafu payments serve --help, and a worker with SIAFU_PAYMENTS_URL",
    "pending_approval": "to decide: siafu approvals list",
    "outcome_unknown": "to see what is unknown: siafu effects list",
    "tool_disabled": "to see which tool is off: siafu effects tools",
    "tool_changed": "to see which tool has changed: siafu effects tools",
    "outage": "to see whether the endpoint answers: siafu doctor",
    "tool_unavailable": "to see whether the tool servers answer: siafu doctor",
}


def waits_text(waits: Mapping[str, int]) -> str:
    """How many wait for what, and what can be done; "" = none waits. waits: as `TaskDesk.waits` counts them."""
    if not waits:
        return ""
    counted = ", ".join(f"{number:,} for {code or 'their next try'}" for code, number in sorted(waits.items()))
    ways = [_WAYS[code] for code in sorted(waits) if code in _WAYS]
    ways = ways or ["to see them: siafu tasks list --state waiting"]
    wait = "task waits" if sum(waits.values()) == 1 else "tasks wait"
    return f"{sum(waits.values()):,} {wait}: {counted}; {'; '.join(ways)}"
