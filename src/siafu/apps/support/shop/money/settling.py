"""Refunds carried out without a shop that runs: until nothing is due, and then an end."""

from __future__ import annotations

from collections.abc import Callable

from siafu.apps.support.shop.money.records import TOOL, Intent, Told
from siafu.apps.support.shop.money.refunds import Refunds
from siafu.errors import ToolUnavailable
from siafu.pace.clock import Clock

LOOK_SECONDS = 0.5  # at most, until what other processes and people did meanwhile is seen


async def settle(refunds: Refunds, clock: Clock, seconds: float, told: Callable[[Intent], None]) -> None:
    """Carry out what is due, until nothing is; for at most `seconds` also what becomes due meanwhile, as long as
    anything can. What others carry out is left to them.

    told: as in `Refunds.complete`. Raises: StoreError; ToolUnavailable when the provider is away in the end. When
    cancelled, the attempts under way go on: `Refunds.aclose` waits for them.
    """
    ends = clock.now() + seconds
    carried: list[Intent] = []  # in this round

    def note(refund: Intent) -> None:
        carried.append(refund)
        told(refund)

    while True:
        carried.clear()
        try:
            await refunds.complete(note)
            due_in = await refunds.next_due()
        except ToolUnavailable:
            if clock.now() >= ends:
                raise
            due_in = LOOK_SECONDS
        if not carried:
            if due_in is None or clock.now() + due_in >= ends:
                return
            await clock.sleep(min(max(due_in, 0.05), LOOK_SECONDS))


def waits_for(refund: Told, present: str, *, off: bool, now: float) -> str:
    """What has to come before an open refund goes on; "" = it is over. present: the provider that is there. off:
    refunds are switched off. now: seconds since 1970.
    """
    if refund.state == "pending_approval":
        return "a person's decision, see: siafu approvals list"
    if refund.state == "manual_review":
        return "a person who looks at the provider, see: siafu shop resolve"
    if refund.state not in ("reserved", "dispatching", "unknown"):
        return ""
    if refund.attempts and refund.provider != present:
        return f"its provider, {refund.provider}"
    if refund.state == "dispatching" and (refund.until or 0.0) > now:
        return "another process, which carries it out"
    return f"siafu shop on {TOOL}: it is switched off" if off else "its next attempt"
