"""`siafu bench crowd`: what a late probe has seen, and one small crowd."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from siafu.bench.crowd.compare import Row
from siafu.bench.crowd.probe import Probe, stall_ms, times_late
from siafu.errors import MeasurementInvalid

from .commands import bench


def test_a_long_stall_counts_for_each_time_it_covers() -> None:
    assert times_late(-0.001) == [0.0]
    assert times_late(0.004) == [0.004]
    assert times_late(0.035) == pytest.approx([0.035, 0.025, 0.015, 0.005])


def test_stalls_are_told_by_percentile() -> None:
    assert stall_ms([0.001] * 999 + [0.5], 99.9) == pytest.approx(1.0)
    assert stall_ms([0.001] * 998 + [0.5] * 2, 99.9) == pytest.approx(500.0)
    assert stall_ms([], 50) == 0.0


async def test_a_loop_that_is_held_up_is_seen() -> None:
    async with Probe() as probe:
        await asyncio.sleep(0.02)
        time.sleep(0.1)  # noqa: ASYNC251 - the stall
        await asyncio.sleep(0.02)
    assert stall_ms(probe.late, 100) >= 80.0
    assert len(probe.late) >= 9


def row(**fields: Any) -> Row:
    usual: dict[str, Any] = dict.fromkeys(Row.__struct_fields__, 0) | {"first_error": "", "calls": 9}
    return Row(**{**usual, "server_calls": 9, "in_flight": 3.0, **fields})


def test_a_crowd_that_does_not_add_up_is_refused() -> None:
    row().check(3)
    row(errors=2, server_calls=8).check(3)
    with pytest.raises(MeasurementInvalid, match="counted 10"):
        row(server_calls=10).check(3)
    with pytest.raises(MeasurementInvalid, match="4 calls were in flight where 3"):
        row(in_flight=4.0).check(3)


def test_a_small_crowd_waits_in_the_limiter(tmp_path: Path) -> None:
    ended = bench("crowd", tmp_path, "--waiting", "6", "--in-flight", "2", "--upstream-ms", "20", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)["row"]
    assert (found["agents"], found["calls"], found["server_calls"], found["errors"]) == (8, 24, 24, 0)
    assert found["in_flight"] <= 2.04 < found["agents_in_calls"] <= 8.0
    assert found["rss_mb"] >= found["rss_before_mb"] > 10
    assert list(tmp_path.iterdir()) == []
