"""`siafu shop`, for the shop's people: what agents reserved and handed over, and what stops a tool."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Literal

import typer

from siafu.border.text import clean, preview
from siafu.cli.approvals import As, person
from siafu.cli.shop_records import Where, open_shop
from siafu.cli.showing import AsJson, print_json, print_table, time_text
from siafu.errors import ConfigError, InputError

if TYPE_CHECKING:
    from siafu.apps.support.shop.brakes import Unit
    from siafu.apps.support.shop.database import ShopDatabase

app = typer.Typer(rich_markup_mode=None)
Tool = typer.Argument(..., help="The tool's name, or '*' for every tool.")
Tenant = typer.Option(
    "*", help="Only for this tenant; '' is the one without a name. Default: every tenant", show_default=False
)
Reason = typer.Option("", help="Why, for those who read it later.")


@app.command(
    epilog="""\b
Examples:
  siafu shop stock                      what is left of every product
  siafu shop stock --reservations       what agents have set aside
  siafu shop stock --release rsv-...    give a reservation back
"""
)
def stock(
    reservations: bool = typer.Option(False, "--reservations", help="List reservations instead."),
    release: str | None = typer.Option(None, metavar="ID", help="Give this reservation's pieces back."),
    database: str | None = Where,
    as_json: bool = AsJson,
) -> None:
    """Show what is in stock and what is reserved."""
    from siafu.apps.support.shop import stock as books

    with contextlib.closing(open_shop(database)) as shop:
        if release is not None and not shop.transact(lambda tx: books.give_back(tx, clean(release))):
            raise InputError(f"no reservation {preview(release, 60)!r} is held; see: siafu shop stock --reservations")
        products, found = shop.products(), shop.transact(books.reservations)
    if reservations or release is not None:
        if as_json:
            return print_json(found)
        rows = [
            (r.reservation_id, r.customer, r.sku, str(r.quantity), r.state, time_text(r.reserved_at)) for r in found
        ]
        columns = ("reservation", "customer", "sku", "pieces", "state", "since")
        return print_table(columns, rows, nothing="nothing is reserved")
    held = {p.sku: sum(r.quantity for r in found if r.sku == p.sku and r.state == "held") for p in products}
    if as_json:
        return print_json(
            [{"sku": p.sku, "name_ko": p.name_ko, "stock": p.stock, "held": held[p.sku]} for p in products]
        )
    return print_table(
        ("sku", "name", "left", "reserved"), [(p.sku, p.name_ko, str(p.stock), str(held[p.sku])) for p in products]
    )


@app.command(
    epilog="""\b
Examples:
  siafu shop tickets                    what agents have handed over to people
  siafu shop tickets --close tkt-...    it is dealt with
  siafu shop tickets --all --json       also what is closed, for programs
"""
)
def tickets(
    everything: bool = typer.Option(False, "--all", help="Closed ones too."),
    close: str | None = typer.Option(None, metavar="ID", help="Close this ticket."),
    database: str | None = Where,
    as_json: bool = AsJson,
) -> None:
    """List the tickets that people have to see to."""
    from siafu.apps.support.shop import tickets as books

    with contextlib.closing(open_shop(database)) as shop:
        if close is not None and not shop.transact(lambda tx: books.close_ticket(tx, clean(close))):
            raise InputError(f"no ticket {preview(close, 60)!r} is open; see: siafu shop tickets")
        found = shop.transact(lambda tx: books.tickets(tx, None if everything else "open"))
    if as_json:
        return print_json(found)
    rows = [(t.ticket_id, t.customer, t.state, time_text(t.opened_at), t.subject, t.summary) for t in found]
    columns = ("ticket", "customer", "state", "opened", "subject", "text")
    return print_table(columns, rows, nothing="no ticket is open")


@app.command(
    epilog="""\b
Examples:
  siafu shop switches          what is switched off, and today's limits
  siafu shop off '*'           stop every tool at once
"""
)
def switches(database: str | None = Where, as_json: bool = AsJson) -> None:
    """List what is switched off, and the limits on a day."""
    with contextlib.closing(open_shop(database)) as shop:
        _show(shop, as_json)


@app.command(
    epilog="""\b
