"""Store, bells and workers in virtual time: 500 seeds. More: make simulate SEEDS=100000, or SEED=n to see one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import siafu
from siafu.queue import worker
from siafu.queue.worker import Worker
from siafu.store import tasks
from siafu.store.task_journal import TaskJournal
from siafu.store.together import Together

from . import __main__ as command
from .world import simulate

BLOCKS, BLOCK = 10, 50  # of seeds
MOST = 500  # seeds after which a mistake must have been found


@pytest.mark.parametrize("block", range(BLOCKS))
def test_p1_p2_p4_g1_g2_g7_g9_whatever_goes_wrong_nothing_is_lost_or_doubled(block: int) -> None:
    counts = Counter[str]()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        report = simulate(seed)
        assert report.violations == [], f"see: make simulate SEED={seed}"
        counts += report.counts
    enough = {"succeeded": 500, "owned again": 50, "lapses": 50, "kill": 20, "stop": 10, "hang": 10, "dead_letter": 10}
    assert not {what: counts[what] for what, least in enough.items() if counts[what] < least}


def test_one_seed_is_one_course_of_events() -> None:
    """In every process, whatever the hashes of its texts are."""
    paths = os.pathsep.join([str(Path(siafu.__file__).parents[1]), str(Path(__file__).parents[1])])
    told = set()
    for hashes in ("1", "2"):
        environment = os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": hashes}
        words = [sys.executable, "-m", "dst", "--print", "--first", "20", "--seeds", "10"]
        told.add(subprocess.run(words, env=environment, capture_output=True, check=True, timeout=100).stdout.decode())
    assert told == {"".join(f"{seed} {simulate(seed).print}\n" for seed in range(20, 30))}


# ---- the check can fail: each mistake, put into the real code, is found --------------------------------------------


def without_epochs(held: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(tx: Any, task: str, epoch: int, *, columns: str) -> Any:
        return tx.row(f"SELECT {columns} FROM task WHERE id = :id AND state = 'leased'", id=task)

    return mutant


def acknowledged_first(commit_all: Callable[..., Any]) -> Callable[..., Any]:
    async def mutant(self: Together, batch: list[Any]) -> None:
        def told_at_once(work: Callable[[Any], Any], future: Any) -> Callable[[Any], Any]:
            def both(tx: Any) -> Any:
                value = work(tx)
                future.get_loop().call_soon_threadsafe(lambda: future.done() or future.set_result(value))
                return value

            return both

        await commit_all(self, [(told_at_once(*each), each[1]) for each in batch])

    return mutant


def forgotten(_: Any) -> Any:
    async def mutant(self: TaskJournal, task: str) -> list[Any]:
        return []

    return mutant


def for_news_alone(_: Any) -> Any:
    async def mutant(self: Worker, seconds: float) -> None:
        await self._news.wait()

    return mutant


MISTAKES: dict[str, tuple[Any, str, Callable[[Any], Any], str]] = {
    "no epochs": (tasks, "_held", without_epochs, "fenced"),
    "no sweep": (tasks, "sweep", lambda _: lambda tx: 0, "did not sweep up|did not end"),
    "acknowledged before it is committed": (Together, "_commit_all", acknowledged_first, "before it was there"),
    "leases are not renewed": (tasks, "_renew", lambda _: lambda *_: frozenset(), "a live worker was taken its task"),
    "leased tasks are claimed": (
        tasks, "_NEXT", lambda sql: sql.replace("state = 'ready'", "state IN ('ready', 'leased')"), "was not ready"
    ),
    "the journal is not read": (TaskJournal, "entries", forgotten, "asks again|paid a second time"),
    "no ageing": (tasks, "aged_claims", lambda _: lambda before, wanted: 0, "starves"),
    "a newcomer comes last": (
        tasks, "first_turn", lambda _: lambda last, waiting, served, ever: 0 if ever is None else ever, "went before"
    ),
    "work is not stopped": (worker._Held, "stop", lambda _: lambda self, why: None, "in vain|too long to end"),
    "no looks without a bell": (Worker, "_wait", for_news_alone, "had a free slot|did not end"),
    "needs are not counted down": (tasks, "_free", lambda _: lambda tx, needing: None, "of its needs are left"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_the_check_can_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, what, mutant, said = MISTAKES[name]
    monkeypatch.setattr(owner, what, mutant(getattr(owner, what)))
    for seed in range(MOST):
        if found := simulate(seed).violations:
            assert re.search(said, found[0]), (seed, found)
            return
    pytest.fail(f"{MOST} seeds did not show it")


def test_a_seed_is_shown_with_all_that_happened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--seed", "3"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "Plan(lease=" in said[0] and said[-1].startswith("seed 3: ")
    monkeypatch.setattr(tasks, "sweep", lambda tx: 0)
    assert command.main(["--seed", "3"]) == 1
    assert "VIOLATION" in capsys.readouterr().out
