"""The books held against the provider's own list of refunds, as accountants do it every night."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from siafu.apps.support.shop.money.payments import HttpPayments, Paid
from siafu.apps.support.shop.money.records import State
from siafu.store.database import Database, Transaction

# total: the provider's refunds of a payment are not what the books say. no_intent: nobody here asked for this refund.
# twice: one intent has several refunds. not_booked: paid there, while the books do not say so (yet: `state`).
# not_made: the books say that it was paid, and the provider has none. elsewhere: sent to another provider, with an
# open end.
Kind = Literal["total", "no_intent", "twice", "not_booked", "not_made", "elsewhere"]


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
    for reference in by_reference.keys() | intents.keys():
        refunds, intent = by_reference.get(reference, []), intents.get(reference)
        found += [_difference(kind, reference, refunds, intent) for kind in _kinds(len(refunds), intent)]
    return sorted(found, key=lambda difference: (difference.payment, difference.kind, difference.reference))


def _difference(kind: Kind, reference: str, refunds: Sequence[Paid], intent: Booked | None) -> Difference:
    return Difference(
        kind=kind,
        payment=refunds[0].payment if refunds else intent.psp_payment_ref if intent else "",
        reference=reference,
        booked_minor=intent.amount_minor if intent else 0,
        paid_minor=sum(paid.amount for paid in refunds),
        state=intent.state if intent else None,
    )


def _kinds(refunds: int, intent: Booked | None) -> Iterable[Kind]:
    """What is wrong with one intent that has so many refunds there."""
    if intent is None:
        yield "no_intent"
        return
    if refunds > 1:
        yield "twice"
    if refunds and intent.state != "succeeded":
        yield "not_booked"
    if not refunds and intent.state == "succeeded":
        yield "not_made"


async def reconcile(db: Database, psp: str, statement: Iterable[Paid]) -> list[Difference]:
    """`compare` for everything that the books hold of the provider `psp`, and what is open at others. Raises:
    StoreError.
    """
    totals, booked, elsewhere = await db.run(lambda tx: _books(tx, psp))
    return [*compare(totals, booked, statement), *elsewhere]


async def reconciled(db: Database, payments: HttpPayments) -> list[Difference]:
    """What does not agree with the provider's own list, also while refunds are being made: only what the books say
    before the list was read and after it. Raises: StoreError; ToolUnavailable when the provider gives no list.
    """
    psp = (await payments.capabilities(fresh=True)).name
    totals, booked, elsewhere = await db.run(lambda tx: _books(tx, psp))
    statement = await payments.statement()
    before = [*compare(totals, booked, statement), *elsewhere]
    return [difference for difference in await reconcile(db, psp, statement) if difference in before]


def _books(tx: Transaction, psp: str) -> tuple[dict[str, int], list[Booked], list[Difference]]:
    """What was paid back at `psp` by payment, the intents that were sent there, and the open ones of others."""
    paid = tx.rows("SELECT psp_payment_ref, refunded_minor FROM payment")
    totals = {row["psp_payment_ref"]: row["refunded_minor"] for row in paid}
    intents = tx.rows("SELECT psp, psp_key, psp_payment_ref, amount_minor, state FROM refund_intent WHERE psp <> ''")
    booked, elsewhere = [], []
    for row in intents:
        intent = Booked(**{name: row[name] for name in Booked.__struct_fields__})
        if row["psp"] == psp:
            booked.append(intent)
        elif intent.state == "succeeded":
            totals[intent.psp_payment_ref] -= intent.amount_minor
        elif intent.state in ("dispatching", "unknown", "manual_review"):
            elsewhere.append(_difference("elsewhere", intent.psp_key, [], intent))
    return totals, booked, elsewhere