Examples:
  siafu shop off process_refund --reason "provider is down"
  siafu shop off '*'                  every tool, for everybody
"""
)
def off(
    tool: str = Tool,
    tenant: str = Tenant,
    reason: str = Reason,
    by: str | None = As,
    database: str | None = Where,
    as_json: bool = AsJson,
) -> None:
    """Switch a tool of the shop off, from the next call on.

    It holds in every server that uses this database, for every MCP client.
    """
    _switch("off", tool, tenant, reason, by, (database, as_json))


@app.command(
    epilog="""\b
Examples:
  siafu shop on process_refund        as before; 'off' for '*' stays
  siafu shop on '*'                   lifts: siafu shop off '*'
"""
)
def on(
    tool: str = Tool,
    tenant: str = Tenant,
    reason: str = Reason,
    by: str | None = As,
    database: str | None = Where,
    as_json: bool = AsJson,
) -> None:
    """Switch a tool on again, as it was switched off."""
    _switch("on", tool, tenant, reason, by, (database, as_json))


@app.command(
    epilog="""\b
Examples:
  siafu shop cap process_refund KRW 5000000    at most 5,000,000 won a day
  siafu shop cap open_ticket calls 200         at most 200 tickets a day
  siafu shop cap open_ticket calls none        as many as come
"""
)
def cap(
    tool: str = typer.Argument(..., help="process_refund, reserve_stock or open_ticket."),
    unit: str = typer.Argument(..., help="calls, or KRW or USD (in won and US cents)."),
    most: str = typer.Argument(..., help="At most so much a day (UTC); none = no limit."),
    tenant: str = Tenant,
    database: str | None = Where,
    as_json: bool = AsJson,
) -> None:
    """Limit what a tool may bring about in a day.

    Counted from when the limit is set.
    """
    from siafu.apps.support.shop import brakes

    units = ("calls", "KRW", "USD")
    if tool not in brakes.CAPPED or unit not in units:
        raise ConfigError(f"a limit is for one of {', '.join(brakes.CAPPED)}, and counts one of {', '.join(units)}")
    if most != "none" and not (most.isascii() and most.isdigit() and len(most) <= 18):
        raise ConfigError(f"a day's limit is a whole number or none, not {preview(most, 40)!r}")
    kind: Unit = unit  # type: ignore[assignment] # one of them, as was just checked
    amount = None if most == "none" else int(most)
    with contextlib.closing(open_shop(database)) as shop:
        shop.transact(lambda tx: brakes.cap(tx, tool, tenant, kind, amount))
        _show(shop, as_json)


def _switch(
    state: Literal["on", "off"], tool: str, tenant: str, reason: str, by: str | None, shown: tuple[str | None, bool]
) -> None:
    from siafu.apps.support.shop import brakes
    from siafu.apps.support.shop.tools import TOOLS

    if tool != brakes.EVERY and tool not in TOOLS:
        raise ConfigError(f"the shop has no tool {preview(tool, 64)!r}; it has {', '.join(TOOLS)}")
    database, as_json = shown
    who = person(by)
    with contextlib.closing(open_shop(database)) as shop:
        shop.transact(lambda tx: brakes.switch(tx, state, tool, tenant, by=who, reason=reason))
        _show(shop, as_json)


def _show(shop: ShopDatabase, as_json: bool) -> None:
    """What stops a tool now."""
    from siafu.apps.support.shop import brakes

    found, limits = shop.transact(brakes.switches), shop.transact(brakes.caps)
    if as_json:
        return print_json({"switches": found, "caps": limits})
    rows = [(s.tool, s.tenant_id, s.state, s.by_whom, time_text(s.at), s.reason) for s in found]
    columns = ("tool", "tenant", "is", "by", "since", "reason")
    print_table(columns, rows, nothing="nothing was switched off")
    if limits:
        typer.echo()
        print_table(
            ("tool", "tenant", "unit", "most a day", "used today"),
            [(cap.tool, cap.tenant_id, cap.unit, f"{cap.most:,}", f"{cap.used:,}") for cap in limits],
        )
    return None
