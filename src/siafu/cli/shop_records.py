"""`siafu shop`: opening its database, and showing what is in it."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from siafu.border.text import preview

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
UNPAID = "without SIAFU_PAYMENTS_URL the shop refunds nothing"
CELL, ARGUMENTS = 200, 100  # the most characters of a cell
_WORD = re.compile(r"[\w.:@/-]+")
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


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, nothing: str = "nothing") -> None:
    """One line a row, however narrow the terminal, so that nothing hides and `grep` finds whole rows; what may be long
    belongs into the last column. nothing: what is said on stderr instead of a table without rows.
    """
    from rich.cells import cell_len

    if not rows:
        return typer.echo(f"siafu: {nothing}", err=True)
    lines = [columns, *([preview(cell, CELL) for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
        typer.echo("  ".join(padded).rstrip())
    return None


def arguments_text(arguments: str) -> str:
    """The JSON arguments of a call for a table: `amount=5000 order_id=1001`, without empty ones. What is more than a
    word stays in quotes, so that no value can pass for an argument.
    """
    try:
        values = msgspec.json.decode(arguments, type=dict[str, Any])
    except msgspec.DecodeError:
        return preview(arguments, CELL)
    told = (f"{name}={_value(value)}" for name, value in values.items() if value not in ("", None))
    return preview(" ".join(told), ARGUMENTS)


def _value(value: Any) -> str:
    return value if isinstance(value, str) and _WORD.fullmatch(value) else msgspec.json.encode(value).decode()
