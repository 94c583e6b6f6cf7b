"""siafu's own: accepted and ended in SQL, after an fsync each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from siafu.bench.tasks import task_bell, task_store
from siafu.border.stopping import Stops
from siafu.config.collector import relieve_collector
from siafu.pace.clock import SystemClock
from siafu.queue.doorbell import Doorbell, ringing
from siafu.queue.worker import Outcome, Worker, WorkerOptions
from siafu.store.task_desk import TaskDesk, Which
from siafu.store.task_journal import TaskJournal
from siafu.store.task_records import Accepted, Lease, NewTask, Succeeded
from siafu.store.tasks import TaskStore

LOOK = 0.002  # seconds between two looks at how many ends are recorded
Submit = Callable[[int], Awaitable[None]]


@contextlib.asynccontextmanager
async def submitting(order: dict[str, Any]) -> AsyncIterator[Submit]:
    """Tasks of a run of its own, which are removed afterwards."""
    async with (
        task_bell(order["redis"], order["run"], None) as bell,
        task_store(order["database"], bell) as (database, store, _),
    ):
        try:
            yield _submit(store, order["run"])
        finally:
            await store.aclose()
            await TaskDesk(database).purge(Which(run=order["run"]), 0)


def worker(order: dict[str, Any], count: Any) -> None:
    relieve_collector()
    asyncio.run(_work(order, count))


@contextlib.asynccontextmanager
async def together(order: dict[str, Any], count: Any) -> AsyncIterator[Submit]:
    async with task_store(order["database"]) as (_, store, bell), _working(order, count, store, bell):
        yield _submit(store, order["run"])


async def _work(order: dict[str, Any], count: Any) -> None:
    async with (
        task_bell(order["redis"], order["run"], "bench") as bell,
        task_store(order["database"], bell) as (database, store, _),
        contextlib.nullcontext() if order["redis"] else ringing(bell, database),
        _working(order, count, store, bell),
    ):
        await asyncio.get_running_loop().create_future()  # until it is ended from outside


def _submit(store: TaskStore, run: str) -> Submit:
    async def submit(number: int) -> None:
        (found,) = await store.accept([NewTask(kind=run, run=run, payload=str(number), once=f"{run}/{number}")])
        if not isinstance(found, Accepted):
            raise TypeError(f"task {number} was not accepted: {found}")

    return submit


@contextlib.asynccontextmanager
async def _working(order: dict[str, Any], count: Any, store: TaskStore, bell: Doorbell) -> AsyncIterator[None]:
    async def handle(lease: Lease, journal: TaskJournal) -> Outcome:
        with count.task(int(lease.payload)):
            if order["ms"]:
                await asyncio.sleep(order["ms"] / 1000)
        return Succeeded(lease.payload)

    options = WorkerOptions(slots=order["slots"], poll=0.5)
    one = Worker("bench", store, {order["run"]: handle}, bell, SystemClock(), options)

    async def watch() -> None:
        told = 0
        while True:
            await asyncio.sleep(LOOK)
            ended = one.tally.left["succeeded"]
            if ended > told:
                count.recorded(ended - told)
                told = ended

    stops = Stops(asyncio.Event(), asyncio.Event())
    running, watching = asyncio.create_task(one.run(stops)), asyncio.create_task(watch())
    try:
        yield
    finally:
        stops.asked.set()
        await running
        watching.cancel()
