"""Which refunds the shop makes, which a person decides, and which it refuses. Pure: what is known comes in."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

import msgspec

from siafu.apps.support.shop.catalogue import products
from siafu.apps.support.shop.money import answers
from siafu.apps.support.shop.money.records import OrderMoney, RefundAsk
from siafu.apps.support.shop.orders import Currency, Item, Order, money_text
from siafu.apps.support.shop.policy import CHANGE_OF_MIND_DAYS, CHECKED_ABOVE, FAULTY_DAYS
from siafu.apps.support.shop.refusal import Refusal, Why

FAULTS = ("faulty", "wrong_item")
NOT_REFUNDABLE = "not_refundable"
_DAY = 86_400

Question = Literal["amount", "second_refund", "equal_amount", "daily_refunds", "low_trust"]


class RefundPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The shop's rules. None and empty values switch a rule off.

    by_status: the order must be cancellable or delivered within the windows (days). final_sale: SKUs that are not
    taken back for a change of mind. The others ask for a person: approval_above (minor units by currency);
    second_refund on an order; equal_amount_hours: the same amount on the same order within; daily_refunds: more than
    so many of a customer in 24 hours; low_trust: actors that never refund alone. approval_hours: how long a decision
    is waited for, and the money held.
    """

    by_status: bool = True
    change_of_mind_days: int = CHANGE_OF_MIND_DAYS
    faulty_days: int = FAULTY_DAYS
    final_sale: frozenset[str] = frozenset(product.sku for product in products() if product.category == "food")
    approval_above: Mapping[Currency, int] = msgspec.field(default_factory=lambda: CHECKED_ABOVE)
    second_refund: bool = True
    equal_amount_hours: float | None = 24.0
    daily_refunds: int | None = 3
    low_trust: frozenset[str] = frozenset()
    approval_hours: float = 72.0

    @property
    def counts(self) -> bool:
        """Whether a rule looks at the customer's other refunds."""
        return self.second_refund or self.equal_amount_hours is not None or self.daily_refunds is not None


# The money layer alone: sums, keys and fencing hold without any of the rules.
NO_RULES = RefundPolicy(
    by_status=False, approval_above={}, second_refund=False, equal_amount_hours=None, daily_refunds=None
)


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The customer's other refunds, without those that came to nothing.

    on_order: on this order. equal_hours: since one of the same amount on this order; None = never. today: on all
    orders within 24 hours.
    """

    on_order: int = 0
    equal_hours: float | None = None
    today: int = 0


def refused(policy: RefundPolicy, ask: RefundAsk, money: OrderMoney, amount: int, today: float) -> Refusal | None:
    """Why this refund is not made, whoever decides; None when it may be. That nothing is left comes before what else
    would be in its way.

    `amount`: minor units, what remains if the ask names none. `today`: seconds since 1970.
    """
    order = ask.order
    if ask.grants is not None and order.order_id not in ask.grants.orders:
        return Refusal(
            code="order_not_requested",
            message="The customer has not asked about this order. Refund only orders that the customer names.",
        )
    if policy.by_status and order.status in ("cancelled", "refunded"):
        return _closed(order, money)
    if not money.refundable_minor:
        return answers.does_not_fit(money, order.currency, ask.expected_refunded_minor)
    return _not_asked_for(ask, money, amount) or (
        _not_refundable(policy, ask, money, amount, today) if policy.by_status else None
    )


def questions(policy: RefundPolicy, ask: RefundAsk, amount: int, history: History) -> list[Question]:
    """Why a person must decide first; empty = no need."""
    limit = policy.approval_above.get(ask.order.currency)
    rules: dict[Question, bool] = {
        "amount": limit is not None and amount > limit,
        "second_refund": policy.second_refund and history.on_order > 0,
        "equal_amount": None not in (policy.equal_amount_hours, history.equal_hours)
        and (history.equal_hours or 0.0) < (policy.equal_amount_hours or 0.0),
        "daily_refunds": policy.daily_refunds is not None and history.today >= policy.daily_refunds,
        "low_trust": ask.actor in policy.low_trust,
    }
    return [rule for rule, holds in rules.items() if holds]


def _not_asked_for(ask: RefundAsk, money: OrderMoney, amount: int) -> Refusal | None:
    """The customer's own words must name an amount of this order that is not a whole: lines and rests go without."""
    if ask.grants is None:
        return None
    lines = {part for item in ask.order.items for part in (item.unit_price_minor, _price(item))}
    named = {minor for currency, minor in ask.grants.orders[ask.order.order_id] if currency == ask.order.currency}
    if amount not in lines | named | {money.refundable_minor}:
        return Refusal(
            code="amount_not_requested",
            message="The customer has not asked for this amount, and it is neither an item's price nor what remains. "
            "Leave the amount away to refund what remains, or ask the customer.",
        )
    return None


def _closed(order: Order, money: OrderMoney) -> Refusal:
    message = f"The order is {order.status} already, so there is nothing to give back."
    if order.status == "cancelled":
        return Why(reason="cancelled").refusal(NOT_REFUNDABLE, message)
    why = Why(reason="already_refunded", currency=order.currency, refunded_minor=money.refunded_minor)
    return why.refusal(NOT_REFUNDABLE, message)


def _not_refundable(
    policy: RefundPolicy, ask: RefundAsk, money: OrderMoney, amount: int, today: float
) -> Refusal | None:
    order = ask.order
    if order.status in ("paid", "preparing"):
        return None
    if order.status != "delivered" or order.delivered_at is None:
        message = "The order is on its way. A refund can be asked for once it has arrived."
        return Why(reason="on_its_way").refusal(NOT_REFUNDABLE, message)
    arrived = datetime.fromisoformat(order.delivered_at)
    days = (today - arrived.timestamp()) / _DAY
    if ask.reason in FAULTS:
        if days <= policy.faulty_days:
            return None
        return Why(reason="fault_window", days=policy.faulty_days, delivered_at=arrived).refusal(
            NOT_REFUNDABLE, f"The order arrived more than {policy.faulty_days} days ago."
        )
    if days > policy.change_of_mind_days:
        return Why(reason="return_window", days=policy.change_of_mind_days, delivered_at=arrived).refusal(
            NOT_REFUNDABLE,
            f"The order arrived more than {policy.change_of_mind_days} days ago; after that the shop refunds only "
            f"faulty or wrong items, up to {policy.faulty_days} days after delivery.",
        )
    kept = sum(_price(item) for item in order.items if item.sku in policy.final_sale)
    most = max(0, money.refundable_minor - kept)
    if not kept or amount <= most:
        return None
    why = Why(reason="final_sale", currency=order.currency, kept_minor=kept, refundable_minor=most)
    return why.refusal(
        NOT_REFUNDABLE,
        f"Food is not refunded for a change of mind, and {money_text(kept, order.currency)} of this order is food. "
        f"At most {money_text(most, order.currency)} can be refunded.",
    )


def _price(item: Item) -> int:
    return item.quantity * item.unit_price_minor
