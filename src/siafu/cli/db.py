"""`siafu db`: looks after the databases that siafu keeps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from siafu.cli.showing import AsJson, Config, print_lines, print_table

if TYPE_CHECKING:
    from siafu.config.databases import Stand

app = typer.Typer(
    help="Look after what siafu keeps: tasks, effects, conversations, keys, budgets, canaries, journals and ledgers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu db status
  siafu db backup /backups/monday
  siafu db upgrade
\b
They are files in SIAFU_HOME, or in SIAFU_DATABASE_URL; journals and ledgers
are files in any case. docs/deploying.md says how to restore.
""",
)


@app.command(
    "status",
    epilog="""\b
Examples:
  siafu db status
  siafu db status --json        one object a line
\b
new: not there yet, made at first use. older: siafu db upgrade, or the next
command that uses it, brings it up to date. Changes nothing.
Exit code: 0, or 1 when one cannot be used.
""",
)
def status(config: Path | None = Config, json: bool = AsJson) -> None:
    """Show which databases there are, and of which version."""
    from siafu.config.databases import stands
    from siafu.config.settings import load

    found, faults = stands(load(config=config), _shop())
    _show(found, as_json=json)
    for fault in faults:
        typer.echo(f"siafu: {fault}", err=True)
    raise typer.Exit(1 if faults else 0)


@app.command(
    "upgrade",
    epilog="""\b
Examples:
  siafu db backup /backups/before && siafu db upgrade
\b
Every command brings up to date what it opens, so this is for a moment that
you choose, or a user of PostgreSQL that may make tables if workers may not.
Steps only add, so processes of the version before go on; they do not start
again. A journal that a process writes is brought up to date by the next one.
""",
)
def upgrade(config: Path | None = Config, json: bool = AsJson) -> None:
    """Bring all databases up to date.

    On a server those that are missing are made.
    """
    from siafu.config.databases import upgrade as each_one
    from siafu.config.settings import load

    number, shown = 0, []
    for before, after in each_one(load(config=config), _shop()):
        number += before.version != after.version
        shown.append(after)
        if before.version != after.version:
            typer.echo(f"siafu: {after.where}, {after.name}: {before.version or 0} -> {after.version}", err=True)
    _show(shown, as_json=json)
    if not json:
        typer.echo(f"siafu: {number:,} brought up to date" if number else "siafu: all are up to date", err=True)


@app.command(
    "backup",
    epilog="""\b
Examples:
  siafu db backup /backups/monday
\b
TO is a new folder; nothing is overwritten. Everything may be in use
meanwhile. Each copy is a database as it was at one moment, and was opened to
see that it is whole. PostgreSQL is copied by pg_dump, which has to be
installed. docs/deploying.md says how to restore.
""",
)
def backup(
    to: Path = typer.Argument(..., metavar="TO", help="A folder that does not exist yet."),
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Copy everything into a new folder, while it is in use."""
    from siafu.config.databases import back_up
    from siafu.config.settings import load

    written = back_up(load(config=config), _shop(), to.absolute())
    if json:
        print_lines({"file": str(path), "bytes": path.stat().st_size} for path in written)
    else:
        for path in written:
            typer.echo(f"{path}  {path.stat().st_size:,} bytes")


def _shop() -> str | None:
    return os.environ.get("SIAFU_SHOP_DATABASE_URL") or None


def _show(found: list[Stand], *, as_json: bool) -> None:
    if as_json:
        return print_lines(found)
    rows = [(each.name, each.state, f"{each.version or 0}/{each.known}", each.where) for each in found]
    return print_table(("name", "state", "steps", "where"), rows)
