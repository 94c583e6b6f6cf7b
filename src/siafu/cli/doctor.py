"""`siafu doctor`: looks at what siafu needs, and says what to do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from siafu.cli.shop_records import UNPAID
from siafu.cli.showing import AsJson, Config

if TYPE_CHECKING:
    from siafu.config.advice import Row

EPILOG = """\b
Examples:
  siafu doctor                      costs nothing
  siafu doctor --call               ask each model for one word, too
  siafu doctor --config other.toml
  siafu doctor --json               for programs
\b
Keys are never shown. Exit code: 0 nothing failed, 1 something did.
"""

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@app.command(epilog=EPILOG)
def doctor(
    call: bool = typer.Option(False, "--call", help="Make one tiny completion with each model; costs next to nothing."),
    base_url: str | None = typer.Option(None, help="Look at this endpoint instead."),
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Check settings, key, endpoint and tools, and say what to do."""
    from siafu.config.doctor import ended_well

    rows = asyncio.run(_examine({"config": config, "flags": {"endpoint.base_url": base_url}}, call))
    well = ended_well(rows)
    if json:
        import msgspec

        typer.echo(msgspec.json.encode({"ok": well, "checks": rows}).decode())
    else:
        _print(rows)
    raise typer.Exit(0 if well else 1)


async def _examine(where: dict[str, Any], call: bool) -> list[Row]:
    from siafu.config.advice import Row
    from siafu.config.beside import payments_rows, redis_rows
    from siafu.config.canary import canary_rows
    from siafu.config.databases import database_rows
    from siafu.config.doctor import call_rows, python_row, risk_rows, settings_rows, state_rows
    from siafu.config.reaching import endpoint_rows
    from siafu.config.settings import given, load
    from siafu.config.task_health import task_rows
    from siafu.errors import ConfigError, ConfigErrors

    rows = [python_row()]
    try:
        rows += settings_rows(given(**where), os.environ)
        settings = load(**where)
        rows += risk_rows(settings)
    except ConfigError as error:
        wrong = error.all if isinstance(error, ConfigErrors) else (error.message,)
        return [*rows, *(Row(check="settings", state="fail", found=text) for text in wrong)]
    rows += state_rows(settings.home)
    shop = os.environ.get("SIAFU_SHOP_DATABASE_URL")
    rows += await database_rows(settings, shop)
    rows += await task_rows(settings, shop)
    rows += await canary_rows(settings)
    rows += await redis_rows(settings)
    payments = os.environ.get("SIAFU_PAYMENTS_URL", "")
    rows += await payments_rows(payments, os.environ.get("SIAFU_PAYMENTS_NAME", ""))
    reached = await endpoint_rows(settings)
    rows += reached
    if call and all(row.state != "fail" for row in reached):
        rows += await call_rows(settings)
    if not settings.mcp_servers:
        example = "no MCP server is configured: the example shop stands in"
        more = "" if payments else f"{UNPAID}: siafu payments serve --help"
        return [*rows, Row(check="tools", state="ok", found=example, advice=more)]
    from siafu.config.servers import tool_rows

    return rows + await tool_rows(settings)


def _print(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from siafu.border.text import printable

    console = Console(highlight=False)
    table = Table.grid(padding=(0, 1))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        name = Text(printable(row.check))
        name.truncate(26, overflow="ellipsis")
        table.add_row(Text(row.state, style=_COLOURS[row.state]), name, Text(printable(row.found)))
        if row.advice:
            table.add_row("", "", Text("-> " + printable(row.advice)))
    console.print(table)
    failed = sum(row.state == "fail" for row in rows)
    console.print(f"\n{failed} failed" if failed else "\nnothing failed")
