"""The simulators share nothing with the code they are used to test."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "src" / "siafu" / "bench"
ALLOWED = ("aiohttp", "msgspec", "siafu.errors", "siafu.bench.simulator")
PAYMENTS = "siafu.bench.payments"


def strangers(source: str, *also: str) -> set[str]:
    """What a file imports past the standard library, ALLOWED and `also`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or ".")
    outside = {name for name in found if name.split(".")[0] not in sys.stdlib_module_names}
    known = (*ALLOWED, *also)
    return {name for name in outside if not any(name == one or name.startswith(f"{one}.") for one in known)}


@pytest.mark.parametrize(("package", "least", "also"), [("simulator", 21, ()), ("payments", 6, (PAYMENTS,))])
def test_it_imports_only_errors_from_siafu(package: str, least: int, also: tuple[str, ...]) -> None:
    files = sorted((BENCH / package).glob("*.py"))
    assert len(files) >= least
    found = {file.name: strangers(file.read_text(encoding="utf-8"), *also) for file in files}
    assert found == {file.name: set() for file in files}


def test_that_check_can_fail() -> None:
    assert strangers("from siafu.border.text import printable") == {"siafu.border.text"}
    assert strangers("import typer") == {"typer"}
    assert strangers("import siafu.bench.payments.book") == {"siafu.bench.payments.book"}
    assert strangers("import siafu.bench.payments.book, siafu.apps", PAYMENTS) == {"siafu.apps"}
    assert strangers("import json, aiohttp.web\nfrom siafu.errors import ConfigError") == set()
