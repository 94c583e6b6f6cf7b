"""`siafu shop`, for those who answer for its money: its refunds, what only a person can tell, the provider's list."""

from __future__ import annotations

import asyncio
import contextlib
from enum import StrEnum
from typing import TYPE_CHECKING

import typer

from siafu.border.text import preview
from siafu.cli.approvals import As, person
from siafu.cli.shop_records import Payments, Where, open_shop
from siafu.cli.showing import AsJson, print_json, print_table, the_one, time_text
from siafu.errors import InputError

if TYPE_CHECKING:
    from siafu.apps.support.shop.database import ShopDatabase
    from siafu.apps.support.shop.money.reconcile import Difference
    from siafu.apps.support.shop.money.records import Told

app = typer.Typer(rich_markup_mode=None)


class State(StrEnum):
    pending_approval = "pending_approval"
    reserved = "reserved"
    dispatching = "dispatching"
    unknown = "unknown"
    manual_review = "manual_review"
    succeeded = "succeeded"
    declined = "declined"
    rejected = "rejected"
    cancelled = "cancelled"


@app.command(
    epilog="""\b
Examples:
  siafu shop refunds                           every refund and its state
  siafu shop refunds --state manual_review     what only a person can find out
  siafu shop refunds --json                    also the provider's references
"""
)
def refunds(
    state: State | None = typer.Option(None, metavar="STATE", help=f"Only those in one of: {', '.join(State)}."),
    database: str | None = Where,
    as_json: bool = AsJson,
) -> None:
    """List the refunds that were asked for, oldest first."""
    with contextlib.closing(open_shop(database)) as shop:
        _show(_told(shop, state), as_json)


@app.command(
    epilog="""\b
Examples:
  siafu shop resolve 5f1c --paid re_8XkQ    the provider has it, by this name
  siafu shop resolve 5f1c --not-paid        the provider has none
\b
Look first at the provider, for the reference in: siafu shop refunds --json
With --not-paid the money can be asked for again.
"""
)
def resolve(
    refund_id: str = typer.Argument(..., metavar="ID", help="A refund under manual_review, or how its id begins."),
    paid: str | None = typer.Option(None, metavar="NAME", help="It was paid; the provider's own name for it."),
    not_paid: bool = typer.Option(False, "--not-paid", help="It was not paid, and never will be."),
    by: str | None = As,
    database: str | None = Where,
    as_json: bool = AsJson,
) -> None:
    """Say what became of a refund that nobody could find out."""
    from siafu.apps.support.shop.money.policy import RefundPolicy
    from siafu.apps.support.shop.money.refunds import Refunds
    from siafu.pace.clock import SystemClock

    who = person(by)
    if (paid is None) != not_paid or paid == "":
        raise InputError("say either --paid NAME or --not-paid")
    with contextlib.closing(open_shop(database)) as shop:
        found = the_one(
            _told(shop, State.manual_review),
            refund_id,
            "refund under review",
            key=lambda one: one.refund_id,
            see="siafu shop refunds --state manual_review",
        )
        people = Refunds(shop, None, RefundPolicy(), clock=SystemClock(), owner="")
        asyncio.run(people.resolve(found.refund_id, psp_refund_id=paid, by=who))
        _show([one for one in _told(shop, None) if one.refund_id == found.refund_id], as_json)


@app.command(
    epilog="""\b
Examples:
  siafu shop reconcile --payments http://127.0.0.1:9200
  siafu shop reconcile --json
\b
total: a payment's refunds are not what the books say. no_intent: a refund
that the shop knows nothing of. twice: one was paid more than once.
not_booked: paid there, and the books do not say so (see its state). not_made:
the books say it was paid, and it was not. Exit code: 1 when anything differs.
"""
)
def reconcile(payments: str | None = Payments, database: str | None = Where, as_json: bool = AsJson) -> None:
    """Hold the shop's books against the provider's list."""
    if not payments:
        raise InputError("say where the payment provider is: --payments URL")
    with contextlib.closing(open_shop(database)) as shop:
        found = asyncio.run(_compared(shop, payments))
    if as_json:
        print_json(found)
    elif found:
        rows = [
            (one.kind, one.payment, one.reference, f"{one.booked_minor:,}", f"{one.paid_minor:,}", one.state or "-")
            for one in found
        ]
        print_table(("what", "payment", "reference", "booked", "paid", "state"), rows)
    else:
        typer.echo("The shop's books and the provider's list agree.")
    raise typer.Exit(1 if found else 0)


async def _compared(shop: ShopDatabase, url: str) -> list[Difference]:
    from siafu.apps.support.shop.money.payments import HttpPayments
    from siafu.apps.support.shop.money.reconcile import reconciled

    provider = HttpPayments(url)
    try:
        return await reconciled(shop, provider)
    finally:
        await provider.aclose()


def _told(shop: ShopDatabase, state: State | None) -> list[Told]:
    from siafu.apps.support.shop.money import rows

    return shop.transact(lambda tx: rows.told(tx, None if state is None else state.value))


def _show(found: list[Told], as_json: bool) -> None:
    from siafu.apps.support.shop.orders import money_text

    if as_json:
        return print_json(found)
    rows = [
        (
            one.refund_id[:8],
            one.customer,
            one.order_id,
            money_text(one.amount_minor, one.currency),
            one.state,
            time_text(one.updated_at),
            preview(one.last, 60),
        )
        for one in found
    ]
    columns = ("id", "customer", "order", "amount", "state", "since", "last")
    return print_table(columns, rows, nothing="there is no such refund")
