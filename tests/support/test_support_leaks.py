"""After a run nothing is left: no task, no open file or socket, no process."""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from pathlib import Path

import msgspec

from siafu.apps.support.requests import Answer
from siafu.config.assembly import Plan, opened
from siafu.config.sections import EndpointSettings
from siafu.config.servers import support_desk
from siafu.config.settings import Settings
from siafu.swarm.map import map_items
from siafu.swarm.options import MapOptions
from sim import running_sim
from support.commands import examples, processes, until
from support.desk import SUPPORT


async def run(folder: Path, url: str, name: str, *, leave_after: int | None = None) -> int:
    """Answer 20 requests with everything that is real; leave early after so many answers."""
    settings = Settings(endpoint=EndpointSettings(base_url=url), home=folder)
    answered = 0
    async with support_desk(settings, database=folder / "shop.db") as desk:
        support = msgspec.structs.replace(SUPPORT, identity_key=desk.identity_key)
        plan = Plan(run=name, journal=folder / "run.db", tools=desk.tools)
        async with opened(settings, plan) as house:
            options = MapOptions(run=name, key=lambda item: item.id, concurrency=10, value_type=Answer)
            items = examples(20)
            async with map_items(support, items, around=house.around, store=house.store, options=options) as results:
                async for result in results:
                    assert result.status != "error"
                    answered += 1
                    if answered == leave_after:
                        break
    return answered


def open_files() -> list[str]:
    """What this process has open, without the numbers."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(path.readlink()).split(":[")[0])
        except OSError:  # the listing's own
            continue
    return sorted(found)


async def test_a_run_leaves_nothing_behind(tmp_path: Path) -> None:
    with running_sim(seed=2, latency="fixed:5ms") as sim:
        assert await run(tmp_path, sim.url, "first") == 20  # also fills pools that live as long as the process
        gc.collect()
        before = Counter(open_files())
        assert await run(tmp_path, sim.url, "second") == 20
        assert await run(tmp_path, sim.url, "left early", leave_after=3) == 3
        assert asyncio.all_tasks() == {asyncio.current_task()}
        gc.collect()  # what was not closed warns now, and warnings are errors
        until(lambda: not Counter(open_files()) - before, "files are left open", 60)  # but for what is read just now
        until(lambda: not processes(str(tmp_path / "shop.db")), "a shop lives on")
        assert sim.stats()["in_flight"] == 0


async def test_the_check_can_fail(tmp_path: Path) -> None:
    before = open_files()
    kept = asyncio.create_task(asyncio.sleep(60))
    file = os.open(tmp_path, os.O_RDONLY)
    assert open_files() != before
    assert asyncio.all_tasks() != {asyncio.current_task()}
    os.close(file)
    kept.cancel()
    await asyncio.wait({kept})
    assert open_files() == before
