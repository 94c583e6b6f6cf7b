"""What is printed on a terminal, and what into a pipe."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.cells import cell_len

from .front import PLAIN, siafu

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7]")


def on_a_terminal(folder: Path, *words: str, **env: str) -> str:
    """All that a command writes to a terminal of 80 columns."""
    master, slave = pty.openpty()
    seen: list[bytes] = []

    def read() -> None:
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:  # the other end is closed
                return
            if not data:
                return
            seen.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    command = [sys.executable, "-m", "siafu", *words]
    try:
        subprocess.run(command, cwd=folder, env={**PLAIN, **env}, stdout=slave, stderr=slave, timeout=60, check=False)
    finally:
        os.close(slave)
        reader.join(20)
        os.close(master)
    return b"".join(seen).decode()


def test_colours_are_for_terminals_that_want_them(tmp_path: Path) -> None:
    assert COLOUR.search(on_a_terminal(tmp_path, "doctor"))
    assert not COLOUR.search(on_a_terminal(tmp_path, "doctor", NO_COLOR="1"))
    assert "\x1b" not in siafu(tmp_path, "doctor").stdout


def test_wide_characters_are_aligned(tmp_path: Path) -> None:
    lines = siafu(tmp_path, "shop", "orders").stdout.splitlines()
    starts = {cell_len(line[: re.search(r"\S+ +\d{4}-\d\d-\d\d", line).start()]) for line in lines[1:] if line}  # type: ignore[union-attr]
    assert len(lines) > 200 and len(starts) == 1  # the column of totals, right of Korean words of several widths
    assert len({len(line) for line in lines[1:] if line}) > 1  # by characters they differ


@pytest.mark.parametrize("words", [("doctor",), ("shop", "orders"), ("shop", "calls"), ("init",)], ids=" ".join)
def test_json_for_programs(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = siafu(tmp_path, *words, "--json")
    assert done.returncode == 0 and isinstance(json.loads(done.stdout), dict | list)
    assert done.stderr == ""


@pytest.mark.parametrize("words", [("doctor",), ("init", ".", "--json")], ids=" ".join)
def test_a_folder_with_a_korean_name(tmp_path: Path, words: tuple[str, ...]) -> None:
    folder = tmp_path / "고객 지원"
    folder.mkdir()
    done = siafu(folder, *words)
    assert done.returncode == 0, done.stderr
