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

from siafu.agents.faults import PAUSING
from siafu.agents.task import Surroundings, TaskContext
from siafu.apps.filerun.check import CHANGED, tasks
from siafu.apps.filerun.job import Task, Watcher
from siafu.apps.filerun.prepare import Ready
from siafu.border.jsonl import JsonlSink
from siafu.errors import InputError
from siafu.store.records import RunStore
from siafu.swarm.map import map_items
from siafu.swarm.options import MapOptions
from siafu.swarm.results import MapResult, MapSummary

SYNC_SECONDS = 1.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run over a file ended. total: lines of the input. finished, failed: those with a record now; lines that
    cannot be used count as failed. session: the sums of what `map` did in this session.
    """

    total: int
    finished: int
    failed: int
    session: MapSummary

    @property
    def left(self) -> int:
        """Lines without a record."""
        return self.total - self.finished - self.failed

    @property
    def exit_code(self) -> int:
        """0 all succeeded; what ended it early (3 no money, 2 no access or no price); 1 otherwise."""
        if self.session.stopped:
            return stop_code(self.session.stopped)
        return int(self.finished < self.total)


def stop_code(code: str) -> int:
    """The exit code of a command that an error with this `code` has ended: 3 no money, 2 no access, 1 otherwise."""
    return next((kind.exit_code for kind in PAUSING if kind.code == code), 1)


async def run(ready: Ready, around: Surroundings, store: RunStore, options: MapOptions, watch: Watcher) -> Outcome:
    """Do what is left and write its records. Of `options` its name, key, version, retry and change rule are ours.

    Cancelling stops taking lines, awaits what was in flight, and keeps everything; run again, it goes on from there.

    Raises: StoreError, InputError.
    """
    clock, job = around.clock, ready.job
    synced = clock.now()

    async def work(task: Task, ctx: TaskContext) -> Any:
        return await job.work(task.item, ctx)

    options = msgspec.structs.replace(
        options,
        run=ready.where.run,
        key=lambda task: task.key,
        version=job.fingerprint(),
        retry_failed=ready.retry_failed,
        on_change="keep",
    )
    with ExitStack() as stack:
        lines = _Lines(ready, stack)
        watch.begin(ready.plan)
        async with map_items(work, lines.todo(), around=around, store=store, options=options) as results:
            async for result in results:
                lines.write(result)
                watch.ended(result)
                if clock.now() - synced >= SYNC_SECONDS:
                    await asyncio.to_thread(lines.sync)
                    synced = clock.now()
        return lines.outcome(results.summary)


def nothing_left(ready: Ready, watch: Watcher) -> Outcome:
    """The outcome when `ready.plan.todo` is 0: no endpoint, key or journal is needed to say so.

    Raises: StoreError, InputError.
    """
    with ExitStack() as stack:
        lines = _Lines(ready, stack)
        watch.begin(ready.plan)
        for _ in lines.todo():
            raise InputError(CHANGED)
        return lines.outcome(MapSummary())


class _Lines:
    """The input's tasks on their way to `map`, and the results on theirs to the files."""

    def __init__(self, ready: Ready, stack: ExitStack) -> None:
        self._ready = ready
        self._out = self._errors = JsonlSink(ready.where.out)
        stack.callback(self._out.close)
        if ready.where.errors is not None:
            self._errors = JsonlSink(ready.where.errors)
            stack.callback(self._errors.close)
        self._finished = ready.plan.finished
        self._failed = ready.plan.failed + ready.plan.bad

    def todo(self) -> Iterator[Task]:
        """Tasks without a record, in the file's order. Lines that cannot be used get theirs on the way."""
        ready = self._ready
        for found in tasks(ready.job, ready.file, lines=ready.lines, skip=ready.skip, index=ready.index):
            if isinstance(found, Task):
                yield found
            else:
                self._errors.append(ready.job.refusal(found))

    def write(self, result: MapResult) -> None:
        (self._out if result.ok else self._errors).append(self._ready.job.record(result))
        self._finished += result.ok
        self._failed += not result.ok

    def sync(self) -> None:
        self._out.sync()
        self._errors.sync()

    def outcome(self, session: MapSummary) -> Outcome:
        return Outcome(total=self._ready.plan.total, finished=self._finished, failed=self._failed, session=session)
