from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from siafu.bench.demo.real import Model
from siafu.bench.limits.live import POLICIES, Load, Row, Server, compare
from siafu.cli.bench_live import on_real_server, show
from siafu.errors import ConfigError, MeasurementInvalid
from sim import running_sim

SPEED = {"m": (20.0, 4.0)}  # ms to the first token, and for each further one


async def test_where_each_policy_settles_at_a_server_with_slots_and_with_half_of_them() -> None:
    said: list[str] = []
    with running_sim(models=SPEED, slots=4, latency="default") as sim:

        async def restart(slots: int) -> None:
            await asyncio.to_thread(sim.set_limits, slots=slots)

        load = Load(slots=4, agents=12, calls=100, policies=("fixed", "vegas"), prompts=("mixed",))
        rows = await compare(Server(sim.url, "m", restart), load, said.append)
        stats = sim.stats()
    found: dict[tuple[str, int], Row] = {(row.policy, row.slots): row for row in rows}
    assert list(found) == [(policy, slots) for policy in load.policies for slots in (4, 2)]
    assert said[-1] == "mixed prompts, vegas, 2 slots"
    assert stats["completed"] == 400 and sum(row.failed for row in rows) == 0
    assert found["fixed", 4].at_once == found["fixed", 2].at_once == 12, "the control: nothing told it of the slots"
    assert 3 <= found["vegas", 4].limit <= 6
    assert found["vegas", 2].limit <= 4
    assert found["vegas", 4].p50 < found["fixed", 4].p50
    first = found["fixed", 4].first_token
    assert first is not None and first > 0.02


async def test_without_a_way_to_restart_it_there_are_no_rows_of_half_the_slots() -> None:
    with running_sim() as sim:
        load = Load(slots=4, agents=5, calls=20, policies=("vegas",), prompts=("whole",))
        (row,) = await compare(Server(sim.url, "m"), load, lambda text: None)
    assert row.first_token is None and row.slots == 4


async def test_a_row_without_any_answer_is_refused() -> None:
    with running_sim(faults="401:100%") as sim:
        load = Load(slots=1, agents=2, calls=3, policies=("fixed",), prompts=("short",))
        with pytest.raises(MeasurementInvalid, match="no call was answered"):
            await compare(Server(sim.url, "m"), load, lambda text: None)


def test_the_command_on_a_server_of_ones_own() -> None:
    with running_sim() as sim:
        command = [sys.executable, "-m", "siafu", "bench", "limits", "--base-url", sim.url, "--model", "m"]
        more = ["--calls", "12", "--prompts", "short", "--json"]
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert [(row["policy"], row["slots"]) for row in json.loads(done.stdout)["rows"]] == [(p, 4) for p in POLICIES]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"prompts": ("short", "big")}, "short, long, mixed, whole"),
        ({"policies": ("best",)}, "slots, fixed, aimd, vegas, window"),
        ({"slots": 12}, "more than the 12 slots"),
    ],
)
def test_what_cannot_be_meant_is_told(given: dict[str, Any], told: str) -> None:
    load = Load(**{"slots": 4, "agents": 12, "calls": 3, **given})
    with pytest.raises(ConfigError, match=told):
        on_real_server(Model(base_url="http://127.0.0.1:9/v1", name="m"), load, json=True)


def test_rows_are_shown_in_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    row = Row(
        prompts="short", policy="window", slots=64, limit=120.5, at_once=63, answers_per_s=123.45, p50=12.3, p95=123.4,
        first_token=None, failed=10,
    )  # fmt: skip
    show([row], restarted=False)
    shown = capsys.readouterr().out
    assert "120.5" in shown and "Not measured: half the slots" in shown
    assert max(map(len, shown.splitlines())) <= 80
