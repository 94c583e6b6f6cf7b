"""What a process does that is going to be killed or stopped: a worker whose tasks ask a model, pay, and ask again.

A payment is a file named after its key, so the bank honours keys. Every call of the model is a line in `asked`. The
payload `poison` ends the process. With the wish `forgetful` the journal is not shared, with `patient` leases are long,
with `redis://...` the bell is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from siafu.agents.task import Surroundings, TaskContext
from siafu.border.secrets import Secret
from siafu.border.stopping import Stops
from siafu.errors import StoreError
from siafu.gateway.chat import ChatRequest
from siafu.gateway.meter import MemoryLedger
from siafu.gateway.scripted import Scripted
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock
from siafu.queue.doorbell import Doorbell
from siafu.queue.redis_bell import RedisBell
from siafu.queue.worker import Outcome, Worker, WorkerOptions
from siafu.store.database import Database
from siafu.store.effect_schema import MIGRATIONS as EFFECTS
from siafu.store.effects import EffectStore
from siafu.store.records import JournalEntry
from siafu.store.task_journal import TaskJournal, TaskRun
from siafu.store.task_records import Lease, Succeeded
from siafu.store.task_schema import MIGRATIONS
from siafu.store.tasks import TaskStore
from siafu.swarm.map import map_items
from siafu.swarm.options import MapOptions
from siafu.tools.effect_rules import EffectRule
from siafu.tools.effects import Effects
from siafu.tools.toolset import Tool, ToolResult

LEASE, SLOTS, KIND, PLACE = 1.0, 3, "pay", "storm"
ASKED = 2  # calls of the model that a task makes
log = logging.getLogger("siafu")


def run(database: str, folder: str, name: str, *wishes: str) -> None:
    logging.disable()
    asyncio.run(work(database, Path(folder), name, set(wishes)))


class Bank:
    """Pays once for each key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def list(self) -> Sequence[Tool]:
        return TOOLS

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        note(self._folder / "calls", context.task)
        key = hashlib.sha256(context.effect_key.encode()).hexdigest()[:16]
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._folder / "paid" / f"{context.task}-{key}", os.O_CREAT | os.O_EXCL))
        await asyncio.sleep(0.02)
        return ToolResult(text="paid")


TOOLS = (Tool(name="pay"),)


def note(file: Path, line: str) -> None:
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, line.encode() + b"\n")
    os.close(handle)


class Forgetful(TaskJournal):
    async def entries(self, task: str) -> list[JournalEntry]:
        return []


async def opened(url: str, schema: str, migrations: Any) -> Database:
    while True:
        with contextlib.suppress(StoreError):  # a stopped sibling may hold SQLite's lock
            return Database(url, migrations, what="the test's database", schema=schema)


@contextlib.asynccontextmanager
async def a_bell(name: str, wishes: set[str]) -> AsyncIterator[Doorbell]:
    redis = next((wish for wish in wishes if wish.startswith("redis:")), None)
    if redis is None:
        yield Doorbell()
        return
    bell = RedisBell(Secret(redis), PLACE, reader=name, clock=SystemClock(), rng=Random(), notice=log.warning)
    async with bell.open():
        yield bell


async def work(url: str, folder: Path, name: str, wishes: set[str]) -> None:
    async with a_bell(name, wishes) as bell:
        await work_for(bell, url, folder, name, wishes)


async def work_for(bell: Doorbell, url: str, folder: Path, name: str, wishes: set[str]) -> None:
    store = TaskStore(await opened(url, "tasks", MIGRATIONS), rung=bell.ring)
    effects = EffectStore(await opened(url, "effects", EFFECTS))
    rule = EffectRule(key="step", honours_key=True, lease_seconds=LEASE)
    tools = Effects(Bank(folder), {"pay": rule}, effects, clock=SystemClock(), owner=name)

    async def asked(request: ChatRequest, context: CallContext) -> str:
        note(folder / "asked", context.task)
        await asyncio.sleep(0.02)
        return f"{len(request.messages)} 네"

    around = Surroundings(endpoint=Scripted(asked), clock=SystemClock(), tools=tools, defaults={"model": "m"})

    async def pay(item: Any, ctx: TaskContext) -> str:
        if item == "poison":
            os.kill(os.getpid(), signal.SIGKILL)
        said = (await ctx.model("how much?")).text
        paid = (await ctx.tool("pay", {"amount": 700})).text
        return (await ctx.model(f"{said} {paid}")).text

    async def handle(lease: Lease, journal: TaskJournal) -> Outcome:
        if "forgetful" in wishes:
            journal = Forgetful(store, lease)
        options = MapOptions(run="pay", concurrency=1, key=lambda _: lease.id, retry_failed=True)
        kept = TaskRun(lease, journal, MemoryLedger())
        async with map_items(pay, [json.loads(lease.payload)], around=around, store=kept, options=options) as results:
            async for result in results:
                if result.exception is not None:
                    raise result.exception
                return Succeeded(json.dumps(result.value))
        raise AssertionError(results.summary.stop_message)

    lease = LEASE if "patient" not in wishes else 20 * LEASE
    poll = 0.5 if isinstance(bell, RedisBell) else 0.05
    options = WorkerOptions(slots=SLOTS, lease=lease, poll=poll, until_empty="until_empty" in wishes)
    worker = Worker(name, store, {KIND: handle}, bell, SystemClock(), options)
    await worker.run(Stops(asyncio.Event(), asyncio.Event()))
