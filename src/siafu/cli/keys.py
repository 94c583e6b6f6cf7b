"""`siafu keys`: client keys of `siafu serve`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import typer

from siafu.cli.options import AllowUnpriced
from siafu.cli.showing import AsJson, Config, print_json, print_record, print_table, the_one, time_text
from siafu.errors import InputError

if TYPE_CHECKING:
    from siafu.border.secrets import Secret
    from siafu.config.settings import Settings
    from siafu.store.client_keys import ClientKey, ClientKeys

T = TypeVar("T")
app = typer.Typer(
    help="Keys for clients of siafu serve: who may use which models, how much and how fast. A key is shown once and "
    "kept as its SHA-256. Changes count within a second, also for a server that runs.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu keys create --name web
  siafu keys create --name batch --model "gpt-4.1*" --budget-day "5 USD"
  siafu keys create --name kim-app --model siafu/support --customer kim
  siafu keys list
  siafu keys revoke key_3f
""",
)


@app.command(
    epilog="""\b
Examples:
  siafu keys create --name web --rpm 600 --concurrency 20
  siafu keys create --name trial --budget-total "20 USD" --days 30
  siafu keys create --name ci --json | jq -r .key
  siafu keys create --name watcher --scope read
"""
)
def create(
    name: str = typer.Option(..., "--name", help="What the key is for."),
    model: list[str] = typer.Option(
        [], metavar="MODEL", help="A model it may use; NAME* = all that begin so. Default: every model"
    ),
    scope: list[str] = typer.Option(
        [], metavar="SCOPE", help="What it may do: read, submit, cancel; may stand several times. Default: all"
    ),
    customer: str = typer.Option("", help="Requests to siafu/support are for this customer."),
    tenant: str = typer.Option("", help="A label for routes and records."),
    budget_day: str | None = typer.Option(None, help='Most that may be spent a day (UTC), such as "5 USD".'),
    budget_total: str | None = typer.Option(None, help="Most that may ever be spent."),
    allow_unpriced: bool = AllowUnpriced,
    rpm: int | None = typer.Option(None, min=1, max=1_000_000, help="Requests in any 60 seconds."),
    concurrency: int | None = typer.Option(None, min=1, max=100_000, help="Requests at once."),
    priority: int = typer.Option(2, min=1, max=3, help="The best that its requests may have: 1 is before 2 and 3."),
    days: float | None = typer.Option(
        None, "--days", min=0.001, max=36_500, help="How long it is valid. Default: ever"
    ),
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Make a key and show it, this once."""
    from siafu.border.money import parse_usd
    from siafu.border.text import clean
    from siafu.store.client_keys import SCOPES, KeyTerms

    if wrong := [each for each in scope if each not in SCOPES]:
        raise InputError(f"--scope is one of {', '.join(SCOPES)}, not {wrong[0][:40]!r}")
    terms = KeyTerms(
        name=_word(clean(name), "name"),
        models=tuple(_word(each, "model") for each in model) or ("*",),
        customer=customer and _word(customer, "customer"),
        tenant=tenant and _word(tenant, "tenant"),
        day_pico=None if budget_day is None else parse_usd(budget_day),
        total_pico=None if budget_total is None else parse_usd(budget_total),
        allow_unpriced=allow_unpriced,
        rpm=rpm,
        concurrency=concurrency,
        priority=priority,
        scopes=tuple(each for each in SCOPES if each in scope) or SCOPES,
    )

    async def make(keys: ClientKeys) -> tuple[ClientKey, Secret]:
        return await keys.create(terms, seconds=None if days is None else days * 86_400)

    key, secret = _with_keys(_settings(config), make)
    if json:
        return print_json({**_record(key), "key": secret.reveal()})
    typer.echo(secret.reveal())
    typer.echo(f"siafu: {key.id}: this key is not shown again; a client sends it as its API key", err=True)
    return None


@app.command(
    "list",
    epilog="""\b
Examples:
  siafu keys list
  siafu keys list --json
""",
)
def list_keys(config: Path | None = Config, json: bool = AsJson) -> None:
    """List all keys, also those that are expired or revoked."""
    keys = _with_keys(_settings(config), lambda keys: keys.all())
    if json:
        return print_json([_record(key) for key in keys])
    now = time.time()
    columns = ("id", "state", "key", "created", "name")
    rows = [(each.id, each.state(now), f"{each.hint}…", time_text(each.created_at), each.terms.name) for each in keys]
    return print_table(columns, rows, nothing="no client keys; make one with: siafu keys create --name NAME")


@app.command(
    epilog="""\b
Examples:
  siafu keys show key_3f
  siafu keys show key_3f --json
"""
)
def show(
    id: str = typer.Argument(metavar="ID", help="The key's id, or how it begins."),
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Show what a key allows, and what it has spent."""
    settings = _settings(config)
    key = the_one(
        _with_keys(settings, lambda keys: keys.all()), id, "client key", key=lambda each: each.id, see="siafu keys list"
    )
    record = {**_record(key), **_spent(settings, key)}
    if json:
        return print_json(record)
    told = {name: bytes(value).decode() if isinstance(value, msgspec.Raw) else value for name, value in record.items()}
    return print_record({**told, **{name: " ".join(record[name]) for name in ("models", "scopes")}})


@app.command(
    epilog="""\b
Examples:
  siafu keys revoke key_3f
"""
)
def revoke(
    id: str = typer.Argument(metavar="ID", help="The key's id, or how it begins."),
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Take a key back, for ever.

    A running server refuses it within a second.
    """

    async def take(keys: ClientKeys) -> ClientKey:
        key = the_one(await keys.all(), id, "client key", key=lambda each: each.id, see="siafu keys list")
        return await keys.revoke(key.id)

    key = _with_keys(_settings(config), take)
    if json:
        return print_json(_record(key))
    return typer.echo(f"revoked {key.id} ({key.terms.name})")


@app.command(
    epilog="""\b
Examples:
  siafu keys sign --customer kim --minutes 5
  curl URL/v1/chat/completions \\
    -H "x-siafu-customer: $(siafu keys sign --customer kim)" ...
"""
)
def sign(
    customer: str = typer.Option(..., "--customer", help="Who the requests are for."),
    minutes: float = typer.Option(15, help="How long it is valid; at most 60."),
) -> None:
    """Sign who a customer is.

    For the header x-siafu-customer of a request to siafu/support; with SIAFU_IDENTITY_KEY, which the server has too. A
    program makes the same with any JWT library: HS256, aud "siafu-serve", sub the customer, scope "", iat and exp.
    """
    from siafu.border.identity import mint, needed_identity_key
    from siafu.service.swarms import AUDIENCE

    key = needed_identity_key("it signs customers, and has at least 32 characters")
    typer.echo(mint(key, subject=customer, audience=AUDIENCE, scopes=(), now=time.time(), minutes=minutes))


def _settings(config: Path | None) -> Settings:
    from siafu.config.settings import load

    return load(config=config)


def _with_keys(settings: Settings, do: Callable[[ClientKeys], Awaitable[T]]) -> T:
    from siafu.config.client_keys import client_keys

    async def run() -> T:
        async with client_keys(settings) as keys:
            return await do(keys)

    return asyncio.run(run())


def _record(key: ClientKey) -> dict[str, Any]:
    from siafu.border.money import json_usd

    terms = key.terms
    return {
        "id": key.id,
        "name": terms.name,
        "state": key.state(time.time()),
        "hint": key.hint,
        "models": terms.models,
        "scopes": terms.scopes,
        "customer": terms.customer,
        "tenant": terms.tenant,
        "budget_day_usd": json_usd(terms.day_pico),
        "budget_total_usd": json_usd(terms.total_pico),
        "allow_unpriced": terms.allow_unpriced,
        "rpm": terms.rpm,
        "concurrency": terms.concurrency,
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
    }


def _spent(settings: Settings, key: ClientKey) -> dict[str, Any]:
    """What the ledger of this home says; calls that run count as much as they may cost. Of a budget that servers share,
    what all of them said.
    """
    from siafu.border.money import json_usd
    from siafu.config.budgets import spent_of_budgets
    from siafu.config.client_keys import LEDGER, RUN
    from siafu.gateway.shared import client_budget_names
    from siafu.store.key_spending import charged_in

    now = time.time()
    before, today = charged_in(settings.home / LEDGER, RUN, key.id, now // 86_400 * 86_400)
    total = before + today
    if settings.database_url is not None:
        day_name, total_name = client_budget_names(now, key.id)
        told = spent_of_budgets(settings, [day_name, total_name])
        today, total = told.get(day_name, today), told.get(total_name, total)
    return {"spent_today_usd": json_usd(today), "spent_total_usd": json_usd(total)}


def _word(text: str, what: str) -> str:
    from siafu.border.text import preview

    if not text.strip() or len(text) > 200 or text != preview(text, 200):
        raise InputError(f"--{what} takes one line of 1 to 200 characters")
    return text
