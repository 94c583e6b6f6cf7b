"""`siafu bench queue`: its checks and goals, and one small run of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from siafu.bench.goals import Goal, lines
from siafu.bench.queue.figures import IN_PROCESS, POSTGRESQL, THROUGH_REDIS, Run, goals, rows
from siafu.errors import MeasurementInvalid

from .commands import bench


def run(queue: str = IN_PROCESS, **fields: Any) -> Run:
    """A hundred tasks of 200 ms in ten slots: 2 s of work."""
    usual: dict[str, Any] = {
        "queue": queue, "tasks": 100, "ms": 200.0, "slots": 10, "seconds": 2.2, "accepted": 0.1, "busy": 20.4,
        "longest": 0.21, "most": 10, "done": 100, "twice": 0, "cpu": 0.05,
    }  # fmt: skip
    return Run(**{**usual, **fields})


def test_a_run_that_adds_up_passes() -> None:
    run().check()
    run(ms=0.0, busy=0.001, longest=0.0, seconds=0.05).check()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"done": 99}, "99 different tasks"),
        ({"most": 11}, "11 were done at once, in 10 slots"),
        ({"seconds": 1.9, "busy": 19.0}, "than the work"),
        ({"longest": 2.3}, "less than the longest task"),
        ({"busy": 25.0}, "Little|11.4 tasks at work"),
        ({"busy": 15.0}, "6.8 tasks at work"),
    ],
)
def test_a_run_that_contradicts_itself_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(MeasurementInvalid, match=told):
        run(**wrong).check()


def test_rows_are_medians_and_say_what_outlives_a_crash() -> None:
    (row,) = rows([run(seconds=2.4), run(seconds=2.2, twice=1), run(seconds=3.0)], {IN_PROCESS: "fsync"})
    assert (row["queue"], row["runs"], row["seconds"], row["of_ideal"]) == (IN_PROCESS, 3, 2.4, 1.2)
    assert (row["min"]["seconds"], row["max"]["seconds"], row["cpu_ms_per_task"]) == (2.2, 3.0, 0.5)
    assert (row["twice"], row["durability"]) == (1, "fsync")


def test_goals_are_judged_by_medians() -> None:
    empty: dict[str, Any] = {"ms": 0.0, "busy": 0.0, "longest": 0.0}
    good = [run(), run(seconds=9.0), run(), run(THROUGH_REDIS), run(POSTGRESQL, seconds=0.05, **empty)]
    assert [(goal.value, goal.met) for goal in goals(good)] == [(1.1, True), (1.0, True), (2000.0, True)]
    bad = [run(seconds=2.4), run(THROUGH_REDIS, seconds=2.6), run(seconds=0.1, **empty), run(POSTGRESQL)]
    assert [goal.met for goal in goals(bad)] == [False, False, False]
    assert all(line.startswith("MISSED: ") for line in lines(goals(bad)))


def test_a_goal_says_what_was_allowed() -> None:
    most, least = Goal(what="x", value=1.2, most=1.15), Goal(what="y", value=1600.0, least=1500.0)
    assert lines([most, least]) == ["MISSED: x: 1.2 (at most 1.15)", "met: y: 1,600 (at least 1,500)"]
    assert most.told() == {"what": "x", "value": 1.2, "most": 1.15, "least": None, "met": False}


def test_each_queue_is_measured_with_both_kinds_of_tasks(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    small = ("--tasks", "20", "--ms", "20", "--empty", "30", "--slots", "5", "--submitters", "5", "--repeats", "1")
    ended = bench("queue", tmp_path, *small, "--no-peers", "--html", str(page), "--json")
    assert ended.returncode in (0, 1), ended.stderr  # so few tasks tell nothing of goals
    report = json.loads(ended.stdout)
    measured = {row["queue"] for row in report["rows"]}
    assert measured | set(report["skipped"]) == {IN_PROCESS, POSTGRESQL, THROUGH_REDIS, "Redis Streams alone"}
    assert IN_PROCESS in measured
    assert all("not installed" in reason for reason in report["skipped"].values())
    for row in report["rows"]:
        assert row["seconds"] > 0.08 or not row["ms"]
        assert row["durability"] and row["twice"] == 0
    assert ended.returncode == 0 or not all(goal["met"] for goal in report["goals"])
    assert "siafu, SQLite" in page.read_text(encoding="utf-8")
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_wrong_words_are_told_before_anything_is_measured(tmp_path: Path) -> None:
    for words, told in ((("--peer", "cellery"), "there are streaq"), (("--tasks", "0", "--empty", "0"), "nothing to")):
        ended = bench("queue", tmp_path, *words)
        assert ended.returncode == 2 and told in ended.stderr
