"""Files of at most 500 lines, functions of at most 60."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FILE, MAX_FUNCTION = 500, 60


def too_long(source: str) -> Iterator[str]:
    """What is over the limits in one file's source."""
    lines = source.count("\n") + 1
    if lines > MAX_FILE + 1:
        yield f"{lines - 1} lines"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > MAX_FUNCTION:
                yield f"line {node.lineno}: {node.name} has {size} lines"


@pytest.mark.parametrize("folder", ["src", "tests"])
def test_files_and_functions_stay_small(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = {str(f.relative_to(ROOT)): list(too_long(f.read_text(encoding="utf-8"))) for f in files}
    assert {name: what for name, what in found.items() if what} == {}


def test_the_check_can_fail() -> None:
    assert list(too_long("x = 1\n" * 501)) == ["501 lines"]
    assert list(too_long("x = 1\n" * 500)) == []
    assert list(too_long("def f():\n" + "    x = 1\n" * 60)) == ["line 1: f has 61 lines"]
    assert list(too_long("def f():\n" + "    x = 1\n" * 59)) == []
