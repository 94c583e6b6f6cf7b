"""Why a refund is not made, as a program reads it: each reason, and the facts that go with it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import msgspec
import pytest

from siafu.apps.support.shop.money import answers
from siafu.apps.support.shop.money.payments import Call, Declined, Outcome
from siafu.apps.support.shop.money.policy import RefundPolicy, refused
from siafu.apps.support.shop.money.records import OrderMoney
from siafu.apps.support.shop.orders import Item
from siafu.apps.support.shop.refusal import GivenUp, Question, Reason, Refusal, Why
from siafu.border.identity import Grants
from siafu.store.database import Database

from .kit import Bank, ask, code, done, order, shop

TODAY = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
PAID_AT = TODAY.timestamp() - 3600
FOOD = Item(sku="SKU-2054", name_ko="커피", name_en="Coffee", quantity=1, unit_price_minor=10_000)
FITS = answers.does_not_fit


def why(refusal: Refusal | None) -> Why:
    assert refusal is not None
    return msgspec.convert(refusal.details, Why)


def policy(amount: int = 10_000, money: OrderMoney | None = None, reason: str = "", **of_order: Any) -> Why:
    asked = ask("1", order=order(**of_order), reason=reason)
    return why(refused(RefundPolicy(), asked, money or OrderMoney(captured_minor=10_000), amount, TODAY.timestamp()))


def arrived(days: float, **more: Any) -> dict[str, Any]:
    return {"status": "delivered", "delivered_at": (TODAY - timedelta(days=days)).isoformat(), **more}


def money(refunded: int, reserved: int = 0, **more: Any) -> OrderMoney:
    return OrderMoney(captured_minor=10_000, refunded_minor=refunded, reserved_minor=reserved, **more)


def test_every_reason_is_given_with_its_facts() -> None:
    found = {
        "already_refunded": why(FITS(money(10_000, refunds=2, refunded_at=PAID_AT), "KRW", None)),
        "being_refunded": why(FITS(money(4_000, 6_000), "KRW", 0)),
        "partly_refunded": why(FITS(money(4_000, refunds=1, refunded_at=PAID_AT), "KRW", 4_000)),
        "partly_reserved": why(FITS(money(0, 1), "KRW", None)),
        "more_than_paid": why(FITS(money(0), "KRW", None)),
        "changed": why(FITS(money(4_000), "KRW", 0)),
        "cancelled": policy(status="cancelled"),
        "on_its_way": policy(status="shipped"),
        "return_window": policy(**arrived(8)),
        "fault_window": policy(reason="faulty", **arrived(31)),
        "final_sale": policy(items=[FOOD], **arrived(1)),
        **{name: why(answers.given_up(name)) for name in get_args(GivenUp)},
        "by_provider": why(answers.declined("card_expired")),
    }
    of_refusals = set(get_args(Reason)) - set(get_args(Question))
    assert {name: given.reason for name, given in found.items()} == {name: name for name in of_refusals}
    given = found["already_refunded"]
    assert (given.refunded_minor, given.refundable_minor, given.currency, given.refunds) == (10_000, 0, "KRW", 2)
    assert given.refunded_at is not None and given.refunded_at.timestamp() == PAID_AT
    given = found["partly_refunded"]
    assert (given.captured_minor, given.refunded_minor, given.refundable_minor) == (10_000, 4_000, 6_000)
    assert (found["return_window"].days, found["fault_window"].days) == (7, 30)
    assert found["return_window"].delivered_at == TODAY - timedelta(days=8)
    assert (found["final_sale"].kept_minor, found["final_sale"].refundable_minor) == (10_000, 0)
    assert found["by_provider"].provider_code == "card_expired"


@pytest.mark.parametrize("word", ["card_expired", *get_args(GivenUp)])
async def test_a_providers_no_is_told_as_its_own_whatever_word_it_has(db: Database, word: str) -> None:
    """Its words are its own: `expired` is the customer's card, and no approval that came too late."""
    bank = Bank()

    async def no(call: Call, seconds: float) -> Outcome:
        return Declined(word)

    bank.refund = no  # type: ignore[method-assign]
    outcome = await shop(db, bank).refund(ask("1"))
    assert isinstance(outcome, Refusal) and code(outcome) == "declined"
    assert (why(outcome).reason, why(outcome).provider_code) == ("by_provider", word)
    assert "provider" in outcome.message


def test_an_order_that_was_refunded_before_the_shop_kept_books_says_when_it_was() -> None:
    given = policy(status="refunded", refunded_at=TODAY.isoformat())
    assert (given.reason, given.refunded_at) == ("already_refunded", TODAY)
    assert policy(status="refunded").refunded_at is None


async def test_a_refund_that_waits_says_why_a_person_decides(db: Database) -> None:
    refunds = shop(db, Bank(), RefundPolicy(approval_above={"KRW": 5_000}, low_trust_roles=frozenset({"refund"})))
    for asked, reason in (("1", "amount"), ("1", "amount"), ("2", "low_trust")):
        of_order = {} if asked == "1" else {"order": order("1002"), "role": "refund"}
        waits = await refunds.refund(ask(asked, 6_000 if asked == "1" else 100, **of_order))
        assert isinstance(waits, Refusal) and code(waits) == "pending_approval"
        assert why(waits).reason == reason


@pytest.mark.parametrize("of_order", [{}, arrived(60), {"status": "shipped"}, {"status": "refunded"}])
@pytest.mark.parametrize("grants", [None, Grants({"1001": ()})])
@pytest.mark.parametrize("amount", [None, 500])
def test_that_nothing_is_left_comes_before_all_else_that_is_in_the_way(
    of_order: dict[str, Any], grants: Grants | None, amount: int | None
) -> None:
    asked = ask("1", amount, order=order(**of_order), grants=grants, expected_refunded_minor=0)
    for given, reason in ((money(10_000), "already_refunded"), (money(0, 10_000), "being_refunded")):
        found = refused(RefundPolicy(), asked, given, amount or 0, TODAY.timestamp())
        closed = of_order.get("status") == "refunded"
        assert why(found).reason == ("already_refunded" if closed else reason)


async def test_a_refund_that_was_made_is_told_with_its_amount_and_time(db: Database) -> None:
    refunds = shop(db, Bank(), RefundPolicy(second_refund=False, equal_amount_hours=None))
    begun = datetime.now(UTC) - timedelta(minutes=1)
    done(await refunds.refund(ask("1", 4_000)))
    part = await refunds.refund(ask("2", 7_000))
    assert isinstance(part, Refusal) and code(part) == "exceeds_refundable"
    assert (why(part).reason, why(part).refunded_minor, why(part).refundable_minor) == ("partly_refunded", 4_000, 6_000)
    done(await refunds.refund(ask("3")))
    whole = await refunds.refund(ask("4", expected_refunded_minor=0))
    assert isinstance(whole, Refusal) and code(whole) == "exceeds_refundable"
    told = why(whole)
    assert (told.reason, told.refunded_minor, told.refunds) == ("already_refunded", 10_000, 2)
    assert told.refunded_at is not None and begun < told.refunded_at < datetime.now(UTC) + timedelta(minutes=1)
    assert f"10,000원, the last time on {told.refunded_at:%Y-%m-%d}" in whole.message
