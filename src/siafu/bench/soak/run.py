"""Submits tasks at a steady rate and does them, in a process of its own; prints a line of JSON at every look.

    python -m siafu.bench.soak.run '{"seconds":3600,"every":10,"rate":20,"keep":60,"url":"...","database":"...",...}'

The whole of siafu: durable tasks, each one model call with limits, ledger and journal; what has ended is removed after
`keep` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from siafu.bench.gateway.drive import raise_file_limit
from siafu.bench.tasks import one_call, task_store
from siafu.border.stopping import Stops
from siafu.config.assembly import Plan, opened
from siafu.config.collector import relieve_collector
from siafu.config.settings import Settings
from siafu.pace.clock import SystemClock
from siafu.queue.doorbell import ringing
from siafu.queue.worker import Worker, WorkerOptions
from siafu.store.database import Database
from siafu.store.task_desk import TaskDesk, Which
from siafu.store.task_records import NewTask
from siafu.store.tasks import TaskStore

RUN = "soak"
SLOTS = 50
STEP = 0.1  # seconds between two submissions of what is due
_TABLES = ("task", "task_journal", "task_turn", "task_need")


async def run(seconds: float, every: float, rate: float, keep: float, url: str, database: str, folder: str) -> None:
    settings = Settings.model_validate(
        {"endpoint": {"base_url": url, "api_key": "sk-bench"}, "limits": {"concurrency": SLOTS}}
    )
    ledger = Path(folder) / "ledger.db"
    async with (
        opened(settings, Plan(run=RUN, journal=ledger)) as house,
        task_store(database) as (opened_database, store, bell),
        ringing(bell, opened_database),
        contextlib.AsyncExitStack() as stack,
    ):
        if house.store is None:
            raise TypeError("a soak needs a ledger")
        await house.store.begin(RUN)
        stops, options = Stops(asyncio.Event(), asyncio.Event()), WorkerOptions(slots=SLOTS, poll=0.5)
        handlers = {RUN: one_call(house.around, RUN, lambda _: None)}
        worker = Worker(f"soak:{os.getpid()}", store, handlers, bell, SystemClock(), options)
        running = asyncio.create_task(worker.run(stops))
        desk = TaskDesk(opened_database)
        purging = asyncio.create_task(_purge(desk, keep))
        stack.callback(purging.cancel)
        submitted = _Submitted()
        began = time.perf_counter()
        submitting = asyncio.create_task(_submit(store, rate, seconds, submitted))
        looks = 0
        while (left := began + seconds - time.perf_counter()) > 0:
            await asyncio.sleep(min(left, max(0.0, began + looks * every - time.perf_counter())))
            looks += 1
            rows = await asyncio.to_thread(_rows, opened_database)
            _say(
                at=time.perf_counter() - began, submitted=submitted.number, left=dict(worker.tally.left), rows=rows,
                file_mb=_size(database), ledger_mb=_size(str(ledger)),
            )  # fmt: skip
        await submitting
        stops.asked.set()
        await running
        states = await desk.counts(Which(run=RUN))
        _say(ended=True, submitted=submitted.number, left=dict(worker.tally.left), states=states)
        await desk.purge(Which(run=RUN), 0.0)


class _Submitted:
    number = 0


async def _submit(store: TaskStore, rate: float, seconds: float, submitted: _Submitted) -> None:
    """As many as are due, each time; what is late is made up for."""
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        due = int(passed * rate) - submitted.number
        if due > 0:
            await store.accept([NewTask(kind=RUN, run=RUN, payload="null") for _ in range(due)])
            submitted.number += due
        await asyncio.sleep(STEP)


async def _purge(desk: TaskDesk, keep: float) -> None:
    while True:
        await asyncio.sleep(max(1.0, keep / 10))
        await desk.purge(Which(run=RUN), keep)


def _rows(database: Database) -> dict[str, int]:
    """Rows of each table."""
    counts = ", ".join(f"(SELECT COUNT(*) FROM {table}) AS {table}" for table in _TABLES)  # noqa: S608 - our own names
    return dict(database.transact(lambda tx: tx.rows(f"SELECT {counts}"))[0])


def _size(database: str) -> float | None:
    """MB of a SQLite file, with what is not written into it yet; None for another database."""
    path = database.removeprefix("sqlite:///")
    if "://" in path:
        return None
    files = (Path(path), Path(path + "-wal"))
    return sum(each.stat().st_size for each in files if each.exists()) / 2**20


def _say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    raise_file_limit()
    relieve_collector()
    asyncio.run(run(**json.loads(sys.argv[1])))
