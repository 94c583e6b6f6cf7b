"""kill -9 and SIGSTOP of workers at every window, on both databases; the long storm is `make chaos-tasks`."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import pytest

from nursery import Nursery
from siafu.store.task_desk import Which
from siafu.store.task_records import MOST_DELIVERIES
from store.task_house import House, new

from .child import KIND
from .redis_faults import FAULTS, a_town
from .storm import STREAM, WINDOWS, Storm, violations

pytestmark = [pytest.mark.kill, pytest.mark.slow]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("place", ["sqlite", "postgresql, and a redis that is broken all the while"])
async def test_g1_g2_g17_nothing_lost_nothing_doubled(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    storm = Storm(tmp_path, f"sqlite:///{tmp_path / '가게 100%?#.db'}", seed=7)
    async with a_town(STREAM) if place != "sqlite" else contextlib.nullcontext() as town:
        if town is not None:
            storm = Storm(tmp_path, request.getfixturevalue("postgres_url"), seed=7, redis=town)
        found = await storm.run(kills=10, stops=2, seconds=150)
    assert (storm.kills, storm.stops) >= (10, 2) and set(storm.windows) == set(WINDOWS), "too little has happened"
    assert town is None or set(storm.faults) == set(FAULTS)
    assert violations(storm, found) == []
    assert len(found["tasks"]) >= 20 and sum(task.state == "succeeded" for task in found["tasks"]) >= 8
    assert sum(task.fenced for task in found["tasks"]) >= 1, "no worker that lost its lease tried to write"


async def test_g17_f36_a_poison_task_dies_alone(tmp_path: Path) -> None:
    """It is claimed among others three times, and kills their worker each time."""
    house = House(f"sqlite:///{tmp_path / 'tasks.db'}")
    (tmp_path / "paid").mkdir()
    (tmp_path / "processes").mkdir()
    payloads = ['"일"'] * 4 + ['"poison"'] + ['"일"'] * 16
    await house.added(*(new(kind=KIND, payload=payload) for payload in payloads))
    with Nursery(tmp_path / "processes", "tasks.child") as nursery:
        words = (f"sqlite:///{tmp_path / 'tasks.db'}", str(tmp_path))
        ends = [nursery.bear(*words, f"w{n}", "until_empty").wait(60) for n in range(MOST_DELIVERIES + 1)]
    assert ends == [-signal.SIGKILL] * MOST_DELIVERIES + [0]
    assert await house.states() == {"succeeded": 20, "dead_letter": 1}
    (poison,) = await house.desk.find(Which(state="dead_letter"), limit=9)
    assert (poison.payload, poison.lease_epoch, poison.code) == ('"poison"', MOST_DELIVERIES, "worker_lost")
    await house.aclose()


@pytest.mark.timeout(120)
async def test_the_check_can_fail(tmp_path: Path) -> None:
    """Workers that do not read the journal pay twice."""
    storm = Storm(tmp_path, f"sqlite:///{tmp_path / 'tasks.db'}", seed=3, wish="forgetful")
    assert "doubled effects" in violations(storm, await storm.run(kills=6, stops=0, seconds=60))
