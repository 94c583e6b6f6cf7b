"""Submits tasks at a steady rate and does them, in a process of its own; prints a line of JSON at every look.

    python -m siafu.bench.soak.run ORDER_FILE

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
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from siafu.bench.gateway.drive import raise_file_limit
from siafu.bench.tasks import one_call, task_bell, task_store
from siafu.border.secrets import Secret
from siafu.border.stopping import Stops
from siafu.config.assembly import Plan, opened
from siafu.config.collector import relieve_collector
from siafu.config.settings import Settings
from siafu.pace.clock import SystemClock
from siafu.queue.doorbell import ringing
from siafu.queue.worker import Worker, WorkerOptions
from siafu.store.database import Database, Transaction
from siafu.store.redis import RedisDoor
from siafu.store.task_desk import TaskDesk, Which
from siafu.store.task_records import NewTask
from siafu.store.tasks import TaskStore

RUN = "soak"
SLOTS = 50
STEP = 0.1  # seconds between two submissions of what is due
LAST = 120.0  # seconds for the last tasks to end
LEDGER = "ledger.db"
_TABLES = ("task", "task_journal", "task_turn", "task_need")


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """seconds: how long; every: between two looks. rate: tasks a second. keep: seconds until what has ended is removed.
    url: of the endpoint. database, redis: addresses; None = no Redis. folder: for the ledger.
    """

    seconds: float
    every: float
    rate: float
    keep: float
    url: str
    database: str
    redis: str | None
    folder: str


async def run(order: Order) -> None:
    settings = Settings.model_validate(
        {"endpoint": {"base_url": order.url, "api_key": "sk-bench"}, "limits": {"concurrency": SLOTS}}
    )
    name = f"{RUN}-{os.getpid()}"
    async with (
        opened(settings, Plan(run=RUN, journal=Path(order.folder) / LEDGER)) as house,
        task_bell(order.redis, name, name) as bell,
        task_store(order.database, bell) as (database, store, _),
        contextlib.nullcontext() if order.redis else ringing(bell, database),
        contextlib.AsyncExitStack() as stack,
    ):
        if house.store is None:
            raise TypeError("a soak needs a ledger")
        await house.store.begin(RUN)
        stops, options = Stops(asyncio.Event(), asyncio.Event()), WorkerOptions(slots=SLOTS, poll=0.5)
        handlers = {RUN: one_call(house.around, RUN, lambda _: None)}
        worker = Worker(name, store, handlers, bell, SystemClock(), options)
        running = asyncio.create_task(worker.run(stops))
        desk = TaskDesk(database)
        stack.callback(asyncio.create_task(_purge(desk, order.keep)).cancel)
        stream = None if order.redis is None else _Stream(order.redis, name)
        submitted = await _load(order, store, lambda number: _look(order, database, worker, stream, number))
        ends = time.perf_counter() + LAST  # what has not ended then is told
        while await desk.moving(Which(run=RUN)) and time.perf_counter() < ends:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(STEP)
        stops.asked.set()
        await running
        states = await desk.counts(Which(run=RUN))
        _say(ended=True, submitted=submitted, left=dict(worker.tally.left), states=states)
        await desk.purge(Which(run=RUN), 0.0)
        if stream is not None:
            await stream.aclose()


async def _load(order: Order, store: TaskStore, look: Callable[[int], Awaitable[dict[str, Any]]]) -> int:
    """Submit what is due, and look when it is time; what is late is made up for. Returns how many were submitted."""
    began, number, looks = time.perf_counter(), 0, 0
    while (passed := time.perf_counter() - began) < order.seconds:
        due = int(passed * order.rate) - number
        if due > 0:
            await store.accept([NewTask(kind=RUN, run=RUN, payload="null") for _ in range(due)])
            number += due
        if passed >= looks * order.every:
            looks += 1
            _say(at=passed, **await look(number))
        await asyncio.sleep(STEP)
    return number


async def _look(
    order: Order, database: Database, worker: Worker, stream: _Stream | None, submitted: int
) -> dict[str, Any]:
    rows = await database.run(_rows)
    if stream is not None:
        rows["stream"] = await stream.length()
    ledger = str(Path(order.folder) / LEDGER)
    return {
        "submitted": submitted, "left": dict(worker.tally.left), "rows": rows, "file_mb": _size(order.database),
        "ledger_mb": _size(ledger),
    }  # fmt: skip


class _Stream:
    """The bell's stream in a Redis, looked at from outside."""

    def __init__(self, redis: str, place: str) -> None:
        self._door = RedisDoor(Secret(redis), timeout=5.0)
        self._name = f"siafu:tasks:{place}"

    async def length(self) -> int:
        """How many notes it holds. Raises: StoreError, also when there is no such stream."""
        found: dict[str, int] = await self._door.ask(lambda client: client.xinfo_stream(self._name))
        return found["length"]

    async def aclose(self) -> None:
        """Remove it."""
        await self._door.ask(lambda client: client.delete(self._name))
        await self._door.aclose()


async def _purge(desk: TaskDesk, keep: float) -> None:
    while True:
        await asyncio.sleep(max(1.0, keep / 10))
        await desk.purge(Which(run=RUN), keep)


def _rows(tx: Transaction) -> dict[str, int]:
    """Rows of each table."""
    counts = ", ".join(f"(SELECT COUNT(*) FROM {table}) AS {table}" for table in _TABLES)  # noqa: S608 - our own names
    return dict(tx.rows(f"SELECT {counts}")[0])


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
    asyncio.run(run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Order)))
