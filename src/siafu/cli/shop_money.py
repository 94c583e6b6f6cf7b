"""`siafu shop`, for those who answer for its money: its refunds, what only a person can tell, the provider's list."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import time
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import typer

from siafu.border.text import preview
from siafu.cli.approvals import As, person
from siafu.cli.shop_records import Payments, PaymentsName, Where, open_provider, open_shop
from siafu.cli.showing import AsJson, print_json, print_table, the_one, time_text
from siafu.errors import InputError, Interrupted, SiafuError, ToolUnavailable

if TYPE_CHECKING:
    from siafu.apps.support.shop.database import ShopDatabase
    from siafu.apps.support.shop.money.payments import HttpPayments
    from siafu.apps.support.shop.money.reconcile import Difference
    from siafu.apps.support.shop.money.records import Intent, Told

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
For those under manual_review, and those that wait for a provider that is
gone. Look first there, for the reference in: siafu shop refunds --json
With --not-paid the money can be asked for again.
"""
)
def resolve(
    refund_id: str = typer.Argument(..., metavar="ID", help="The refund, or how its id begins."),
    paid: str | None = typer.Option(None, metavar="NAME", help="It was paid; the provider's own name for it."),
    not_paid: bool = typer.Option(False, "--not-paid", help="It was not paid, and never will be."),
    by: str | None = As,
    database: str | None = Where,
    as_json: bool = AsJson,
) -> None:
    """Say what became of a refund that nobody could find out."""
    from siafu.apps.support.shop.money.policy import RefundPolicy
    from siafu.apps.support.shop.money.refunds import Refunds
    from siafu.apps.support.shop.money.rows import LEFT
    from siafu.pace.clock import SystemClock

    who = person(by)
    if (paid is None) != not_paid or paid == "":
        raise InputError("say either --paid NAME or --not-paid")
    with contextlib.closing(open_shop(database)) as shop:
        found = the_one(
            [one for one in _told(shop, None) if one.state == "manual_review" or one.last.startswith(LEFT)],
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
  siafu shop settle                 what is due now, for cron
  siafu shop settle --for 30s       and what becomes due within half a minute
  siafu shop settle --json
\b
For approved and interrupted refunds while no shop runs, and safe beside shops
that do. Exit code: 1 when the payment provider is away.
"""
)
def settle(
    for_: str | None = typer.Option(None, "--for", metavar="TIME", help="Wait so long for more to be due: 30s, 5m."),
    payments: str | None = Payments,
    payments_name: str = PaymentsName,
    database: str | None = Where,
    as_json: bool = AsJson,
) -> None:
    """Carry out the refunds that are due, and end.

    Says what it did, and what still waits for whom and until when.
    """
    from siafu.cli.filerun import parse_duration

    seconds = 0.0 if for_ is None else parse_duration(for_)
    provider = open_provider(payments, payments_name)
    with contextlib.closing(open_shop(database)) as shop:
        settled = asyncio.run(_settled(shop, provider, seconds))
        _show_settled(shop, settled, as_json)
    if settled.ended is not None:
        raise settled.ended


class _Settled(NamedTuple):
    """done: refunds that an attempt was made for, or that were given up. ended: why it ended early."""

    done: set[str]
    present: str
    ended: SiafuError | None


async def _settled(shop: ShopDatabase, provider: HttpPayments, seconds: float) -> _Settled:
    from siafu.apps.support.shop.money.policy import RefundPolicy
    from siafu.apps.support.shop.money.refunds import Refunds
    from siafu.apps.support.shop.money.settling import settle as until_nothing_is_due
    from siafu.apps.support.shop.orders import money_text
    from siafu.border.stopping import stopping
    from siafu.pace.clock import SystemClock

    done: set[str] = set()

    def told(refund: Intent) -> None:
        done.add(refund.refund_id)
        amount = money_text(refund.amount_minor, refund.currency)
        typer.echo(f"siafu: {refund.refund_id[:8]}  {amount} of order {refund.order_id}: {refund.state}", err=True)

    clock = SystemClock()
    refunds = Refunds(shop, provider, RefundPolicy(), clock=clock, owner=f"{platform.node()}:{os.getpid()}")
    ended: SiafuError | None = None
    present = ""
    async with contextlib.aclosing(provider), contextlib.aclosing(refunds), stopping() as stops:
        working = asyncio.create_task(until_nothing_is_due(refunds, clock, seconds, told))
        stopped = asyncio.create_task(stops.asked.wait())
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (working, stopped):
            task.cancel()
        try:
            await working
        except asyncio.CancelledError:
            ended = Interrupted("stopped; what is left goes on with the same command")
        except ToolUnavailable as error:
            ended = error
        with contextlib.suppress(ToolUnavailable):
            present = (await provider.capabilities()).name
    return _Settled(done, present, ended)


def _show_settled(shop: ShopDatabase, settled: _Settled, as_json: bool) -> None:
    from siafu.apps.support.shop import brakes
    from siafu.apps.support.shop.money.records import TOOL
    from siafu.apps.support.shop.money.settling import waits_for

    every = _told(shop, None)
    tenants = {one.tenant_id for one in every}
    off = shop.transact(lambda tx: {tenant: brakes.stopped(tx, TOOL, tenant) is not None for tenant in tenants})
    waiting = [
        (one, why) for one in every if (why := waits_for(one, settled.present, off=off[one.tenant_id], now=time.time()))
    ]
    done = [one for one in every if one.refund_id in settled.done]
    if as_json:
        return print_json({"done": done, "waiting": [{"refund": one, "waits_for": why} for one, why in waiting]})
    if done:
        _show(done, as_json)
    else:
        typer.echo("siafu: no refund was due", err=True)
    if waiting:
        typer.echo()
        rows = [
            (
                one.refund_id[:8],
                one.customer,
                one.order_id,
                one.state,
                "-" if one.until is None else time_text(one.until),
                why,
            )
            for one, why in waiting
        ]
        print_table(("waiting", "customer", "order", "state", "until", "for"), rows)
    return None


@app.command(
    epilog="""\b
Examples:
  siafu shop reconcile --payments http://127.0.0.1:9200
  siafu shop reconcile --json
\b
total: a payment's refunds are not what the books say. no_intent: a refund
that the shop knows nothing of. twice: one was paid more than once.
not_booked: paid there, and the books do not say so (see its state). not_made:
the books say it was paid, and it was not. elsewhere: sent to another
provider, with an open end. Exit code: 1 when anything differs.
"""
)
def reconcile(
    payments: str | None = Payments,
    payments_name: str = PaymentsName,
    database: str | None = Where,
    as_json: bool = AsJson,
) -> None:
    """Hold the shop's books against the provider's list."""
    provider = open_provider(payments, payments_name)
    with contextlib.closing(open_shop(database)) as shop:
        found = asyncio.run(_compared(shop, provider))
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


async def _compared(shop: ShopDatabase, provider: HttpPayments) -> list[Difference]:
    from siafu.apps.support.shop.money.reconcile import reconciled

    async with contextlib.aclosing(provider):
        return await reconciled(shop, provider)


def _told(shop: ShopDatabase, state: State | None) -> list[Told]:
    from siafu.apps.support.shop.money import approvals, rows

    shop.transact(approvals.expire)
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
