"""What commands that list records have in common: their options, and how records are shown and one is chosen."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import typer

from siafu.border.text import first_of, preview, printable
from siafu.errors import InputError

T = TypeVar("T")
Config = typer.Option(None, "--config", help="Settings file. Default: ./siafu.toml", show_default=False)
AsJson = typer.Option(False, "--json", help="Print JSON.")
CELL, ARGUMENTS = 200, 100  # the most characters of a cell
_WORD = re.compile(r"[\w.:@/-]+")


def time_text(at: float) -> str:
    """Seconds since 1970 as `2026-11-30 09:00:00Z`."""
    return datetime.datetime.fromtimestamp(at, tz=datetime.UTC).isoformat(" ", "seconds").removesuffix("+00:00") + "Z"


def print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_lines(values: Iterable[Any]) -> None:
    """One JSON object a line."""
    for value in values:
        typer.echo(msgspec.json.encode(value).decode())


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, nothing: str = "nothing", numbers: int | None = None
) -> None:
    """One line a row, however narrow the terminal, so that nothing hides and `grep` finds whole rows; what may be long
    belongs into the last column. nothing: what is said on stderr instead of a table without rows. numbers: the first
    column from which on all are, so that they stand at the right; None = no column is.
    """
    from rich.cells import cell_len

    if not rows:
        return typer.echo(f"siafu: {nothing}", err=True)
    lines = [columns, *([preview(cell, CELL) for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        pads = (" " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
        cells = (
            cell + pad if numbers is None or at < numbers else pad + cell
            for at, (cell, pad) in enumerate(zip(line, pads, strict=True))
        )
        typer.echo("  ".join(cells).rstrip())
    return None


def print_record(values: Mapping[str, Any]) -> None:
    """One line a value that is there; `*_at` and `*_until` are times, in seconds since 1970."""
    for name, value in values.items():
        if value not in (None, ""):
            told = time_text(value) if name.endswith(("_at", "_until")) else str(value)
            typer.echo(f"{name + ':':<18} {printable(told)}")


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


def the_one(found: Iterable[T], begin: str, what: str, *, key: Callable[[T], str], see: str) -> T:
    """The only one of `found` whose id (`key`) is or begins so. what: such as "approval". see: the command that lists
    them.

    Raises: InputError when there is none, or several begin so.
    """
    begin = begin.strip()
    matches = [each for each in found if begin and key(each).startswith(begin)]
    if exact := [each for each in matches if key(each) == begin]:
        return exact[0]
    if not matches:
        raise InputError(f"there is no {what} {preview(begin, 60)!r}; see: {see}")
    if len(matches) > 1:
        ids = first_of([*map(key, matches)])
        raise InputError(f"several begin with {preview(begin, 60)!r}: {ids}; say more of the id; see: {see}")
    return matches[0]
