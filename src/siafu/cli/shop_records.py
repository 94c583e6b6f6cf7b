"""`siafu shop`: opening its database, and showing what is in it."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from siafu.border.text import printable

if TYPE_CHECKING:
    from siafu.apps.support.shop.database import ShopDatabase

Where = typer.Option(
    None,
    "--database",
    envvar="SIAFU_SHOP_DATABASE_URL",
    help="A file, sqlite:///PATH or postgresql://..., made when missing. Default: shop.db in SIAFU_HOME or ./.siafu",
    show_default=False,
    show_envvar=True,
)
Payments = typer.Option(
    None,
    envvar="SIAFU_PAYMENTS_URL",
    metavar="URL",
    help="The payment provider, see: siafu payments serve. Without it the shop refunds nothing.",
    show_envvar=True,
)
AsJson = typer.Option(False, "--json", help="Print JSON.")


def open_shop(database: str | None) -> ShopDatabase:
    """The shop's database at `database`; None or "" = the default place.

    Raises: ConfigError, StoreError.
    """
    from siafu.apps.support.shop.database import ShopDatabase

    return ShopDatabase(database or Path(os.environ.get("SIAFU_HOME") or ".siafu") / "shop.db")


def time_text(at: float) -> str:
    """Seconds since 1970 as `2026-11-30 09:00:00Z`."""
    return datetime.datetime.fromtimestamp(at, tz=datetime.UTC).isoformat(" ", "seconds").removesuffix("+00:00") + "Z"


def print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console().print(table)
