"""The refund policy's rules, one by one. Pure: nothing is stored or called."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.apps.support.shop.money.policy import NO_RULES, History, RefundPolicy, questions, refused
from siafu.apps.support.shop.money.records import OrderMoney
from siafu.apps.support.shop.orders import Item
from siafu.apps.support.shop.policy import REFUND_POLICY
from siafu.border.identity import Grants

from .kit import ask, order

TODAY = datetime(2026, 11, 30, 12, 0, tzinfo=timezone(timedelta(hours=9)))
POLICY = RefundPolicy()
LINES = [
    Item(sku="SKU-2006", name_ko="마우스", name_en="Mouse", quantity=2, unit_price_minor=3_000),
    Item(sku="SKU-2054", name_ko="커피", name_en="Coffee", quantity=1, unit_price_minor=4_000),
]


def refusal(policy: RefundPolicy = POLICY, amount: int | None = None, *, refunded: int = 0, **more: Any) -> str:
    asked = ask("1", amount, **more)
    money = OrderMoney(captured_minor=asked.order.total_minor, refunded_minor=refunded)
    found = refused(policy, asked, money, amount or money.refundable_minor, TODAY.timestamp())
    return found.code if found else "ok"


def delivered(days: float, **more: Any) -> Any:
    return order(status="delivered", delivered_at=(TODAY - timedelta(days=days)).isoformat(), **more)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("paid", "ok"),
        ("preparing", "ok"),
        ("shipped", "not_refundable"),
        ("cancelled", "not_refundable"),
        ("refunded", "not_refundable"),
    ],
)
def test_what_has_not_left_can_be_cancelled(status: Any, expected: str) -> None:
    assert refusal(order=order(status=status)) == expected
    assert refusal(NO_RULES, order=order(status=status)) == "ok"


@pytest.mark.parametrize(
    ("days", "reason", "expected"),
    [
        (6.9, "", "ok"),
        (7.1, "", "not_refundable"),
        (7.1, "change_of_mind", "not_refundable"),
        (7.1, "faulty", "ok"),
        (29.9, "wrong_item", "ok"),
        (30.1, "faulty", "not_refundable"),
        (7.1, "it is faulty, I swear", "not_refundable"),
    ],
)
def test_windows_after_delivery(days: float, reason: str, expected: str) -> None:
    assert refusal(order=delivered(days), reason=reason) == expected


def test_food_is_not_taken_back_for_a_change_of_mind() -> None:
    bought = delivered(1, items=LINES)
    assert "SKU-2054" in POLICY.final_sale
    assert refusal(order=bought) == "not_refundable"
    assert refusal(order=bought, amount=6_000) == "ok"
    assert refusal(order=bought, amount=6_001) == "not_refundable"
    assert refusal(order=bought, reason="faulty") == "ok"
    assert refusal(order=order(items=LINES)) == "ok"  # it has not left yet
    assert refusal(order=bought, amount=4_000, refunded=3_000) == "not_refundable"


@pytest.mark.parametrize(
    ("grants", "amount", "expected"),
    [
        (None, 1_234, "ok"),
        (Grants(), None, "order_not_requested"),
        (Grants({"1002": (("KRW", 1_234),)}), 1_234, "order_not_requested"),
        (Grants({"1001": ()}), None, "ok"),
        (Grants({"1001": ()}), 10_000, "ok"),  # what remains
        (Grants({"1001": ()}), 3_000, "ok"),  # one piece of a line
        (Grants({"1001": ()}), 6_000, "ok"),  # a line
        (Grants({"1001": ()}), 4_000, "ok"),
        (Grants({"1001": ()}), 9_000, "amount_not_requested"),  # three pieces of two
        (Grants({"1001": ()}), 1_234, "amount_not_requested"),
        (Grants({"1001": (("KRW", 1_234),), "1002": ()}), 1_234, "ok"),
        (Grants({"1001": (("KRW", 1_234),)}), 1_235, "amount_not_requested"),
        (Grants({"1001": (("USD", 1_234),)}), 1_234, "amount_not_requested"),
        # An amount that the customer named of another order.
        (Grants({"1001": (("KRW", 5),), "1002": (("KRW", 1_234),)}), 1_234, "amount_not_requested"),
    ],
)
def test_only_what_the_customers_words_name(grants: Grants | None, amount: int | None, expected: str) -> None:
    assert refusal(NO_RULES, amount, order=order(items=LINES), grants=grants) == expected


def asks(policy: RefundPolicy = POLICY, amount: int = 1_000, history: History = History(), **more: Any) -> list[str]:
    return list(questions(policy, ask("1", amount, **more), amount, history))


@pytest.mark.parametrize(
    ("currency", "amount", "expected"),
    [("KRW", 100_000, []), ("KRW", 100_001, ["amount"]), ("USD", 8_000, []), ("USD", 8_001, ["amount"])],
)
def test_a_person_checks_large_amounts(currency: Any, amount: int, expected: list[str]) -> None:
    assert asks(amount=amount, order=order(total=500_000, currency=currency)) == expected
    assert asks(NO_RULES, amount=amount, order=order(total=500_000, currency=currency)) == []


def test_the_customers_text_names_the_same_figures() -> None:
    for figure in ("100,000원", "100,000 KRW", "80 USD", "7일", "30일", "within 7 days", "within 30 days"):
        assert figure in REFUND_POLICY
    assert POLICY.approval_above == {"KRW": 100_000, "USD": 8_000}
    assert (POLICY.change_of_mind_days, POLICY.faulty_days) == (7, 30)


def test_a_person_checks_a_second_refund_on_an_order() -> None:
    assert asks(history=History(on_order=1)) == ["second_refund"]
    assert asks(RefundPolicy(second_refund=False), history=History(on_order=1)) == []


def test_a_person_checks_the_same_amount_again() -> None:
    policy = RefundPolicy(second_refund=False)
    assert asks(policy, history=History(on_order=1, equal_hours=0.0)) == ["equal_amount"]
    assert asks(policy, history=History(on_order=1, equal_hours=23.9)) == ["equal_amount"]
    assert asks(policy, history=History(on_order=1, equal_hours=24.1)) == []
    assert asks(NO_RULES, history=History(on_order=1, equal_hours=0.0)) == []


def test_a_person_checks_many_refunds_a_day() -> None:
    assert asks(history=History(today=2)) == []
    assert asks(history=History(today=3)) == ["daily_refunds"]
    assert asks(RefundPolicy(daily_refunds=1), history=History(today=1)) == ["daily_refunds"]
    assert asks(RefundPolicy(daily_refunds=None), history=History(today=99)) == []


def test_a_person_checks_what_a_little_trusted_actor_asks_for() -> None:
    policy = RefundPolicy(low_trust=frozenset({"agent:chat"}))
    assert asks(policy, actor="agent:chat") == ["low_trust"]
    assert asks(policy, actor="agent:refund") == []


@given(
    refunded=st.integers(0, 10_000),
    amount=st.integers(1, 12_000),
    orders=st.dictionaries(
        st.sampled_from(["1001", "1002"]),
        st.lists(st.tuples(st.sampled_from(["KRW", "USD"]), st.integers(1, 12_000)), max_size=2).map(tuple),
    ),
)
def test_grants_only_ever_narrow(refunded: int, amount: int, orders: dict[str, tuple[tuple[str, int], ...]]) -> None:
    """Whatever a message grants is allowed without a message too; an order it does not name never is."""
    grants = Grants(orders)
    free = refusal(amount=amount, refunded=refunded, order=order(items=LINES))
    bound = refusal(amount=amount, refunded=refunded, order=order(items=LINES), grants=grants)
    assert bound != "ok" or free == "ok"
    assert ("1001" in orders) or bound == "order_not_requested"
