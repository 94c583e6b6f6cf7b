"""`siafu WORDS` in this process: what it prints, and the exit code that its process would have. For tests whose point is
the command, not its process: a start costs more than most commands do.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import siafu
from siafu.cli.main import main

PROGRAM = str(Path(siafu.__file__).with_name("__main__.py"))


def command(folder: Path, *words: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """The ended command, as `subprocess.run(..., text=True)` gives it. It has an event loop of its own, so the caller
    must not be in one.
    """
    streams = {name: io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for name in ("stdout", "stderr")}
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.multiple(sys, argv=[PROGRAM, *words], **streams),
    ):
        code: object = None
        try:
            main(list(words))
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    told = {name: stream.buffer.getvalue().decode() for name, stream in streams.items()}  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(["siafu", *words], code, **told)
