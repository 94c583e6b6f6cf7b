"""What the doctor says of tasks: who does them, what is stuck, whose clock is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from siafu.config.settings import Settings
from siafu.config.task_health import backlog_row, clock_row, task_rows
from siafu.config.tasks import task_store
from siafu.store.task_records import NewTask
from siafu.store.workers import Health, Present, Workers
from store.test_workers import standing


def health(**more: Any) -> Health:
    usual = {"now": 0.0, "ready": 0, "leased": 0, "waiting": 0, "dead": 0, "oldest_ready": None, "overdue": 0}
    return Health(**{**usual, **more})


def present(**more: Any) -> Present:
    usual = {
        "name": "w", "host": "서버", "pid": 7, "version": "1", "slots": 8, "least": 8, "most": 8, "state": "alive",
        "busy": 0, "per_minute": 0, "began_at": 0.0, "seen_at": 0.0, "seen_ago": 1.0,
    }  # fmt: skip
    return Present(**{**usual, **more})


@pytest.mark.parametrize(
    ("found", "workers", "state", "said", "advice"),
    [
        ({}, [], "ok", "0 ready, 0 leased", ""),
        ({"ready": 5, "oldest_ready": 3.0}, [{}], "ok", "5 ready (the oldest for 3 s)", ""),
        ({"ready": 5, "oldest_ready": 3.0}, [], "warn", "0 workers are alive", "siafu worker"),
        ({"leased": 5}, [{"state": "stale"}], "warn", "0 workers are alive", "siafu worker"),
        ({"leased": 2, "overdue": 2}, [{}], "warn", "2 leases are over", "siafu workers"),
        ({"ready": 5, "oldest_ready": 900.0}, [{}], "warn", "1 worker is alive", "more workers"),
        ({"dead": 2}, [{}], "ok", "2 dead", "siafu dead list"),
    ],
)
def test_backlog(found: Any, workers: list[Any], state: str, said: str, advice: str) -> None:
    row = backlog_row(health(**found), [present(**each) for each in workers])
    assert row.state == state and said in row.found and advice in row.advice


@pytest.mark.parametrize(
    ("skew", "error", "workers", "state", "said"),
    [
        (0.5, 0.01, [0.1], "ok", "within 2 s"),
        (-70.0, 0.01, [0.1], "warn", "this host by -70 s"),
        (3.0, 4.0, [], "ok", "within 4 s"),  # it took so long to ask that nobody can say
        (0.0, 0.01, [0.1, 5.0], "warn", "서버 by +5 s"),
    ],
)
def test_clocks(skew: float, error: float, workers: list[float], state: str, said: str) -> None:
    row = clock_row(skew, error, [present(skew=each) for each in workers])
    assert row.state == state and said in row.found


def empty(folder: Path) -> bool:
    return not list(folder.iterdir())


async def test_it_looks_at_a_real_database_and_makes_none(tmp_path: Path) -> None:
    settings = Settings.model_validate({"home": str(tmp_path)})
    assert await task_rows(settings, None) == [] and empty(tmp_path)
    async with task_store(settings) as store:
        await store.accept([NewTask(kind="k", payload="1")])
        assert [row.state for row in await task_rows(settings, None)] == ["warn", "ok"]
        await Workers(store.together.database).say(standing(), ["k"])
        assert [row.state for row in await task_rows(settings, None)] == ["ok", "ok"]
