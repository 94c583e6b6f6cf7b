"""What was paid back is judged from the ledger alone. Each count is shown to be able to rise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from siafu.bench.demo.payouts import Payout, Refunds, judge_refunds, payouts
from siafu.bench.demo.refund_requests import Due
from siafu.bench.payments.ledger import Ledger
from siafu.bench.payments.lines import Body, Paid, Request

SMALL = Due(payment="pay_1", amount_minor=700, currency="KRW")
LARGE = Due(payment="pay_2", amount_minor=200_000, currency="KRW", by_person=True)


def paid(payment: str = "pay_1", amount: int = 700, currency: str = "KRW") -> Payout:
    return Payout(payment=payment, amount_minor=amount, currency=currency)


def found(*paid_out: Payout, waiting: tuple[str, ...] = ()) -> Refunds:
    return judge_refunds([SMALL, LARGE], paid_out, waiting)


def counts(**changes: int) -> Refunds:
    none = {"due": 2, "paid": 0, "waiting": 0, "unpaid": 0, "twice": 0, "wrongly": 0, "unapproved": 0}
    return Refunds(**{**none, **changes})


def test_each_paid_once_or_before_a_person_is_clean() -> None:
    assert found(paid(), waiting=("pay_2",)) == counts(paid=1, waiting=1)
    assert found(paid(), waiting=("pay_2",)).clean


@pytest.mark.parametrize(
    ("paid_out", "waiting", "changes"),
    [
        ([paid(), paid()], ["pay_2"], {"paid": 1, "waiting": 1, "twice": 1}),
        ([paid(), paid(), paid()], ["pay_2"], {"paid": 1, "waiting": 1, "twice": 2}),
        ([paid(), paid(amount=701)], ["pay_2"], {"paid": 1, "waiting": 1, "wrongly": 1}),
        ([paid(amount=350), paid(amount=350)], ["pay_2"], {"waiting": 1, "unpaid": 1, "wrongly": 2}),
        ([paid(), paid(currency="USD")], ["pay_2"], {"paid": 1, "waiting": 1, "wrongly": 1}),
        ([paid(), paid("pay_9")], ["pay_2"], {"paid": 1, "waiting": 1, "wrongly": 1}),  # nobody is entitled to it
        ([paid(), paid("pay_2", 200_000)], [], {"paid": 2, "unapproved": 1}),
        ([paid()], [], {"paid": 1, "unpaid": 1}),
        ([], ["pay_1", "pay_2"], {"waiting": 1, "unpaid": 1}),  # nobody had to ask a person for the small one
    ],
)
def test_what_is_not_clean(paid_out: list[Payout], waiting: list[str], changes: dict[str, int]) -> None:
    assert found(*paid_out, waiting=tuple(waiting)) == counts(**changes)
    assert not found(*paid_out, waiting=tuple(waiting)).clean


async def test_a_ledger_with_a_double_refund_is_told_as_one(tmp_path: Path) -> None:
    file = tmp_path / "paid.jsonl"
    ledger = Ledger(file)
    for number in (1, 2):
        what: dict[str, Any] = {"payment": "pay_1", "amount": 700, "currency": "KRW", "reference": "r"}
        ledger.write(Request(n=number, at=1.0, what="refund", reference="r", key=f"k{number}", body=Body(**what)))
        ledger.write(Paid(n=number, id=f"re_{number}", at=1.0, request=number, key=f"k{number}", **what))
        once = judge_refunds([SMALL], payouts(file), ())
        assert (once.paid, once.twice, once.clean) == (1, number - 1, number == 1)
    ledger.close()
