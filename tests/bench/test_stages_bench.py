"""`siafu bench stages`: its checks and goals, and one small stage, ten times as fast."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from siafu.bench.stages.compare import Stage
from siafu.errors import MeasurementInvalid

from .commands import bench


def stage(**fields: Any) -> Stage:
    """1,200 tasks at 30 a second and 30 at once: 39 s by the limit, 0.2 s for the last answer."""
    usual: dict[str, Any] = {
        "workers": 20, "tasks": 1200, "rate": 30.0, "capacity": 30.0, "latency": 0.2, "seconds": 40.0,
        "succeeded": 1200, "longest": 39.9, "task_p50": 20.0, "task_p95": 38.0, "task_p99": 39.6, "busy": 700.0,
        "call_p50": 0.6, "call_p95": 0.7, "call_p99": 0.8, "sent": 1210, "refused": 10, "completed": 1200,
        "spent_pico": 10**12, "priced_pico": 10**12, "cpu": 3.0, "rss_mb": 80.0,
    }  # fmt: skip
    return Stage(**{**usual, **fields})


def test_a_stage_that_adds_up_passes() -> None:
    stage().check()
    found = stage()
    assert found.limited == 39.0
    assert found.of_ideal == pytest.approx(39.8 / 39.0)
    assert [goal.met for goal in found.goals()] == [True, True, True]
    row = found.row()
    assert (row["tasks_per_s"], row["refused_share"], bytes(row["usd"])) == (30.0, 0.0083, b"1")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"succeeded": 1200, "completed": 1199}, "counted 1199 of 1210"),
        ({"sent": 1205}, "10 refused"),
        ({"longest": 41.0}, "slowest task took 41.00 s"),
        ({"seconds": 38.0, "longest": 38.0}, "more than the endpoint's limit"),
        ({"busy": 900.0}, "22.5 were at work"),
        ({"busy": 200.0}, "5.0 were at work"),
        ({"spent_pico": 10**12 - 1}, "the ledger says"),
    ],
)
def test_a_stage_that_contradicts_itself_or_the_endpoint_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(MeasurementInvalid, match=told):
        stage(**wrong).check()


@pytest.mark.parametrize(
    ("wrong", "missed"),
    [({"succeeded": 1199}, 0), ({"refused": 30, "sent": 1230}, 1), ({"seconds": 40.5}, 2)],
)
def test_goals_can_be_missed(wrong: dict[str, Any], missed: int) -> None:
    assert [goal.met for goal in stage(**wrong).goals()].index(False) == missed


def test_so_few_workers_that_the_limit_is_not_reached_are_not_judged_by_it() -> None:
    assert len(stage(workers=5).goals()) == 2


def test_a_stage_is_measured(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ("--workers", "20", "--tasks", "60", "--scale", "10", "--html", str(page), "--json")
    ended = bench("stages", tmp_path, *words)
    assert ended.returncode in (0, 1), ended.stderr  # on a busy machine so short a burst is late
    report = json.loads(ended.stdout)
    (row,) = report["rows"]
    assert (row["workers"], row["succeeded"], row["completed"], row["rate"], row["capacity"]) == (20, 60, 60, 300, 30)
    assert row["usd"] > 0
    assert 0.02 <= row["task_p50"] <= row["task_p95"] <= row["task_p99"] <= row["seconds"] + 0.05
    assert ended.returncode == (not all(goal["met"] for goal in report["goals"]))
    assert "20 workers" in page.read_text(encoding="utf-8")
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]
