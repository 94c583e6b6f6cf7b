"""`siafu shop`: the example shop's MCP server, and what it knows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from collections.abc import AsyncIterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from siafu.border.text import preview
from siafu.cli import shop_keeping, shop_money
from siafu.cli.ready import write_ready
from siafu.cli.shop_records import Payments, PaymentsName, Where, open_provider, open_shop
from siafu.cli.showing import AsJson, print_json, print_table, time_text
from siafu.errors import ConfigError, InputError

if TYPE_CHECKING:
    from siafu.apps.support.shop.money.payments import HttpPayments
    from siafu.apps.support.shop.server import Shop
    from siafu.border.secrets import Secret

app = typer.Typer(
    help="The example shop behind the support swarm: an MCP server with its own database of orders and products.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu shop orders --customer kim        which orders can kim ask about?
  siafu shop serve --customer kim         serve one MCP client over stdio
  siafu shop serve --transport http       serve http://127.0.0.1:8765/mcp
""",
)

app.add_typer(shop_keeping.app)
app.add_typer(shop_money.app)


class Transport(StrEnum):
    stdio = "stdio"
    http = "http"


@app.command(
    epilog="""\b
Examples:
  siafu shop serve --customer kim
      for any MCP client that starts its servers, configured with
      {"mcpServers": {"shop": {
        "command": "siafu", "args": ["shop", "serve", "--customer", "kim"]}}}
  siafu shop serve --transport http --customer kim
      for trying out: everybody on this machine is kim
  SIAFU_IDENTITY_KEY=... siafu shop serve --transport http
      customers prove who they are with a token, see: siafu shop token --help
"""
)
def serve(
    transport: Transport = typer.Option(Transport.stdio, help="How clients talk to the shop."),
    host: str = typer.Option("127.0.0.1", help="http: the address to listen on."),
    port: int = typer.Option(8765, min=0, max=65535, help="http: the port; 0 takes a free one."),
    allow_host: list[str] = typer.Option(
        [], metavar="HOST", help="http: a further host name by which clients reach the shop."
    ),
    customer: str | None = typer.Option(None, help="Who asks when no token says so. Without it: nobody."),
    database: str | None = Where,
    payments: str | None = Payments,
    payments_name: str = PaymentsName,
    low_trust_role: list[str] = typer.Option(
        [], metavar="ROLE", help="Refunds that agents of this role ask for wait for a person."
    ),
    delay: float = typer.Option(0, min=0, max=600_000, help="Milliseconds each tool waits before it answers."),
    log_calls: Path | None = typer.Option(None, help="Append each call with its arguments to this JSONL file."),
    ready_file: Path | None = typer.Option(None, help="http: write the URL to this file once it can be used."),
    parent_pid: int | None = typer.Option(None, help="Stop when this process, which started us, has ended."),
) -> None:
    """Serve the shop's tools over MCP.

    Until stdin ends (stdio) or the process is stopped.
    """
    from siafu.apps.support.shop.money.policy import RefundPolicy
    from siafu.apps.support.shop.money.refunds import Refunds
    from siafu.apps.support.shop.over_http import check_exposure
    from siafu.apps.support.shop.server import Shop
    from siafu.border.identity import identity_key
    from siafu.pace.clock import SystemClock

    key, customer = identity_key(), customer or None
    if transport is Transport.http:
        check_exposure(host, allow_host, key=key, customer=customer)
    elif ready_file or allow_host:
        raise ConfigError("--ready-file and --allow-host go with --transport http")
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(log_calls.open("a", encoding="utf-8")) if log_calls else None
        store, clock = stack.enter_context(contextlib.closing(open_shop(database))), SystemClock()
        provider = open_provider(payments, payments_name) if payments else None
        owner = f"{platform.node()}:{os.getpid()}"
        policy = RefundPolicy(low_trust_roles=frozenset(low_trust_role))
        refunds = Refunds(store, provider, policy, clock=clock, owner=owner)
        shop = Shop(store, refunds, clock=clock, key=key, customer=customer, delay=delay / 1000, call_log=log)
        if transport is Transport.stdio:
            asyncio.run(_stdio(shop, provider, parent_pid))
        else:
            asyncio.run(_http(shop, provider, key, (host, port), allow_host, ready_file, parent_pid))


