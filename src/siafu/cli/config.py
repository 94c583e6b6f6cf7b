"""`siafu config`: the settings file, checked and shown, and its schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from siafu.cli.showing import AsJson, Config, print_json, print_table

app = typer.Typer(
    help="Settings: what is wrong with a siafu.toml, which values count, and the JSON Schema that editors use.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu config check siafu.toml
  siafu config show
  siafu config schema > siafu.schema.json
\b
Whether an endpoint can be reached and takes the key: siafu doctor
""",
)


@app.command(
    epilog="""\b
Examples:
  siafu config check
  siafu config check other.toml --json
\b
Looks at the file, and at the variables and files that it names; asks nobody.
Exit code: 0 nothing is wrong, 2 something is.
"""
)
def check(
    file: Path | None = typer.Argument(None, metavar="FILE", help="Default: ./siafu.toml", show_default=False),
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Say everything that is wrong with a settings file."""
    from siafu.apps.support.routes import ROLES
    from siafu.border.text import printable
    from siafu.config.checking import problems, risks, strange_roles
    from siafu.config.settings import load, settings_file
    from siafu.errors import InputError

    path = settings_file(file or config)
    if not path.exists():
        raise InputError(f"there is no file {path}; `siafu init` writes one with every setting")
    found = problems(path)
    settings = None if found else load(config=path)
    warnings = [] if settings is None else [*risks(settings), *strange_roles(settings, ROLES)]
    if json:
        print_json({"file": str(path), "ok": not found, "problems": found, "warnings": warnings})
    else:
        for text in found:
            typer.echo(printable(text))
        for text in warnings:
            typer.echo(f"warning: {printable(text)}", err=True)
        typer.echo(f"{printable(str(path))}: {len(found) or 'nothing'} wrong", err=bool(found))
    raise typer.Exit(2 if found else 0)


@app.command(
    epilog="""\b
Examples:
  siafu config show
  siafu config show --json
\b
Secrets are shown as ***, or by the name under which they are found.
"""
)
def show(config: Path | None = Config, json: bool = AsJson) -> None:
    """Show every setting that counts, and where it came from."""
    from siafu.config.settings import given, load
    from siafu.config.shown import effective

    rows = effective(load(config=config), given(config=config))
    if json:
        return print_json(rows)
    return print_table(("setting", "from", "value"), [(row.name, row.source, _text(row.value)) for row in rows])


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


@app.command(
    epilog="""\b
Examples:
  siafu config schema > siafu.schema.json
\b
With the line `#:schema ./siafu.schema.json` at the top of siafu.toml, editors
that know it (Even Better TOML, taplo) complete and check settings.
"""
)
def schema(json: bool = typer.Option(False, "--json", help="In one line.")) -> None:
    """Print the JSON Schema of siafu.toml."""
    import msgspec

    from siafu.config.schema import json_schema, schema_text

    typer.echo(msgspec.json.encode(json_schema()).decode() if json else schema_text(), nl=json)
