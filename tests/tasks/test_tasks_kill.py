"""kill -9 and SIGSTOP of workers at every window, on both databases; the long storm is `make chaos-tasks`."""

from __future__ import annotations

from pathlib import Path

import pytest

from .storm import WINDOWS, Storm, violations

pytestmark = [pytest.mark.kill, pytest.mark.slow]


@pytest.mark.timeout(180)
async def test_g1_g2_g17_nothing_lost_nothing_doubled(tmp_path: Path, sql_url: str) -> None:
    storm = Storm(tmp_path, sql_url, seed=7)
    found = await storm.run(kills=10, stops=2, seconds=100)
    assert (storm.kills, storm.stops) >= (10, 2) and set(storm.windows) == set(WINDOWS), "too little has happened"
    assert violations(storm, found) == []
    assert sum(task.state == "succeeded" for task in found["tasks"]) >= 20
    assert sum(task.fenced for task in found["tasks"]) >= 1, "no worker that lost its lease tried to write"


@pytest.mark.timeout(120)
async def test_the_check_can_fail(tmp_path: Path) -> None:
    """Workers that do not read the journal pay twice."""
    storm = Storm(tmp_path, f"sqlite:///{tmp_path / 'tasks.db'}", seed=3, wish="forgetful")
    assert "doubled effects" in violations(storm, await storm.run(kills=6, stops=0, seconds=60))
