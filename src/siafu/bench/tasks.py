"""Durable tasks for benches: a store with a bell, and the handler of tasks that are one model call each."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random
from typing import Any

from siafu.agents.replay import Replay
from siafu.agents.task import Surroundings, TaskContext
from siafu.bench.gateway.drive import BODY
from siafu.border.secrets import Secret
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock
from siafu.queue.doorbell import Doorbell
from siafu.queue.redis_bell import RedisBell
from siafu.queue.worker import Handler, Outcome
from siafu.store.database import Database
from siafu.store.task_journal import TaskJournal
from siafu.store.task_records import Lease, Succeeded
from siafu.store.task_schema import MIGRATIONS
from siafu.store.tasks import TaskStore

Opened = tuple[Database, TaskStore, Doorbell]
log = logging.getLogger("siafu")


@contextlib.asynccontextmanager
async def task_store(place: str | Path, bell: Doorbell | None = None) -> AsyncIterator[Opened]:
    """The tasks in a database while the block runs. bell: rung by the store; None = one within this process."""
    database = Database(place, MIGRATIONS, what="the bench's tasks", schema="tasks")
    bell = Doorbell() if bell is None else bell
    store = TaskStore(database, rung=bell.ring)
    try:
        yield database, store, bell
    finally:
        await store.aclose()
        await database.aclose()


@contextlib.asynccontextmanager
async def task_bell(redis: str | None, place: str, reader: str | None) -> AsyncIterator[Doorbell]:
    """A bell through a Redis, if there is one, else within this process. place, reader: as `RedisBell` has them."""
    if redis is None:
        yield Doorbell()
        return
    clock = SystemClock()
    bell = RedisBell(Secret(redis), place, reader=reader, clock=clock, rng=Random(), notice=log.warning)
    async with bell.open():
        yield bell


def one_call(around: Surroundings, run: str, took: Callable[[float], None]) -> Handler:
    """A handler of tasks that are one model call each, journaled with the task. took: told its seconds."""
    options: Any = {name: value for name, value in BODY.items() if name != "messages"}
    prompt: Any = BODY["messages"]

    async def handle(lease: Lease, journal: TaskJournal) -> Outcome:
        began = time.perf_counter()
        ctx = TaskContext(around, CallContext(run=run, task=lease.id), Replay(lease.id, journal, ()))
        await ctx.model(prompt, **options)
        took(time.perf_counter() - began)
        return Succeeded("null")

    return handle
