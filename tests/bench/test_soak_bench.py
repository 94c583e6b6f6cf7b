"""`siafu bench soak`: the rule by which something is flat, and a soak of some seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from siafu.bench.soak.figures import Sample, Totals, check, goals, rows
from siafu.errors import MeasurementInvalid

from .commands import bench

GOOD = Totals(submitted=100, succeeded=100, other=0, open=0)


def samples(an_hour: float = 0.0, *, name: str = "worker memory_mb", first: float = 100.0) -> list[Sample]:
    """An hour, a look a minute; it rises by 30 in the first ten minutes, then by so much an hour."""
    found = []
    for minute in range(61):
        value = first + 3.0 * min(minute, 10) + an_hour * minute / 60
        found.append(Sample(at=60.0 * minute, values={name: value, "ledger kept_mb": float(minute)}))
    return found


def flat(found: list[Sample]) -> list[bool]:
    return [goal.met for goal in goals(found, GOOD)[2:]]


def test_what_grows_at_first_and_then_stays_is_flat() -> None:
    assert flat(samples()) == flat(samples(-50.0)) == flat(samples(12.0)) == [True]


@pytest.mark.parametrize(
    ("name", "an_hour"), [("worker memory_mb", 30.0), ("serve descriptors", 30.0), ("task rows", 700.0)]
)
def test_what_leaks_is_not(name: str, an_hour: float) -> None:
    assert flat(samples(an_hour, name=name)) == [False]
    row = next(row for row in rows(samples(an_hour, name=name)) if row["what"] == name)
    assert row["flat"] is False
    assert row["an_hour"] == pytest.approx(an_hour, rel=0.1)


def test_a_ledger_is_not_judged_and_too_few_looks_are_not() -> None:
    assert {row["what"]: row["flat"] for row in rows(samples())} == {"worker memory_mb": True, "ledger kept_mb": None}
    assert flat(samples()[:8]) == []


def test_tasks_that_were_lost_are_seen() -> None:
    wrong: dict[str, Any] = {"submitted": 100, "succeeded": 97, "other": 1, "open": 2}
    assert [goal.met for goal in goals(samples(), Totals(**wrong))] == [False, False, True]
    check(Totals(**wrong))
    for nonsense in ({"submitted": 0}, {"succeeded": 101}):
        with pytest.raises(MeasurementInvalid, match="submitted"):
            check(Totals(**{**wrong, **nonsense}))


def test_a_soak_of_seconds_tells_of_both_processes_and_all_tables(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ("--hours", "0.001", "--rate", "10", "--keep", "1", "--html", str(page), "--json")
    ended = bench("soak", tmp_path, *words)
    assert ended.returncode in (0, 1), ended.stderr
    report = json.loads(ended.stdout)
    assert report["totals"]["submitted"] == report["totals"]["succeeded"] > 10
    known = {"worker memory_mb", "serve descriptors", "task rows", "task_journal rows", "tasks file_mb"}
    assert known <= {row["what"] for row in report["rows"]}
    assert len(report["samples"]) >= 3
    assert ended.returncode == (not all(goal["met"] for goal in report["goals"]))
    assert "serve memory_mb" in page.read_text(encoding="utf-8")
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]
