"""Where one run over files keeps its things."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from siafu.border.jsonl import checked_out
from siafu.errors import InputError

STDIN = Path("-")
_BLOCK = 1 << 20


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """source: the input; `-` = standard input. out: results. errors: failed items; None = they go into `out`.
    folder: holds `<run>.db` (the journal), `<run>.input` (what stood on which line) and `<run>.lock`.
    """

    source: Path
    out: Path
    errors: Path | None
    folder: Path
    run: str

    @property
    def journal(self) -> Path:
        return self.folder / f"{self.run}.db"

    @property
    def index(self) -> Path:
        return self.folder / f"{self.run}.input"

    @property
    def outputs(self) -> tuple[Path, ...]:
        return (self.out,) if self.errors is None else (self.out, self.errors)


def place(source: Path, out: Path, errors: Path | None, home: Path) -> Place:
    """The place of the run that writes `out`: one run an output file, wherever it is started from.

    Raises: InputError when two of the files are the same, or an output is a folder, a device or in no folder.
    """
    if STDIN in (out, errors):
        raise InputError("results go to a file, so that the run can be resumed; - is no file")
    named = [("the input", source), ("--out", out)] + ([("--errors", errors)] if errors else [])
    seen: dict[str, str] = {}
    for name, path in named:
        real = os.path.realpath(path)
        if real in seen and path != STDIN:
            raise InputError(f"{name} and {seen[real]} are the same file, {path}; nothing was written")
        seen[real] = name
    checked_out(out)
    if errors is not None:
        checked_out(errors)
    return Place(source=source, out=out, errors=errors, folder=home / "runs", run=run_name(out))


def run_name(out: Path) -> str:
    """`<stem>-<8 hex of the absolute path>` of an output file, safe as a file name."""
    real = os.fsencode(os.path.realpath(out))
    stem = re.sub(r"[^\w-]", "_", out.stem)[:60]
    return f"{stem}-{hashlib.sha256(real).hexdigest()[:8]}"


def set_aside(where: Place) -> int | None:
    """Rename everything an earlier run left to `*.bak-N`, the journal too; returns N, None when there was nothing."""
    state = [path for path in where.folder.glob(f"{where.run}.*") if path.suffix != ".lock"]
    files = [path for path in where.outputs if path.exists()]
    if not state and not files:
        return None
    number = 1
    while _taken(where, number):
        number += 1
    for path in files:
        path.rename(_backup(path, number))
    for path in state:  # run.db-wal must stay beside run.db under one name
        path.rename(path.with_name(path.name.replace(where.run, f"{where.run}.bak-{number}", 1)))
    return number


def _taken(where: Place, number: int) -> bool:
    return any(_backup(path, number).exists() for path in where.outputs) or any(
        where.folder.glob(f"{where.run}.bak-{number}.*")
    )


def _backup(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.bak-{number}")


@contextmanager
def opened(source: Path) -> Iterator[BinaryIO]:
    """The input as a file that can be read twice; what is no regular file (`-`, a pipe) is copied to a temporary one.

    Raises: InputError when it cannot be read.
    """
    try:
        file = open(0, "rb", closefd=False) if source == STDIN else source.open("rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise InputError(f"cannot read {source}: {error.strerror}") from None
    with file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            yield file
            return
        with tempfile.TemporaryFile() as spool:
            try:
                while block := file.read(_BLOCK):
                    spool.write(block)
                spool.seek(0)
            except OSError as error:
                raise InputError(f"cannot copy the input to a temporary file: {error.strerror}") from None
            yield spool
