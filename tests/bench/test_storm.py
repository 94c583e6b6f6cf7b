"""Crowds that an endpoint refuses most of."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

from siafu.bench import storm
from siafu.errors import MeasurementInvalid


@pytest.mark.parametrize(("agents", "seconds"), [(100, 2.0), (1000, 2.0)])
async def test_f06_a_storm_of_refusals_loses_nothing_and_does_nothing_twice(agents: int, seconds: float) -> None:
    async with asyncio.timeout(60):
        row = await storm.storm(agents, seconds)
    assert (row.answered, row.completed, row.first_error) == (agents, agents, "")
    assert row.refused > agents / 20, "there was a storm"
    assert row.sent == row.completed + row.refused <= 2.5 * agents
    assert row.seconds >= (agents - row.rate) / row.rate - 0.1, "a second's worth may come at once"


def test_the_command_measures_each_crowd_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "siafu", "bench", "storm", "--agents", "20", "--seconds", "1"]
    ended = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    (row,) = json.loads(ended.stdout)["rows"]
    assert (row["agents"], row["answered"], row["completed"], row["rate"]) == (20, 20, 20, 20.0)
    assert row["rss_mb"] > 10 and row["seconds"] < 30


def test_what_does_not_end_well_is_told() -> None:
    with pytest.raises(MeasurementInvalid, match="did not start"):
        list(storm.storms([3], -1.0, lambda _: None))
