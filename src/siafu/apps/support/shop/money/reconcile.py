"""The books held against the provider's own list of refunds, as accountants do it every night."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from siafu.apps.support.shop.money.payments import Paid
from siafu.apps.support.shop.money.records import State
from siafu.store.database import Database, Transaction

# total: the provider's refunds of a payment are not what the books say. no_intent: nobody here asked for this refund.
# twice: one intent has several refunds. not_booked: paid there, while the books do not say so (yet: `state`).
# not_made: the books say that it was paid, and the provider has none.
Kind = Literal["total", "no_intent", "twice", "not_booked", "not_made"]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that does not agree. Amounts: minor units. state: the intent's, where there is one."""

    kind: Kind
    payment: str
    reference: str = ""
    booked_minor: int = 0
    paid_minor: int = 0
    state: State | None = None


class Booked(msgspec.Struct, frozen=True, kw_only=True):
    """One intent, as far as it is compared."""

    psp_key: str
    psp_payment_ref: str
    amount_minor: int
    state: State


def compare(totals: Mapping[str, int], booked: Iterable[Booked], statement: Iterable[Paid]) -> list[Difference]:
    """What does not agree, ordered by payment; empty = every refund has its intent, and every sum is right.

    totals: refunded minor units by the provider's name of the payment. statement: all its refunds.
    """
    intents = {intent.psp_key: intent for intent in booked}
    paid_of: Counter[str] = Counter()
    by_reference: defaultdict[str, list[Paid]] = defaultdict(list)
    for paid in statement:
        paid_of[paid.payment] += paid.amount
        by_reference[paid.reference].append(paid)
    found = [
        Difference(kind="total", payment=payment, booked_minor=totals.get(payment, 0), paid_minor=paid_of[payment])
        for payment in totals.keys() | paid_of.keys()
        if totals.get(payment, 0) != paid_of[payment]
    ]
    for reference, refunds in by_reference.items():
        intent, total = intents.get(reference), sum(paid.amount for paid in refunds)
        about = {"payment": refunds[0].payment, "reference": reference, "paid_minor": total}
        if intent is None:
            found.append(Difference(kind="no_intent", **about))
            continue
        about |= {"booked_minor": intent.amount_minor, "state": intent.state}
        if len(refunds) > 1:
            found.append(Difference(kind="twice", **about))
        if intent.state != "succeeded":
            found.append(Difference(kind="not_booked", **about))
    for intent in intents.values():
        if intent.state == "succeeded" and intent.psp_key not in by_reference:
            about = {"payment": intent.psp_payment_ref, "reference": intent.psp_key}
            found.append(Difference(kind="not_made", **about, booked_minor=intent.amount_minor, state=intent.state))
    return sorted(found, key=lambda difference: (difference.payment, difference.kind, difference.reference))


async def reconcile(db: Database, psp: str, statement: Iterable[Paid]) -> list[Difference]:
    """`compare` for everything that the books hold of the provider `psp`. Raises: StoreError."""
    totals, booked = await db.run(lambda tx: _books(tx, psp))
    return compare(totals, booked, statement)


def _books(tx: Transaction, psp: str) -> tuple[dict[str, int], list[Booked]]:
    totals = tx.rows("SELECT psp_payment_ref, refunded_minor FROM payment")
    intents = tx.rows(
        "SELECT psp_key, psp_payment_ref, amount_minor, state FROM refund_intent WHERE psp = :psp", psp=psp
    )
    return {row["psp_payment_ref"]: row["refunded_minor"] for row in totals}, [Booked(**row) for row in intents]
