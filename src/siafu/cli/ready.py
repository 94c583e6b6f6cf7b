"""A server of siafu's own tells where it listens."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import typer

from siafu.errors import InputError


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Where a simulator listens: for its callers, and for those who control it."""

    url: str
    control: str
    pid: int = msgspec.field(default_factory=os.getpid)
    simulated: bool = True


def tell(ready: Ready, note: str, *, file: Path | None, as_json: bool) -> None:
    """One line on standard output, the URL and `note` or JSON; and the JSON in `file`, whole from the beginning."""
    line = msgspec.json.encode(ready).decode()
    if file is not None:
        write_ready(file, line)
    typer.echo(line if as_json else f"{ready.url}  ({note})")
    sys.stdout.flush()


def write_ready(file: Path, line: str) -> None:
    """Put `line` into `file`, whole from the beginning.

    Raises: InputError when it cannot be made, or another thing than a file is there, whose place it would take.
    """
    if file.exists() and not file.is_file():
        raise InputError(f"--ready-file {file} is no regular file: name one that is, or is not there yet")
    part = file.with_name(file.name + ".part")
    try:
        part.write_text(line + "\n", encoding="utf-8")
        part.replace(file)
    except OSError as error:
        raise InputError(f"--ready-file {file} cannot be written: {error.strerror}") from None
