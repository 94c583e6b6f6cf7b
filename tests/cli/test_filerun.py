"""What commands over files have in common at the front door: durations, and the command that goes on."""

from __future__ import annotations

import errno
import shlex
import sys
import tempfile
from pathlib import Path

import pytest

from siafu.apps.filerun.run import Outcome
from siafu.border.money import PICO
from siafu.cli.filerun import _again, describe, enough, parse_duration
from siafu.errors import ConfigError
from siafu.store.spending import Sums
from siafu.swarm.results import MapSummary

from .front import siafu


def test_calls_that_nobody_bounded_are_not_said_to_be_without_a_price_alone() -> None:
    cut_off = Sums(calls=3, usd_pico=2 * 10**10, unknown=1, unpriced=1)
    assert "unknown for 1 call (without a price, or open or cut off without max_tokens), else $0.0200" in describe(
        cut_off
    )
    assert "unknown" not in describe(Sums(calls=3, usd_pico=2 * 10**10))


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
        (["--budget=$0.50", "--fresh", ""], ["--budget=4 USD", ""]),
        (["--out", "--budget.jsonl"], ["--out", "--budget.jsonl"]),
    ],
)
def test_the_command_that_goes_on_after_a_budget_names_a_higher_one(words: list[str], again: list[str]) -> None:
    argv = ["siafu", "batch", "run", "in.jsonl", *words]
    assert shlex.split(_again(argv, budget=4 * PICO)) == ["siafu", "batch", "run", "in.jsonl", *again]
    kept = [word for word in argv if word != "--fresh"]
    assert shlex.split(_again(argv)) == kept  # and for another reason it is the same


@pytest.mark.parametrize(
    ("given", "spent", "unknown", "done", "needs", "cents"),
    [
        (200, 10, 0, 99, 1, 400),  # twice of what there was
        (10, 10, 20, 99, 1, 60),  # twice of what was spent
        (0, 0, 0, 0, 0, 2),  # a cent or two at least
        (10, 10, 0, 10, 1, 125),  # nine tenths are still to do
        (10, 90, 0, 99, 300, 390),  # the next call must fit
    ],
)
def test_a_budget_that_is_enough(given: int, spent: int, unknown: int, done: int, needs: int, cents: int) -> None:
    cent = PICO // 100
    session = MapSummary(budget="run", needs_pico=needs * cent)
    outcome = Outcome(total=100, finished=done, failed=0, waits={}, session=session)
    assert enough(outcome, Sums(usd_pico=spent * cent, unknown_pico=unknown * cent), given * cent) == cents * cent


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


def test_a_full_folder_for_temporary_files_is_not_taken_for_the_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "in.jsonl").write_text('{"custom_id": "a", "body": {"model": "m", "messages": []}}\n', encoding="utf-8")
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    done = siafu(tmp_path, "batch", "run", "in.jsonl", "--out", "out.jsonl")
    assert done.returncode == 1 and not (tmp_path / "out.jsonl").exists()
    assert "cannot use in.jsonl, or the folder for temporary files (TMPDIR): No space left" in done.stderr
