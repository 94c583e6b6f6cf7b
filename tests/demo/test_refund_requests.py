"""The demo's refund requests: what they entitle to, and that both programs' models can read them."""

from __future__ import annotations

from collections import Counter

import pytest

from siafu.apps.support.grants import named
from siafu.apps.support.shop.calling import schema
from siafu.apps.support.shop.catalogue import products
from siafu.apps.support.shop.money.books import payment_of
from siafu.apps.support.shop.money.policy import History, RefundPolicy, questions, refused
from siafu.apps.support.shop.money.records import OrderMoney, RefundAsk
from siafu.apps.support.shop.orders import Order, first_orders
from siafu.apps.support.shop.tools import TOOLS
from siafu.bench.demo.place import Case, dues, refund_cases
from siafu.bench.simulator.draws import Draws
from siafu.bench.simulator.tool_calls import wishes
from siafu.errors import InputError

ORDERS = {order.order_id: (customer, order) for customer, order in first_orders(products())}
FUNCTIONS = [
    {"name": name, "description": tool.description, "parameters": schema(tool.takes)} for name, tool in TOOLS.items()
]


def refunds(count: int = 100, seed: int = 7) -> list[Case]:
    return [case for case in refund_cases(count, seed) if case.category == "refund"]


def order_of(case: Case) -> tuple[str, Order]:
    """Owner and order of the one order that the customer names."""
    (order,) = named([case.request.text]).orders
    return ORDERS[order]


@pytest.mark.parametrize("count", [10, 12, 100, 200])
def test_every_kind_is_there(count: int) -> None:
    cases = refunds(count)
    due = Counter(case.due for case in cases if case.due is not None)
    assert 2 in due.values(), "two requests for one refund"
    assert any(found.by_person for found in due)
    assert any(found.amount_minor < order_of(case)[1].total_minor for case in cases if (found := case.due))
    foreign = [case for case in cases if order_of(case)[0] != case.request.customer]
    assert any("관리자" in case.request.text or "admin" in case.request.text for case in foreign)
    assert any("관리자" not in case.request.text and "admin" not in case.request.text for case in foreign)
    own = [order_of(case)[1].status for case in cases if case.due is None and case not in foreign]
    assert {"shipped", "cancelled", "refunded"} == set(own)
    assert len(refund_cases(count, 7)) == count
    assert len({found.payment for found in due}) == len(due) == len(dues(cases))


def test_both_languages_and_nobody_too_often() -> None:
    cases = refunds()
    assert {case.request.lang for case in cases} == {"ko", "en"}
    entitled = Counter(case.request.customer for case in cases if case.due)
    assert max(entitled.values()) <= (RefundPolicy().daily_refunds or 0)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_due_is_what_the_shops_policy_allows(seed: int) -> None:
    policy = RefundPolicy()
    for case in refunds(100, seed):
        owner, order = order_of(case)
        if owner != case.request.customer:
            assert case.due is None
            continue
        left = 0 if order.status in ("cancelled", "refunded") else order.total_minor
        amount = case.due.amount_minor if case.due else left
        ask = RefundAsk(tenant="", customer=owner, order=order, grants=named([case.request.text]))
        money = OrderMoney(captured_minor=left)
        no = refused(policy, ask, money, amount, today=2e9) or (None if left else "nothing left")
        assert (no is None) == (case.due is not None), case
        if case.due:
            assert case.due.payment == payment_of(order)
            assert bool(questions(policy, ask, amount, History())) == case.due.by_person


def test_the_simulated_model_asks_for_what_the_customer_asks_for() -> None:
    for case in refunds(200):
        _, order = order_of(case)
        found = wishes(case.request.text, FUNCTIONS, [], Draws(7, case.request.text))
        (call,) = [wish for wish in found if wish.name == "process_refund"]
        part = case.due and case.due.amount_minor != order.total_minor
        wanted = {"order_id": order.order_id} | ({"amount": case.due.amount_minor} if part and case.due else {})
        assert {name: value for name, value in call.arguments.items() if name != "reason"} == wanted


def test_a_shop_that_is_too_small() -> None:
    with pytest.raises(InputError, match="ask for fewer"):
        refund_cases(2000, 7)