@contextlib.asynccontextmanager
async def _running(
    shop: Shop, provider: HttpPayments | None, parent_pid: int | None
) -> AsyncIterator[tuple[asyncio.Event, Any]]:
    from siafu.border.stopping import stopping

    async with stopping(parent_pid) as stops, contextlib.AsyncExitStack() as stack:
        if provider is not None:
            stack.push_async_callback(provider.aclose)
        yield stops.asked, await stack.enter_async_context(shop.serving())


async def _stdio(shop: Shop, provider: HttpPayments | None, parent_pid: int | None) -> None:
    from siafu.apps.support.shop.over_stdio import serve_stdio

    async with _running(shop, provider, parent_pid) as (stop, server):
        await serve_stdio(server, stop)


async def _http(
    shop: Shop,
    provider: HttpPayments | None,
    key: Secret | None,
    where: tuple[str, int],
    allowed_hosts: Sequence[str],
    ready_file: Path | None,
    parent_pid: int | None,
) -> None:
    from siafu.apps.support.shop.over_http import address, serve_http
    from siafu.border.listening import bind
    from siafu.pace.clock import SystemClock

    listening = bind(*where)
    url = address(listening)

    def ready() -> None:
        typer.echo(f"siafu shop: {url} (Ctrl-C stops it)", err=True)
        if ready_file:
            write_ready(ready_file, url)

    async with _running(shop, provider, parent_pid) as (stop, server):
        await serve_http(
            server, listening, stop, key=key, clock=SystemClock(), allowed_hosts=allowed_hosts, on_ready=ready
        )


@app.command(
    epilog="""\b
Examples:
  export SIAFU_IDENTITY_KEY=$(openssl rand -hex 32)
  siafu shop serve --transport http &
  siafu shop token --customer kim     for the header Authorization: Bearer ...
"""
)
def token(
    customer: str = typer.Option(..., help="The customer the token stands for."),
    minutes: float = typer.Option(15, help="How long it is valid, at most 60."),
    tool: list[str] = typer.Option(
        [], metavar="TOOL", help="A tool it may be used for; repeat for more. Default: all."
    ),
) -> None:
    """Print a token that proves who asks.

    For the shop's HTTP server, and made with the server's SIAFU_IDENTITY_KEY.
    """
    from siafu.apps.support.shop.server import AUDIENCE
    from siafu.apps.support.shop.tools import TOOLS
    from siafu.border.identity import mint, needed_identity_key
    from siafu.pace.clock import SystemClock

    key = needed_identity_key("the server and this command must have the same one")
    if unknown := [name for name in tool if name not in TOOLS]:
        raise ConfigError(f"the shop has no tool {preview(unknown[0], 64)!r}; it has {', '.join(TOOLS)}")
    now = SystemClock().wall()
    typer.echo(mint(key, subject=customer, audience=AUDIENCE, scopes=tool or TOOLS, minutes=minutes, now=now))


@app.command(
    epilog="""\b
Examples:
  siafu shop orders                            every customer and their orders
  siafu shop orders --customer kim --json      everything about kim's orders
"""
)
def orders(
    customer: str | None = typer.Option(None, help="Only this customer's."),
    database: str | None = Where,
    as_json: bool = AsJson,
) -> None:
    """List orders, to know what one can ask about."""
    with contextlib.closing(open_shop(database)) as shop:
        everybody = shop.customers("")
        names = [customer] if customer else everybody
        found = [(name, order) for name in names for order in shop.orders("", name)]
    if customer is not None and customer not in everybody:
        raise InputError(f"{customer} has no orders; customers are {', '.join(everybody)}")
    if as_json:
        print_json([{"customer": name, **msgspec.to_builtins(order)} for name, order in found])
    else:
        rows = [(name, o.order_id, f"{o.status} {o.status_ko}", o.total_text, o.ordered_at[:10]) for name, o in found]
        print_table(("customer", "order", "status", "total", "ordered"), rows)


@app.command(
    epilog="""\b
Examples:
  siafu shop calls --limit 20       the last twenty calls
  siafu shop calls --json           for programs
"""
)
def calls(
    limit: int = typer.Option(1000, min=1, max=1_000_000, help="At most so many, the newest."),
    database: str | None = Where,
    as_json: bool = AsJson,
) -> None:
    """List the tool calls that the shop has answered."""
    with contextlib.closing(open_shop(database)) as shop:
        found = shop.calls(limit)
    if as_json:
        print_json([msgspec.to_builtins(call) for call in found])
    else:
        rows = [(time_text(call.at), call.customer or "-", call.tool, call.outcome) for call in found]
        print_table(("time", "customer", "tool", "outcome"), rows, nothing="no calls yet")
