"""A tool's answer when it cannot help."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, Literal

import msgspec

SHOP_ZONE = timezone(timedelta(hours=9))  # in which the shop names times

# Why a person decides about a refund first.
Question = Literal["amount", "second_refund", "equal_amount", "daily_refunds", "low_trust"]
# Why one that was begun came to nothing, beside the payment provider's no: the reasons of ours for `declined`.
GivenUp = Literal["denied", "expired", "not_carried_out", "not_made"]
# Why there is no refund, or none yet, as far as the code leaves it open. What is told to a customer for each:
# `support.letter`.
Reason = Literal[
    # exceeds_refundable (also not_refundable: already_refunded), stale_refund_total: changed
    "already_refunded",
    "being_refunded",
    "partly_refunded",
    "partly_reserved",
    "more_than_paid",
    "changed",
    # not_refundable
    "cancelled",
    "on_its_way",
    "return_window",
    "fault_window",
    "final_sale",
    # declined
    GivenUp,
    "by_provider",
    # pending_approval: the first of the questions
    Question,
]
_Minor = Annotated[int, msgspec.Meta(ge=0, le=10**12)]


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A tool's answer when it cannot help: `code` for machines, `message` for the model or the person.

    retry_after_ms: when to ask again with the same arguments; None = the shop cannot say. details: further facts.
    """

    code: str
    message: str
    retryable: bool = False
    retry_after_ms: int | None = None
    details: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class Why(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a refund is not made, for programs: the `details` of its Refusal. None = not known, or of no account.

    *_minor: won or cents of `currency`; captured, refunded, reserved (being refunded) and refundable are of the order,
    kept_minor is what of it the shop does not take back. refunds, refunded_at: how many were made, and the last one.
    days: the policy's, since delivered_at. provider_code: the payment provider's own word.
    """

    reason: Reason
    currency: Literal["KRW", "USD"] | None = None
    captured_minor: _Minor | None = None
    refunded_minor: _Minor | None = None
    reserved_minor: _Minor | None = None
    refundable_minor: _Minor | None = None
    kept_minor: _Minor | None = None
    refunds: _Minor | None = None
    refunded_at: datetime | None = None
    delivered_at: datetime | None = None
    days: _Minor | None = None
    provider_code: str | None = None

    def refusal(self, code: str, message: str) -> Refusal:
        """The answer of `code` for this reason."""
        return Refusal(code=code, message=message, details=msgspec.to_builtins(self))
