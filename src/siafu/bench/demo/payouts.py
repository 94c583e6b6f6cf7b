"""What was paid back, by the payment provider's ledger, held against what was due."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from siafu.bench.demo.refund_requests import Due
from siafu.bench.payments.ledger import read_ledger


class Payout(msgspec.Struct, frozen=True, kw_only=True):
    """One refund that the provider paid."""

    payment: str
    amount_minor: int
    currency: str


class Refunds(msgspec.Struct, frozen=True, kw_only=True):
    """due: refunds that the requests entitle to. paid: of these, at least once. waiting: of the rest, those that a
    person is to decide, and that wait for one. unpaid: those that do neither. Of what was paid, twice: a due refund
    again. wrongly: what nobody was entitled to or asked for, or another amount. unapproved: of the paid ones, those
    that a person should have decided.
    """

    due: int
    paid: int
    waiting: int
    unpaid: int
    twice: int
    wrongly: int
    unapproved: int

    @property
    def clean(self) -> bool:
        """Everybody got what they were entitled to, once, and nobody anything else."""
        return not (self.unpaid or self.twice or self.wrongly or self.unapproved)


def payouts(ledger: Path) -> list[Payout]:
    """Every refund that a ledger has, oldest first. Raises: ConfigError."""
    return [
        Payout(payment=paid.payment, amount_minor=paid.amount, currency=paid.currency)
        for paid in read_ledger(ledger).effects
    ]


def judge_refunds(dues: Iterable[Due], paid_out: Sequence[Payout], waiting: Collection[str]) -> Refunds:
    """Pure. dues: at most one a payment. waiting: payments with a refund that the shop has put before a person."""
    wanted: Mapping[str, Due] = {due.payment: due for due in dues}
    paid: set[str] = set()
    twice = wrongly = 0
    for payout in paid_out:
        due = wanted.get(payout.payment)
        if due is None or (payout.amount_minor, payout.currency) != (due.amount_minor, due.currency):
            wrongly += 1
        elif payout.payment in paid:
            twice += 1
        else:
            paid.add(payout.payment)
    rest = [due for due in wanted.values() if due.payment not in paid]
    waits = sum(due.by_person and due.payment in waiting for due in rest)
    return Refunds(
        due=len(wanted),
        paid=len(paid),
        waiting=waits,
        unpaid=len(rest) - waits,
        twice=twice,
        wrongly=wrongly,
        unapproved=sum(wanted[payment].by_person for payment in paid),
    )
