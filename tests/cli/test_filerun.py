"""What commands over files have in common at the front door: durations, and the command that goes on."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from siafu.border.money import PICO
from siafu.cli.filerun import _again, parse_duration
from siafu.errors import ConfigError
from siafu.store.report import Tally


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), (" 30m ", 1800), ("2 h", 7200), ("1d", 86_400), ("30d", 2_592_000)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0", "0m", "-5m", "1.5h", "5 minutes", "31d", "9" * 400, "５m", "m"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="no duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("words", "again"),
    [
        (["--budget", "2 USD"], ["--budget", "4 USD"]),
        (["--budget=$0.50", "--fresh"], ["--budget=1 USD"]),
        (["--out", "결과 1.jsonl", "--budget", "0.0001 USD"], ["--out", "결과 1.jsonl", "--budget", "0.6 USD"]),
        (["--budget", "0"], ["--budget", "0.6 USD"]),
        (["--out", "--budget.jsonl"], ["--out", "--budget.jsonl"]),
    ],
)
def test_the_command_that_goes_on_after_a_budget_names_a_higher_one(words: list[str], again: list[str]) -> None:
    argv = ["siafu", "batch", "run", "in.jsonl", *words]
    spent = Tally(usd_pico=PICO // 10, unknown_pico=PICO // 5)
    assert shlex.split(_again(argv, spent=spent)) == ["siafu", "batch", "run", "in.jsonl", *again]
    kept = [word for word in argv if word != "--fresh"]
    assert shlex.split(_again(argv)) == kept  # and for another reason it is the same


def test_a_budget_of_next_to_nothing_becomes_a_cent_or_two() -> None:
    assert _again(["siafu", "--budget", "0"], spent=Tally()) == "siafu --budget '0.02 USD'"


def test_the_command_that_goes_on_says_how_it_was_called() -> None:
    command = _again(["/somewhere/siafu/__main__.py", "batch", "run", "-"])
    assert command == f"{shlex.quote(sys.executable)} -m siafu batch run -  (with the same input on stdin)"


def test_a_script_on_the_path_is_told_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "siafu"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _again([str(script), "batch", "run", "in.jsonl"]) == "siafu batch run in.jsonl"
    other = str(tmp_path / "other" / "siafu")
    assert shlex.split(_again([other, "batch"])) == [other, "batch"]
