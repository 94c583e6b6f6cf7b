"""`siafu worker --processes` and `siafu workers`, as processes that are killed and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from processes import alive, children, wait_until
from sim import Sim, running_sim
from support.commands import environment, examples, siafu, until, write


@pytest.fixture(scope="module")
def slow() -> Iterator[Sim]:
    with running_sim(seed=3, latency="fixed:60s") as sim:
        yield sim


class Crew:
    """A parent with two workers of two slots each, which hold four tasks."""

    def __init__(self, folder: Path, sim: Sim, *words: str) -> None:
        self.folder, self._more = folder, environment(SIAFU_BASE_URL=sim.url)
        write(folder / "a.jsonl", examples(6))
        assert siafu(folder, "submit", "support", "a.jsonl").returncode == 0
        words = ("worker", "--processes", "2", "--slots", "2", "--json", *words)
        self.errors = folder / "errors"
        with self.errors.open("wb") as errors:
            self.parent = subprocess.Popen(
                [sys.executable, "-m", "siafu", *words], cwd=folder, env=self._more, stdout=subprocess.PIPE,
                stderr=errors, text=True,
            )  # fmt: skip
        until(lambda: sim.stats()["in_flight"] == 4, "the workers asked nothing")

    def workers(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        ended = siafu(self.folder, "workers", "--json", *words)
        assert ended.returncode == code
        return [json.loads(line) for line in ended.stdout.splitlines()]

    def ready(self) -> int:
        ended = siafu(self.folder, "tasks", "list", "--state", "ready", "--json")
        return len(ended.stdout.splitlines())


@contextmanager
def crew(folder: Path, sim: Sim, *words: str) -> Iterator[Crew]:
    found = Crew(folder, sim, *words)
    try:
        yield found
    finally:
        for pid in (*children(found.parent.pid), found.parent.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        found.parent.communicate()
        until(lambda: sim.stats()["in_flight"] == 0, "calls are left")


@pytest.mark.kill
def test_g8_a_worker_process_that_dies_is_started_again_and_all_stop_together(tmp_path: Path, slow: Sim) -> None:
    with crew(tmp_path, slow, "--grace", "0") as found:
        pids = children(found.parent.pid)
        seen = found.workers("--here")
        assert {worker["pid"] for worker in seen} == pids and len(pids) == 2
        assert [(worker["state"], worker["busy"], worker["slots"]) for worker in seen] == [("alive", 2, 2)] * 2
        assert "each of 2 processes takes one in 2 parts" in found.errors.read_text()
        victim = min(pids)
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(found.workers()) == 3, "no new worker came")
        assert f"(pid {victim}) was ended by SIGKILL; it starts again in" in found.errors.read_text()
        found.parent.send_signal(signal.SIGTERM)
        out, _ = found.parent.communicate(timeout=30)
        assert found.parent.returncode == 0
        told = json.loads(out)
        assert told["restarts"] == 1 and set(told["left"]) == {"ready"} and told["tasks"] == sum(told["left"].values())
        assert not [pid for pid in pids if alive(pid)]
        (left,) = found.workers()  # the one that was killed could not say good-bye
        assert left["pid"] == victim


@pytest.mark.kill
def test_no_worker_outlives_a_parent_that_was_killed(tmp_path: Path, slow: Sim) -> None:
    with crew(tmp_path, slow, "--grace", "0.5") as found:
        pids = children(found.parent.pid)
        assert len(pids) == 2
        found.parent.kill()
        assert wait_until(lambda: not any(map(alive, pids)), 30)
        assert found.workers("--here", code=1) == [] and found.ready() == 6  # handed back, and not left to lapse
