"""docs/security.md names tests that exist, and every test that shows one of its rows."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = TESTS.parent / "docs" / "security.md"
EFFECTS = {4, 5, 10, 11, 12, 13, 16, 17, 18, 19, 20, 36}  # rows that effects on the world rest on


def rows(text: str) -> dict[int, list[str]]:
    """The tests of each row, as `file::name` under tests/."""
    found = re.findall(r"^\| SEC(\d+) \| .+ \| ((?:`[^`]+` ?)+) ?\|$", text, re.MULTILINE)
    return {int(number): re.findall(r"`([^`]+)`", tests) for number, tests in found}


def defined() -> set[str]:
    """Every test function there is."""
    return {
        f"{file.relative_to(TESTS).as_posix()}::{node.name}"
        for file in TESTS.rglob("test_*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def problems(text: str, tests: set[str]) -> list[str]:
    table = rows(text)
    named = {(number, test) for number, listed in table.items() for test in listed}
    numbered = {(int(found[1]), test) for test in tests if (found := re.search(r"::test_sec(\d+)_", test)) is not None}
    return [
        *(f"no row SEC{number}" for number in sorted(EFFECTS - table.keys())),
        *(f"SEC{number}: there is no {test}" for number, test in sorted(named) if test not in tests),
        *(f"SEC{number} does not name {test}" for number, test in sorted(numbered - named)),
    ]


def test_the_table_and_the_tests_agree() -> None:
    assert problems(TABLE.read_text(encoding="utf-8"), defined()) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("| SEC17 |", "| SEC99 |", "no row SEC17"),
        ("::test_refused`", "::test_gone`", "SEC5: there is no border/test_identity.py::test_gone"),
        ("`shop/test_http.py::test_sec6_host_and_origin`", "`shop/test_http.py::test_bearer_tokens`", "SEC6 does not"),
    ],
)
def test_the_check_can_fail(old: str, new: str, said: str) -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert old in text
    assert any(problem.startswith(said) for problem in problems(text.replace(old, new), defined()))
