"""`siafu report sla`, over a database of tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from siafu.store.database import Database
from siafu.store.task_schema import MIGRATIONS

from .front import siafu

_INSERT = (
    "INSERT INTO task (id, kind, run, tenant, customer, once, payload, print, priority, turn, state, deps_left, "
    "created_at, ready_at, code, result, ended_at) VALUES (:id, 'support', :run, '', '', :id, '1', 'p', 2, 0, "
    ":state, 0, {now} - 60, 0, :code, '1', {now} - 60 + :took)"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / ".siafu").mkdir()
    database = Database(tmp_path / ".siafu" / "tasks.db", MIGRATIONS, what="the test's tasks", schema="tasks")
    for number in range(100):
        state, code = ("failed", "tool_timeout") if number == 99 else ("succeeded", "")
        database.transact(
            lambda tx, n=number, state=state, code=code: tx.change(  # type: ignore[misc]
                _INSERT, id=f"t_{n:02}", run="월요일", state=state, code=code, took=(n + 1) / 10
            )
        )
    database.close()
    return tmp_path


def test_what_was_kept_and_what_was_not(folder: Path) -> None:
    kept = siafu(folder, "report", "sla", "--p95", "10s", "--success", "99")
    assert kept.returncode == 0, kept.stderr
    assert "99.00 %" in kept.stdout
    assert "t_99" in kept.stdout
    slow = siafu(folder, "report", "sla", "--p95", "9s", "--success", "99", "--run", "월요일", "--limit", "1")
    assert slow.returncode == 1
    assert "10 tasks missed it, the first 1:" in slow.stdout
    assert "월요일" in slow.stdout
    assert siafu(folder, "report", "sla", "--success", "99.1").returncode == 1
    assert siafu(folder, "report", "sla", "--run", "없음").returncode == 0


def test_as_json(folder: Path) -> None:
    found = json.loads(siafu(folder, "report", "sla", "--p95", "500ms", "--json", "--limit", "100").stdout)
    assert found["targets"] == {"p95": 0.5, "success": None}
    assert found["total"]["success"] == 0.99
    assert found["total"]["p95"] == pytest.approx(9.5, abs=0.002)
    assert (found["missed"], found["total"]["slow"]) == (95, 94)
    assert {miss["code"] for miss in found["misses"]} == {"", "tool_timeout"}


@pytest.mark.parametrize(
    "words", [("--success", "0"), ("--success", "101"), ("--success", "많이"), ("--p95", "-1s"), ("--since", "9999d")]
)
def test_wrong_use_says_what_is_right(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = siafu(tmp_path, "report", "sla", *words)
    assert done.returncode == 2
    assert "such as 99.5" in done.stderr or "duration" in done.stderr
