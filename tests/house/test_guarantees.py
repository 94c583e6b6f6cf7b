"""docs/guarantees.md names tests that exist, and every test that shows one of its rows."""

from __future__ import annotations

import re

import pytest
from test_security_rows import TESTS, defined

TABLE = TESTS.parent / "docs" / "guarantees.md"


def problems(text: str, tests: set[str]) -> list[str]:
    found = re.findall(r"^\| ([GP]\d+) \| .+ \| ((?:`[^`]+` ?)+) ?\|$", text, re.MULTILINE)
    rows = {name: set(re.findall(r"`([^`]+)`", listed)) for name, listed in found}
    numbered = {
        (number.upper(), test)
        for test in tests
        if (match := re.search(r"::test_((?:[gpf]\d+_)+)", test)) is not None
        for number in re.findall(r"[gp]\d+", match[1])
    }
    return [
        *(f"{name}: there is no {test}" for name in rows for test in sorted(rows[name] - tests)),
        *(f"{name} does not name {test}" for name, test in sorted(numbered) if test not in rows.get(name, ())),
    ]


def test_the_table_and_the_tests_agree() -> None:
    assert problems(TABLE.read_text(encoding="utf-8"), defined()) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("::test_g9_a_lease_that_is_renewed_lasts", "::test_gone", "G9: there is no store/test_tasks.py::test_gone"),
        ("| G17 |", "| G99 |", "G17 does not name"),
    ],
)
def test_the_check_can_fail(old: str, new: str, said: str) -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert old in text
    assert any(problem.startswith(said) for problem in problems(text.replace(old, new), defined()))
