"""What the commands of `siafu bench` share: options, and how they tell what they found."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from siafu.errors import ConfigError

Home = typer.Option(
    Path(".siafu"),
    envvar="SIAFU_HOME",
    help="Journals of the runs are here meanwhile; clients and queues of others stay here, installed.",
)
Json = typer.Option(False, "--json", help="Print the figures as JSON.")
Html = typer.Option(None, "--html", metavar="FILE", help="Write charts too: one HTML file that needs no network.")


def numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(1 <= number <= 10_000 for number in found) or len(set(found)) < len(found):
        raise ConfigError(f"{option} {text}: write numbers from 1 to 10,000, each once, such as 100,1000")
    return found


def progress(text: str) -> None:
    typer.echo(text, err=True)


def print_report(report: Any) -> None:
    from siafu.border.canonical import dumps

    sys.stdout.buffer.write(dumps(report) + b"\n")
    sys.stdout.flush()


def writable(file: Path | None) -> None:
    """See before minutes of measuring that the page can be written."""
    if file is not None:
        try:
            file.open("a").close()
        except OSError as error:
            raise ConfigError(f"--html {file} cannot be written: {error.strerror}") from None


def write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    progress(f"charts: {file}")
