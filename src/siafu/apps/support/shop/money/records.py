"""What the money layer is asked, what it knows of one refund, and what it answers."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from siafu.apps.support.shop.orders import Currency, Order
from siafu.apps.support.shop.refusal import Refusal
from siafu.border.identity import Grants

TOOL = "process_refund"

# The money is reserved in the first five, and it may already be on its way in `dispatching`, `unknown` and
# `manual_review`; the others are final.
State = Literal[
    "pending_approval",
    "reserved",
    "dispatching",
    "unknown",
    "manual_review",
    "succeeded",
    "declined",
    "rejected",
    "cancelled",
]
WITHOUT_EFFECT: tuple[State, ...] = ("declined", "rejected", "cancelled")


class RefundAsk(msgspec.Struct, frozen=True, kw_only=True):
    """One call of process_refund, as trusted code understood it. `order` is the customer's own, read just now.

    amount_minor: whole won or cents; None = what remains of the order. reason: the model's word for it; `faulty` and
    `wrong_item` have longer windows. key: names the customer's request (`keys.request_key`); "" = a bare client, whose
    open request for this order and amount is found or begun. expected_refunded_minor: what the asker believes is
    paid back or reserved on this order; None = it does not say. actor: who asks on the customer's behalf. grants: what
    the customer's own words name; None = not limited by a message.
    """

    tenant: str
    customer: str
    order: Order
    amount_minor: int | None = None
    reason: str = ""
    key: str = ""
    expected_refunded_minor: int | None = None
    actor: str = ""
    run: str = ""
    task: str = ""
    grants: Grants | None = None


class RefundDone(msgspec.Struct, frozen=True, kw_only=True):
    """The money is on its way back. `*_minor`: whole won for KRW, cents for USD.

    refunded_minor, refundable_minor: of the whole order, when this refund was made. replayed: it was made by an
    earlier call for the same request, and not again by this one.
    """

    refund_id: str
    order_id: str
    status: Literal["refunded"] = "refunded"
    amount_minor: int
    amount_text: str
    currency: Currency
    refunded_minor: int
    refundable_minor: int
    replayed: bool = False


RefundOutcome: TypeAlias = RefundDone | Refusal


class OrderMoney(msgspec.Struct, frozen=True, kw_only=True):
    """The money of one order. reserved_minor: for refunds that wait for a person or whose end is not known yet.
    refunds: how many were made; refunded_at: the last of them, seconds since 1970, None = not known.

    `expected_refunded_minor` of a request is compared with `committed_minor`.
    """

    captured_minor: int
    refunded_minor: int = 0
    reserved_minor: int = 0
    refunds: int = 0
    refunded_at: float | None = None

    @property
    def committed_minor(self) -> int:
        """Paid back, or reserved to be."""
        return self.refunded_minor + self.reserved_minor

    @property
    def refundable_minor(self) -> int:
        return self.captured_minor - self.committed_minor


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """One refund as stored. Times: seconds since 1970 by the database's clock; `now` is when the row was read.

    attempts: leases after which a call may have been made. lease_epoch: all leases; only the newest may write.
    response: what was answered in the end (JSON); None = there is no end yet.
    """

    refund_id: str
    tenant_id: str
    idem_key: str
    asked: str
    fingerprint: str
    payment_id: str
    order_id: str
    amount_minor: int
    currency: Currency
    customer: str
    actor: str
    run: str
    task: str
    approval_id: str | None
    state: State
    psp: str
    psp_payment_ref: str
    psp_key: str
    psp_refund_id: str | None
    lease_epoch: int
    lease_until: float | None
    attempts: int
    first_dispatch_at: float | None
    next_attempt_at: float | None
    serialise: int
    response: str | None
    created_at: float
    now: float

    @property
    def busy_ms(self) -> int:
        """Milliseconds until its lease or its pause ends; 0 = it may be taken now."""
        until = max(self.lease_until or 0.0, self.next_attempt_at or 0.0)
        return max(0, round((until - self.now) * 1000))


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A refund as the shop's people see it. Times: seconds since 1970. provider: the one that it was sent to, "" = none
    so far. reference: by which the provider knows it. paid_as: its own name for it, once it is paid. until: when the
    lease, the pause or the approval ends that it waits for; None = no time brings it on. last: what happened last, and
    why.
    """

    refund_id: str
    tenant_id: str
    customer: str
    order_id: str
    amount_minor: int
    currency: Currency
    state: State
    attempts: int
    provider: str
    reference: str
    paid_as: str | None
    approval_id: str | None
    created_at: float
    updated_at: float
    until: float | None
    last: str
