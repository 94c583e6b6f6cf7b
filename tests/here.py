"""`siafu WORDS` in this process: what it prints, and the exit code that its process would have.

For tests whose point is the command, not its process: a start costs more than most commands do.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import siafu
from siafu.cli.main import main

PROGRAM = str(Path(siafu.__file__).with_name("__main__.py"))


def command(folder: Path, *words: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """The ended command, as `subprocess.run(..., text=True)` gives it. From a coroutine only one that handles no
    signals.
    """
    out, err = io.BytesIO(), io.BytesIO()
    with (
        contextlib.chdir(folder),
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "argv", [PROGRAM, *words]),
        mock.patch("gc.freeze"),  # a setting of the whole process
        mock.patch("gc.set_threshold"),
        contextlib.redirect_stdout(io.TextIOWrapper(out, "utf-8", write_through=True)),
        contextlib.redirect_stderr(io.TextIOWrapper(err, "utf-8", write_through=True)),
    ):
        code = _outside_a_loop(words)
        told = out.getvalue().decode(), err.getvalue().decode()
    return subprocess.CompletedProcess(["siafu", *words], code, *told)


def _outside_a_loop(words: Sequence[str]) -> int:
    """The exit code. A command has an event loop of its own, so where one is running it gets a thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _ended(words)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_ended, words).result()


def _ended(words: Sequence[str]) -> int:
    try:
        main(list(words))
    except SystemExit as ended:
        assert isinstance(ended.code, int)
        return ended.code
    raise AssertionError("a command ends its process")
