"""`siafu openapi`: what `siafu serve` answers, as an OpenAPI document."""

from __future__ import annotations

import typer

from siafu.cli.showing import print_json

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    epilog="""\b
Examples:
  siafu openapi > openapi.json
\b
A running server has the same at /openapi.json.
"""
)
def openapi(
    json: bool = typer.Option(True, "--json", help="For symmetry with other commands: it is always JSON."),
) -> None:
    """Print the OpenAPI description of what siafu serve answers."""
    from siafu.service.openapi import document

    print_json(document())
