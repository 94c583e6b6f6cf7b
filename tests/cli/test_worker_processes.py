"""`siafu worker --processes` and `siafu workers`, as processes that are killed and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from processes import alive, children, wait_until
from siafu.cli.worker import _settings, _text, _together
from siafu.config.worker import _ledger
from siafu.store.lock import Lock
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

    def workers(self, *words: str) -> list[dict[str, Any]]:
        ended = siafu(self.folder, "workers", "--json", *words)
        assert ended.returncode == 0
        return [json.loads(line) for line in ended.stdout.splitlines()]

    def known(self) -> int:
        """How many workers there are, without starting a process to see."""
        with contextlib.closing(sqlite3.connect(self.folder / ".siafu" / "tasks.db")) as db:
            return int(db.execute("SELECT COUNT(*) FROM worker").fetchone()[0])


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
def test_g8_a_worker_process_that_dies_or_hangs_is_started_again_and_none_outlives_its_parent(
    tmp_path: Path, slow: Sim
) -> None:
    with crew(tmp_path, slow, "--grace", "0.5", "--lease", "1") as found:
        first = children(found.parent.pid)
        seen = found.workers("--here")
        assert {worker["pid"] for worker in seen} == first and len(first) == 2
        assert [(worker["state"], worker["busy"], worker["slots"]) for worker in seen] == [("alive", 2, 2)] * 2
        assert "each process takes one in 2 parts" in found.errors.read_text()
        victim, frozen = sorted(first)
        os.kill(victim, signal.SIGKILL)
        os.kill(frozen, signal.SIGSTOP)
        until(lambda: found.known() == 4, "no new workers came")  # neither could say good-bye
        said = found.errors.read_text()
        assert f"(pid {victim}) was ended by SIGKILL; it starts again in" in said
        assert f"(pid {frozen}) did not move for 5 s and was killed; it starts again in" in said
        second = children(found.parent.pid)
        found.parent.kill()
        assert wait_until(lambda: not any(map(alive, first | second)), 30)
        assert {left["pid"] for left in found.workers()} == first


def test_what_several_workers_did_is_told_as_one_and_each_task_once() -> None:
    first = {"claimed": 5, "left": {"succeeded": 2, "waiting": 3}, "fenced": 1, "stopped": None}
    second = {"claimed": 4, "left": {"succeeded": 1, "ready": 1}, "fenced": 1, "stopped": "budget_reached"}
    found = [
        first | {"open": {"t_1": "waiting", "t_2": "waiting", "t_3": "waiting"}},
        second | {"open": {"t_1": "ready"}},  # the second one had it later, and gave it back
    ]
    told = _together(found, 3, {"t_2"})  # the second one ended it
    assert told == {
        "tasks": 5, "claimed": 9, "left": {"succeeded": 3, "waiting": 1, "ready": 1}, "fenced": 2,
        "stopped": "budget_reached", "restarts": 3,
    }  # fmt: skip
    said = (
        "5 tasks, in 9 deliveries: 1 ready, 3 succeeded, 1 waiting; "
        "2 were another worker's, or removed, before they ended"
    )
    assert _text(told) == f"{said}; 3 processes died or hung and were started again"


def test_workers_that_start_at_once_do_not_meet_at_one_ledger(tmp_path: Path) -> None:
    (first, place), (second, other) = _ledger(tmp_path / "집"), _ledger(tmp_path / "집")
    assert (first.name, second.name) == ("worker-1.db", "worker-2.db")
    place.release()
    third, place = _ledger(tmp_path / "집")
    assert third == first
    for each in (place, other):
        each.release()


def test_a_worker_starts_beside_one_of_a_version_that_held_only_its_ledger(tmp_path: Path) -> None:
    older = Lock(tmp_path / "worker-1.db")
    ledger, place = _ledger(tmp_path)
    assert ledger.name == "worker-2.db"
    older.release()
    first, other = _ledger(tmp_path)
    assert first.name == "worker-1.db"  # its place was not kept
    for each in (place, other):
        each.release()


@pytest.mark.parametrize(
    ("file", "processes", "found"),
    [
        ("", 1, (50, 1)),  # a call for each slot
        ("", 4, (200, 4)),  # of all processes: each takes its part
        ("concurrency = 12", 4, (12, 4)),  # what somebody has set is kept
        ("processes = 6", 4, (300, 6)),  # there are others elsewhere
    ],
)
def test_the_limits_have_room_for_every_slot_unless_they_are_set(
    tmp_path: Path, file: str, processes: int, found: tuple[int, int]
) -> None:
    (tmp_path / "siafu.toml").write_text(f"[limits]\n{file}\n")
    limits = _settings(tmp_path / "siafu.toml", {}, 50, processes).limits
    assert (limits.concurrency, limits.processes) == found
