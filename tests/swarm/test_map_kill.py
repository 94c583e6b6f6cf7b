"""kill -9 at random moments and at every crash point of the store: no finished item or call is repeated."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from siafu.store.sqlite import SqliteStore
from swarm import kill_child
from swarm.nest import brief, results

pytestmark = pytest.mark.kill
POINTS = ["after_append:3", "after_record:1", "before_commit:8", "after_commit:9", "after_open:4"]


class Model:
    """The endpoint: counts every question it gets, and kills the asking process at the one it is told to."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.calls: Counter[str] = Counter()
        self.unkept: set[str] = set()
        self.kill_at = 0
        self.killing: asyncio.subprocess.Process | None = None
        self.gone = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.unkept.clear()
        try:
            async with asyncio.TaskGroup() as group:
                while line := await reader.readline():
                    told = json.loads(line)
                    if "kept" in told:
                        self.unkept.discard(told["kept"])
                    else:
                        self.calls[told["asked"]] += 1
                        self.unkept.add(told["asked"])
                        group.create_task(self.answer(told["asked"], writer))
        except* ConnectionError:
            pass
        finally:
            writer.close()
            self.gone.set()

    async def answer(self, asked: str, writer: asyncio.StreamWriter) -> None:
        self.kill_at -= 1
        dies = self.kill_at == 0
        await asyncio.sleep(self.rng.uniform(0, 0.01))
        if dies:
            while self.killing is None:  # it may ask before its start is over for who started it
                await asyncio.sleep(0.001)
            self.killing.kill()
        writer.write(json.dumps({"asked": asked, "answer": f"<{asked}>"}).encode() + b"\n")


async def life(model: Model, journal: Path, mode: str, *, kill_at: int = 0, crash_at: str = "") -> int:
    """One life of the process; how many calls were in flight (asked and not yet kept) at its end."""
    server = await asyncio.start_server(model.serve, "127.0.0.1", 0)
    async with server:
        model.kill_at, model.killing = kill_at, None
        model.gone.clear()
        command = [str(Path(kill_child.__file__)), str(journal), str(server.sockets[0].getsockname()[1]), mode]
        environment = {**os.environ, "SIAFU_CRASH_AT": crash_at, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = await asyncio.create_subprocess_exec(sys.executable, *command, env=environment)
        model.killing = process
        try:
            async with asyncio.timeout(60):
                code = await process.wait()
                await model.gone.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert code == (-signal.SIGKILL if kill_at or crash_at else 0)
    return len(model.unkept)


async def finish(model: Model, journal: Path) -> None:
    """Let the last session end and compare what is kept with a run that nothing interrupted."""
    assert await life(model, journal, "keep") == 0
    store = SqliteStore(journal).run("killed")
    kept = await results(kill_child.work, kill_child.ITEMS, store=store, ordered=True, run="killed", on_change="keep")
    await store.aclose()
    assert all(r.restored for r in kept)
    server = await asyncio.start_server(Model(0).serve, "127.0.0.1", 0)
    async with server:
        clean = await kill_child.run(":memory:", server.sockets[0].getsockname()[1])
    assert [brief(r) for r in kept] == [brief(r) for r in sorted(clean, key=lambda r: r.index)]


@pytest.mark.timeout(180)
async def test_twenty_kills_cost_no_more_than_the_calls_in_flight(tmp_path: Path) -> None:
    model, journal, rng = Model(1), tmp_path / "한글 run.db", random.Random(1)
    in_flight = []
    for cycle in range(20):
        if cycle % 2:
            in_flight.append(await life(model, journal, "keep", crash_at=POINTS[cycle // 2 % len(POINTS)]))
        else:
            in_flight.append(await life(model, journal, "keep", kill_at=rng.randint(1, 12)))
    assert sum(n > 0 for n in in_flight) >= 15, "kills that hit nothing prove nothing"
    assert max(in_flight) <= 2 * kill_child.CONCURRENCY
    await finish(model, journal)
    assert kill_child.CALLS < model.calls.total() <= kill_child.CALLS + sum(in_flight)


@pytest.mark.timeout(60)
async def test_the_check_can_fail(tmp_path: Path) -> None:
    model, journal = Model(2), tmp_path / "run.db"
    in_flight = [await life(model, journal, "forget", kill_at=14) for _ in range(3)]
    await finish(model, journal)
    assert model.calls.total() > kill_child.CALLS + sum(in_flight)
