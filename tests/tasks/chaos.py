"""The long storm over tasks: make chaos-tasks CYCLES=1000

Workers are killed with SIGKILL while they hold tasks, at least CYCLES times in all, and stopped for longer than their
leases, at least STOPS times, in rounds that take turns between SQLite, PostgreSQL, and PostgreSQL with a Redis that is
killed, wiped, full, slow and more (`redis_faults`); each with a new database. After each round: every accepted task has
ended once, every effect happened once (`storm.violations`). Exits with 1 at the first round that shows a violation; its
folder is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from services import Postgres, running_postgres

from .redis_faults import a_town
from .storm import STREAM, Storm, violations

A_ROUND, ROUND_SECONDS = 40, 1800.0  # kills
PLACES = ("sqlite", "postgresql", "postgresql and redis")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--stops", type=int, default=10)
    options = parser.parse_args(arguments)
    sums, number = Counter[str](), 0
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(running_postgres())
        while sums["kills"] < options.cycles or sums["stops"] < options.stops:
            left = options.cycles - sums["kills"]
            rounds = max(1, -(-left // A_ROUND))
            stops = -(-max(0, options.stops - sums["stops"]) // rounds)
            number += 1
            if wrong := _round(number, max(1, min(left, A_ROUND)), stops, postgres, sums):
                say(f"VIOLATION: {wrong}")
                return 1
    return 0


def _round(number: int, kills: int, stops: int, postgres: Postgres, sums: Counter[str]) -> list[str]:
    folder, began = Path(tempfile.mkdtemp(prefix="siafu-chaos-")), time.monotonic()
    url = f"sqlite:///{folder / 'tasks.db'}"
    if (place := PLACES[(number - 1) % len(PLACES)]) != "sqlite":
        name = f"chaos{uuid.uuid4().hex}"
        with postgres.connect() as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        url = postgres.url(name)
    storm, found = asyncio.run(_raged(folder, url, kills, stops, redis="redis" in place))
    wrong = violations(storm, found)
    states = Counter(task.state for task in found["tasks"])
    sums.update(kills=storm.kills, stops=storm.stops, tasks=len(found["tasks"]), paid=found["paid"].total())
    sums.update(fenced=sum(task.fenced for task in found["tasks"]), redis_faults=storm.faults.total())
    say(
        f"round {number} ({place}, {time.monotonic() - began:.0f} s): {storm.kills} kills, {storm.stops} stops, "
        f"{dict(states)}; in all {dict(sums)}"
    )
    if wrong:
        say(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return wrong


async def _raged(folder: Path, url: str, kills: int, stops: int, *, redis: bool) -> tuple[Storm, dict[str, Any]]:
    async with a_town(STREAM) if redis else contextlib.nullcontext() as town:
        storm = Storm(folder, url, seed=time.time_ns(), redis=town)
        return storm, await storm.run(kills, stops, ROUND_SECONDS)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
