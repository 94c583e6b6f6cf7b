"""What the asker is told about a refund, whatever its state. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from siafu.apps.support.shop.money.records import Intent, OrderMoney, RefundDone, RefundOutcome
from siafu.apps.support.shop.orders import Currency, money_text
from siafu.apps.support.shop.refusal import SHOP_ZONE, GivenUp, Reason, Refusal, Why

UNAVAILABLE = Refusal(
    code="payments_unavailable",
    message="Payments cannot be reached, so nothing was refunded. Try once more later, or hand over to a person.",
    retryable=True,
)
_ASK_NO_MORE = "Do not ask again with another amount or order: the shop finds out by itself."
_GIVEN_UP: dict[GivenUp, str] = {
    "denied": "A person decided against this refund. Nothing was refunded.",
    "expired": "Nobody approved this refund in time, so it was given up. Nothing was refunded.",
    "not_carried_out": "This refund was approved, but not carried out in time. Nothing was refunded.",
    "not_made": "This refund was not made.",
}


def done(intent: Intent, money: OrderMoney) -> RefundDone:
    """The answer for a refund that was made. `money`: the order's, after it."""
    return RefundDone(
        refund_id=intent.refund_id,
        order_id=intent.order_id,
        amount_minor=intent.amount_minor,
        amount_text=money_text(intent.amount_minor, intent.currency),
        currency=intent.currency,
        refunded_minor=money.refunded_minor,
        refundable_minor=money.refundable_minor,
    )


def declined(code: str) -> Refusal:
    """Final: the provider will not make it, and says so by its `code`. The money was not moved and is free again."""
    message = "The payment provider declined this refund. Nothing was refunded."
    return Why(reason="by_provider", provider_code=code).refusal("declined", message)


def given_up(reason: GivenUp) -> Refusal:
    """Final as well, and decided here."""
    return Why(reason=reason).refusal("declined", _GIVEN_UP[reason])


def answer(intent: Intent, *, replayed: bool = True) -> RefundOutcome:
    """What an intent says to a call: its end, or what it waits for. replayed: the call did not carry it out."""
    if intent.response is not None and intent.state == "succeeded":
        made = msgspec.json.decode(intent.response, type=RefundDone)
        return msgspec.structs.replace(made, replayed=replayed)
    if intent.response is not None:
        return msgspec.json.decode(intent.response, type=Refusal)
    amount = money_text(intent.amount_minor, intent.currency)
    about: dict[str, Any] = {"refund_id": intent.refund_id, "amount_minor": intent.amount_minor}
    if intent.state == "pending_approval":
        return Refusal(
            code="pending_approval",
            message=f"A person has to approve this refund of {amount} first. Nothing is refunded yet. Tell the "
            "customer so, and do not ask again.",
            details={**about, "approval_id": intent.approval_id, "reason": (intent.questions or "").split(", ")[0]},
        )
    if intent.state == "manual_review":
        return Refusal(
            code="unknown_outcome",
            message=f"Whether the refund of {amount} was made could not be found out; a person looks into it. "
            + _ASK_NO_MORE,
            details=about,
        )
    if intent.state == "unknown":
        return Refusal(
            code="unknown_outcome",
            message=f"The refund of {amount} was sent, and it is not known yet whether it was made. {_ASK_NO_MORE}",
            retry_after_ms=max(intent.busy_ms, 1000),
            details=about,
        )
    return Refusal(
        code="in_progress",
        message=f"The refund of {amount} is being carried out.",
        retryable=True,
        retry_after_ms=max(intent.busy_ms, 100),
        details=about,
    )


def lost(intent: Intent) -> Refusal:
    """The call was made, and its end could not be written down."""
    return Refusal(
        code="unknown_outcome",
        message=f"The refund was sent, and it is not known yet whether it was made. {_ASK_NO_MORE}",
        details={"refund_id": intent.refund_id, "amount_minor": intent.amount_minor},
    )


def another_meaning(intent: Intent, *, same_order: bool) -> Refusal:
    """The key already stands for another refund."""
    first = {"amount_minor": intent.amount_minor, "currency": intent.currency, "state": intent.state}
    return Refusal(
        code="idempotency_key_reused",
        message="This request has its refund already, and it is another one. One request brings one refund an order; "
        "further money needs a new request of the customer.",
        details={"first": {**first, "refund_id": intent.refund_id} if same_order else {}},
    )


def does_not_fit(money: OrderMoney, currency: Currency, expected: int | None) -> Refusal:
    """Why the money could not be reserved: the order changed since the asker looked, or there is not enough left. Of
    an order with nothing left that alone is told, whatever the asker believed.
    """
    at = None if money.refunded_at is None else datetime.fromtimestamp(money.refunded_at, SHOP_ZONE)
    left, stale = money.refundable_minor, expected not in (None, money.committed_minor)
    why = Why(
        reason=_misfit(money, stale=stale),
        currency=currency,
        captured_minor=money.captured_minor,
        refunded_minor=money.refunded_minor,
        reserved_minor=money.reserved_minor,
        refundable_minor=left,
        refunds=money.refunds or None,
        refunded_at=at,
    )
    if why.reason == "changed":
        return why.refusal(
            "stale_refund_total",
            f"{money_text(money.committed_minor, currency)} of this order is refunded or being refunded, which "
            "is not what was last read. Read the order again and check whether a refund is still wanted.",
        )
    if why.reason == "already_refunded":
        on = f", the last time on {at:%Y-%m-%d}" if at else ""
        return why.refusal(
            "exceeds_refundable",
            f"The order is refunded already: {money_text(money.refunded_minor, currency)}{on}. Nothing is left.",
        )
    return why.refusal(
        "exceeds_refundable", f"At most {money_text(left, currency)} of this order can still be refunded."
    )


def _misfit(money: OrderMoney, *, stale: bool) -> Reason:
    if not money.captured_minor:
        return "cancelled"
    if not money.refundable_minor:
        return "being_refunded" if money.reserved_minor else "already_refunded"
    if stale:
        return "changed"
    if not money.committed_minor:
        return "more_than_paid"
    return "partly_reserved" if money.reserved_minor else "partly_refunded"
