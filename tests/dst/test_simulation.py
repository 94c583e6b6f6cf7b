"""Store, bells and workers in virtual time: 500 seeds. More: make simulate SEEDS=100000, or SEED=n to see one."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

import siafu
from siafu.queue import attendance, worker
from siafu.queue.worker import Worker
from siafu.service.tasks import webhooks
from siafu.store import task_desk, task_turns, tasks, together, workers
from siafu.store.task_backlog import Backlog
from siafu.store.task_journal import TaskJournal
from siafu.store.together import Together
from siafu.store.webhooks import WebhookQueue

from . import __main__ as command
from .disk import Weather
from .plan import NOBODY
from .world import simulate

BLOCKS, BLOCK = 10, 50  # of seeds
MOST = 500  # seeds after which a mistake must have been found


@pytest.mark.parametrize("block", range(BLOCKS))
def test_p1_p2_p4_g1_g2_g7_g9_g17_whatever_goes_wrong_nothing_is_lost_or_doubled(block: int) -> None:
    counts = Counter[str]()
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        report = simulate(seed)
        assert report.violations == [], f"see: make simulate SEED={seed}"
        counts += report.counts
    enough = {"succeeded": 500, "owned again": 50, "lapses": 50, "kill": 10, "stop": 5, "hang": 5, "dead_letter": 10}
    assert not {what: counts[what] for what, least in enough.items() if counts[what] < least}


def test_one_seed_is_one_course_of_events() -> None:
    """In every process, whatever the hashes of its texts are."""
    paths = os.pathsep.join([str(Path(siafu.__file__).parents[1]), str(Path(__file__).parents[1])])
    told = set()
    for hashes in ("1", "2"):
        environment = os.environ | {"PYTHONPATH": paths, "PYTHONHASHSEED": hashes}
        words = [sys.executable, "-m", "dst", "--print", "--first", "20", "--seeds", "4"]
        told.add(subprocess.run(words, env=environment, capture_output=True, check=True, timeout=100).stdout.decode())
    assert told == {"".join(f"{seed} {simulate(seed).print}\n" for seed in range(20, 24))}


def awaits(file: Path) -> dict[int, range]:
    """By the line in which an await of a class begins: the lines in which it may be waited."""
    found = {}
    for part in ast.parse(file.read_text(encoding="utf-8")).body:
        for node in ast.walk(part):
            if isinstance(node, ast.Await) and isinstance(part, ast.ClassDef):
                found[node.lineno] = range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return found


def test_processes_died_at_every_await_and_nothing_was_lost() -> None:
    files = [Path(str(module.__file__)) for module in (worker, together, attendance, webhooks)]
    left = {(str(file), first): lines for file in files for first, lines in awaits(file).items()}
    assert len(left) > 30
    faults = ("kill", "kill other", "end", "hurry", "give up")
    changes = {
        "every": 60,
        "faults": faults,
        "until_empty": True,
        "weather": Weather(broken=0.15),
        "poisons": 0,
        "growing": True,
        "tellers": 1,
    }
    for seed in range(MOST):
        most = 12 if seed % 2 else 1000  # so that submissions are refused, and tried again
        deadly = frozenset((file, line) for (file, _), lines in left.items() for line in lines)
        report = simulate(seed, deadly, most_open=most, **changes)
        assert report.violations == [], seed
        for file, line in report.died_at:
            left = {point: lines for point, lines in left.items() if point[0] != file or line not in lines}
        if not left:
            return
    pytest.fail(f"nobody died in these lines: {list(left)}")


# ---- the check can fail: each mistake, put into the real code, is found --------------------------------------------


def without_epochs(held: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(tx: Any, asked: Any, *, columns: str) -> Any:
        sql = f"SELECT {columns} FROM task WHERE id = :id AND state = 'leased'"
        return [tx.row(sql, id=id) for id, _ in asked]

    return mutant


def acknowledged_first(commit_all: Callable[..., Any]) -> Callable[..., Any]:
    async def mutant(self: Together, batch: list[Any]) -> None:
        def told_at_once(work: Callable[..., Any], future: Any) -> Callable[..., Any]:
            def both(tx: Any, given: Any) -> Any:
                values = work(tx, given)
                future.get_loop().call_soon_threadsafe(lambda: future.done() or future.set_result(values[0]))
                return values

            return both

        await commit_all(self, [(told_at_once(work, future), given, future) for work, given, future in batch])

    return mutant


def forgotten(_: Any) -> Any:
    async def mutant(self: TaskJournal, task: str) -> list[Any]:
        return []

    return mutant


def for_news_alone(_: Any) -> Any:
    async def mutant(self: Worker, seconds: float) -> None:
        await self._news.wait()

    return mutant


ALONE = {"people": NOBODY, "every": 0, "does": ("quick",), "weather": Weather()}  # nothing else happens


class Mistake(NamedTuple):
    """owner, what: the part of the code that `made` replaces. said: what is found, with plans changed by `changes`."""

    owner: Any
    what: str
    made: Callable[[Any], Any]
    said: str
    changes: Mapping[str, Any] = MappingProxyType({})


def answered_by_others(accept: Callable[..., Any]) -> Callable[..., Any]:
    return lambda tx, submitted: accept(tx, submitted)[::-1]


def without_holding(_: Any) -> Any:
    @contextlib.asynccontextmanager
    async def mutant(self: Backlog, tasks: int) -> AsyncIterator[None]:
        await self._admit(tasks)
        self._room, self._coming = self._room + tasks, 0
        yield

    return mutant


def told_first(claim: Callable[..., Any]) -> Callable[..., Any]:
    async def mutant(self: WebhookQueue, *asked: Any) -> Any:
        found = await claim(self, *asked)
        for each in found:
            await self.done(each.id, 200)
        return found

    return mutant


def without_a_word(remove: Callable[..., int]) -> Callable[..., int]:
    return lambda tx, rows: tx.change("DELETE FROM task WHERE id IN :ids", ids=[row["id"] for row in rows] or ["-"])


MISTAKES = {
    "no epochs": Mistake(tasks, "_held", without_epochs, "fenced"),
    "no sweep": Mistake(tasks, "sweep", lambda _: lambda tx: 0, "did not sweep up|did not end"),
    "acknowledged before it is committed": Mistake(Together, "_commit_all", acknowledged_first, "before it was there"),
    "leases are not renewed": Mistake(tasks, "_renew", lambda _: lambda *_: frozenset(), "a live worker was taken"),
    "leased tasks are claimed": Mistake(
        tasks, "_NEXT", lambda sql: sql.replace("state = 'ready'", "state IN ('ready', 'leased')"), "was not ready"
    ),
    "the journal is not read": Mistake(TaskJournal, "entries", forgotten, "asks again|paid a second time"),
    "no ageing": Mistake(tasks, "aged_claims", lambda _: lambda before, wanted: 0, "starves"),
    "a newcomer comes last": Mistake(
        task_turns,
        "first_turn",
        lambda _: lambda last, waiting, served, ever: ever or 0,
        "went before",
        {"tenants": 3, "priorities": (1,), "kinds": ("a",), "batches": 11, "batch": 9, "workers": 1} | ALONE,
    ),
    "work is not stopped": Mistake(
        worker._Held, "stop", lambda _: lambda self, why: None, "in vain", {"does": ("long",), "people": 0.4}
    ),
    "no looks without a bell": Mistake(Worker, "_wait", for_news_alone, "had a free slot|did not end"),
    "needs are not counted down": Mistake(tasks, "_free", lambda _: lambda tx, id: None, "its needs are left"),
    "suspects are held together": Mistake(
        Worker, "_holds_suspect", lambda _: lambda self: False, "did not die alone", {"poisons": 2} | ALONE
    ),
    "who shares a commit gets another's answer": Mistake(
        tasks, "accept", answered_by_others, "was answered with", {"submitters": 3, "pause": 0.02, "batches": 9}
    ),
    "nobody counts what is ready": Mistake(workers, "_ready", lambda _: lambda *_: 0, "does not get more"),
    "room is not held": Mistake(Backlog, "room", without_holding, "are open"),
    "a need is removed without a word": Mistake(
        task_desk,
        "_remove",
        without_a_word,
        "needs are left|delivered before",
        {"chained": True, "people": 0.2, "does": ("well", "fails"), "batches": 12, "seconds": 9.0, "poisons": 0},
    ),
    "a webhook counts as told when it is taken": Mistake(WebhookQueue, "claim", told_first, "counts as told"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_the_check_can_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake = MISTAKES[name]
    monkeypatch.setattr(mistake.owner, mistake.what, mistake.made(getattr(mistake.owner, mistake.what)))
    for seed in range(MOST):
        if found := simulate(seed, **mistake.changes).violations:
            assert re.search(mistake.said, found[0]), (seed, found)
            return
    pytest.fail(f"{MOST} seeds did not show it")


def test_a_seed_is_shown_with_all_that_happened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--seed", "0"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "Plan(lease=" in said[0] and said[-1].startswith("seed 0: ")
    monkeypatch.setattr(tasks, "sweep", lambda tx: 0)
    assert command.main(["--seed", "0"]) == 1
    assert "VIOLATION" in capsys.readouterr().out
