"""A run over a file: what is left of the input goes through `map`, and each result becomes one line.

What the journal knows and the files lack (a process was killed between the two) comes back from `map` as a restored
result and is written then. So in the end each id has exactly one record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec

from siafu.agents.task import TaskContext
from siafu.apps.filerun.check import tasks
from siafu.apps.filerun.job import Setup, Task, Watcher
from siafu.apps.filerun.prepare import Ready
from siafu.border.jsonl import JsonlSink
from siafu.swarm.map import MapOptions, MapResult, map_items

SYNC_SECONDS = 1.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run over a file ended. total: lines of the input. finished, failed: those with a record now; lines that
    cannot be used count as failed. restored: records of this session that came from the journal. seconds: of this
    session.
    """

    total: int
    finished: int
    failed: int
    restored: int
    seconds: float

    @property
    def left(self) -> int:
        """Lines without a record."""
        return self.total - self.finished - self.failed


async def run(ready: Ready, setup: Setup, options: MapOptions, watch: Watcher) -> Outcome:
    """Do what is left and write its records.

    Cancelling stops taking lines, awaits what was in flight, and keeps everything; run again, it goes on from there.

    Raises: BudgetReached, StoreError.
    """
    clock, job = setup.around.clock, ready.job
    began = synced = clock.now()
    with ExitStack() as stack:
        lines = _Lines(ready, stack)
        watch.begin(ready.plan)

        async def work(task: Task, ctx: TaskContext) -> Any:
            return await job.work(task.item, ctx)

        async for result in map_items(work, lines.todo(), around=setup.around, store=setup.store, options=options):
            lines.write(result)
            watch.ended(result)
            if clock.now() - synced >= SYNC_SECONDS:
                await asyncio.to_thread(lines.sync)
                synced = clock.now()
    return lines.outcome(clock.now() - began)


class _Lines:
    """The input's tasks on their way to `map`, and the results on theirs to the files."""

    def __init__(self, ready: Ready, stack: ExitStack) -> None:
        self._ready = ready
        self._taken: dict[str, Task] = {}  # given to map, result not yet here: as many as map holds at once
        self._out = self._errors = JsonlSink(ready.where.out)
        stack.callback(self._out.close)
        if ready.where.errors is not None:
            self._errors = JsonlSink(ready.where.errors)
            stack.callback(self._errors.close)
        self._finished, self._failed, self._restored = ready.plan.finished, ready.plan.failed + ready.plan.bad, 0

    def todo(self) -> Iterator[Task]:
        """Tasks without a record, in the file's order. Lines that cannot be used get theirs on the way."""
        ready = self._ready
        for found in tasks(ready.job, ready.file, lines=ready.lines, skip=ready.skip):
            if isinstance(found, Task):
                self._taken[found.key] = found
                yield found
            else:
                self._errors.append(ready.job.refusal(found))

    def write(self, result: MapResult) -> None:
        good = result.status == "ok"
        record = self._ready.job.record(self._taken.pop(result.key), result)
        (self._out if good else self._errors).append(record)
        self._finished += good
        self._failed += not good
        self._restored += result.restored

    def sync(self) -> None:
        self._out.sync()
        self._errors.sync()

    def outcome(self, seconds: float) -> Outcome:
        return Outcome(
            total=self._ready.plan.total,
            finished=self._finished,
            failed=self._failed,
            restored=self._restored,
            seconds=seconds,
        )
