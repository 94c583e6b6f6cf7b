"""The simulator shares nothing with the code it is used to test."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "siafu" / "bench" / "simulator"
ALLOWED = ("aiohttp", "msgspec", "siafu.errors", "siafu.bench.simulator")


def strangers(source: str) -> set[str]:
    """What a file imports past the standard library and ALLOWED."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or ".")
    outside = {name for name in found if name.split(".")[0] not in sys.stdlib_module_names}
    return {
        name for name in outside if not any(name == allowed or name.startswith(f"{allowed}.") for allowed in ALLOWED)
    }


def test_it_imports_only_errors_from_siafu() -> None:
    files = sorted(PACKAGE.glob("*.py"))
    assert len(files) > 20
    assert {file.name: strangers(file.read_text(encoding="utf-8")) for file in files} == {f.name: set() for f in files}


def test_that_check_can_fail() -> None:
    assert strangers("from siafu.border.text import printable") == {"siafu.border.text"}
    assert strangers("import typer") == {"typer"}
    assert strangers("import json, aiohttp.web\nfrom siafu.errors import ConfigError") == set()
