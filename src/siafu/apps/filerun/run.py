"""A run over a file: what is left of the input goes through `map`, and each result becomes one line.

What the journal knows and the files lack (a process was killed between the two) comes back from `map` as a restored
result and is written then. So in the end each id has exactly one record.

An item that waits has a record that says so. When it goes on, or waits for something else, its next record takes the
place of that one in a rename, so at every moment a reader sees one record of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import msgspec

from siafu.agents.faults import PAUSING
from siafu.agents.task import Surroundings, TaskContext
from siafu.apps.filerun.check import CHANGED, tasks
from siafu.apps.filerun.index import digest, opened_index
from siafu.apps.filerun.job import FileJob, Task, Watcher
from siafu.apps.filerun.prepare import Ready
from siafu.border.canonical import dumps
from siafu.border.jsonl import JsonlSink, LineError
from siafu.errors import InputError, Interrupted
from siafu.pace.clock import Clock
from siafu.store.records import RunStore
from siafu.swarm.ending import root_cause
from siafu.swarm.map import MapRun, map_items
from siafu.swarm.options import MapOptions
from siafu.swarm.results import MapResult, MapSummary
from siafu.swarm.work import WorkFunction, as_job

SYNC_SECONDS = 1.0
REST = 10  # times as long as a sync took, until the next: making a large file anew leaves time for the work


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run over a file ended. total: lines of the input. finished, failed: those with a record now; lines that
    cannot be used count as failed. waits: how many wait, by the code of what for. session: the sums of what `map` did
    in this session.
    """

    total: int
    finished: int
    failed: int
    waits: Mapping[str, int]
    session: MapSummary

    @property
    def waiting(self) -> int:
        """Lines that wait."""
        return sum(self.waits.values())

    @property
    def left(self) -> int:
        """Lines without a record."""
        return self.total - self.finished - self.failed - self.waiting

    @property
    def exit_code(self) -> int:
        """0 all succeeded, or wait with what can be told; what ended it early (3 no money or no answers, 2 no access or
        no price); 1 otherwise.
        """
        if self.session.stopped:
            return stop_code(self.session.stopped)
        return int(self.failed > 0 or self.left > 0)


def stop_code(code: str) -> int:
    """The exit code of a command that an error with this `code` has ended, as in `Outcome.exit_code`."""
    return next((kind.exit_code for kind in PAUSING if kind.code == code), 1)


async def run(
    ready: Ready,
    around: Surroundings,
    store: RunStore,
    options: MapOptions,
    watch: Watcher,
    stop: asyncio.Event | None = None,
) -> Outcome:
    """Do what is left and write its records. Of `options` its name, key, version, retry and change rule are ours.

    When `stop` is set no more lines are begun, and those in flight go on to their end. If nothing is left then, the run
    has ended as any other. Cancelling stops taking lines, awaits what was in flight, and keeps everything; run again,
    it goes on from there.

    Raises: StoreError, InputError.
    """
    job = ready.job
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
        todo = lines.todo()
        results = map_items(_work(job), todo, around=around, store=store, options=options)
        try:
            async with results, asyncio.TaskGroup() as group:
                beside = [group.create_task(lines.keep_synced(around.clock))]
                if stop is not None:
                    beside.append(group.create_task(_wind_up(results, stop)))
                async for result in results:
                    await lines.write(result)
                    watch.ended(result)
                for task in beside:
                    task.cancel()
        except BaseExceptionGroup as errors:
            raise root_cause(errors) from None
        session = results.summary
        undone = session.left or (session.waiting and options.wait is not None)
        if session.stopped == Interrupted.code and not undone and next(todo, None) is None:
            session = msgspec.structs.replace(session, stopped="", stop_message="")
        return lines.outcome(session)


async def _wind_up(results: MapRun, stop: asyncio.Event) -> None:
    await stop.wait()
    results.wind_up(Interrupted("stopped from outside"))


def work_print(job: FileJob) -> str:
    """What journals know the work of `job` by; the same for every run of it."""
    return as_job(_work(job), defaults={}, version=job.fingerprint()).work_print


def _work(job: FileJob) -> WorkFunction:
    async def work(task: Task, ctx: TaskContext) -> Any:
        return await job.work(task.item, ctx)

    return work


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
        stack.callback(self._replace)
        self._taken = stack.enter_context(opened_index(ready.where.index))  # ids that have records, or may have
        self._claimed: set[bytes] = set()  # ids by bad lines
        self._finished = ready.plan.finished
        self._failed = ready.plan.failed + ready.plan.bad
        self._waiting = dict(ready.waiting)
        self._news: dict[str, bytes | None] = {}  # records for the places where waiting ones stand
        self._turn = asyncio.Lock()

    def todo(self) -> Iterator[Task]:
        """Tasks without a record, in the file's order. Lines that cannot be used get theirs on the way, with the id
        that they claim unless that is another line's, or was.
        """
        ready = self._ready
        for found in tasks(ready.job, ready.file, lines=ready.lines, skip=ready.skip, index=ready.index):
            if isinstance(found, Task):
                yield found
            else:
                self._errors.append(ready.job.refusal(self._told(found)))

    def _told(self, bad: LineError) -> LineError:
        id = self._ready.job.claims(bad.value)
        if id is None:
            return bad
        mark = digest(id.encode())
        if mark in self._claimed or self._taken.line(id) is not None:
            return msgspec.structs.replace(bad, value=None)
        self._claimed.add(mark)
        return bad

    async def write(self, result: MapResult) -> None:
        async with self._turn:
            self._write(result)

    def _write(self, result: MapResult) -> None:
        record = self._ready.job.record(result)
        waits = result.status == "waiting"
        if waits and record is None:
            return
        if result.key in self._waiting:
            self._news[result.key] = dumps(record)
        else:
            (self._out if waits or result.ok else self._errors).append(record)
        self._waiting.pop(result.key, None)
        if waits:
            self._waiting[result.key] = "" if result.error is None else result.error.code
        else:
            self._finished += result.ok
            self._failed += not result.ok

    def _replace(self) -> None:
        """Put records in the places of those that waited, each where it stands, also one that failed."""
        news, self._news = self._news, {}

        def change(line: bytes) -> bytes | None:
            written = self._ready.job.read_back(line)
            if written is None or not written.waits or written.key not in news:
                return line
            record, news[written.key] = news[written.key], None  # a second one for this id is dropped
            return line if record is not None and self._ready.job.read_back(record) == written else record

        if news:
            self._out.revise(change)

    async def keep_synced(self, clock: Clock) -> None:
        """Make what is written durable and decisions seen, every second, off the event loop. Ends when cancelled."""
        while True:
            await clock.sleep(SYNC_SECONDS)
            async with self._turn:
                began = clock.now()
                syncing = asyncio.create_task(asyncio.to_thread(self._sync))
                try:
                    await asyncio.shield(syncing)
                finally:  # nobody else may use the files before the thread is done
                    await asyncio.wait({syncing})
            await clock.sleep(REST * (clock.now() - began))

    def _sync(self) -> None:
        self._replace()
        self._out.sync()
        self._errors.sync()

    def outcome(self, session: MapSummary) -> Outcome:
        return Outcome(
            total=self._ready.plan.total,
            finished=self._finished,
            failed=self._failed,
            waits=Counter(self._waiting.values()),
            session=session,
        )
