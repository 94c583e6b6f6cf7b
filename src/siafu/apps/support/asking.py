"""One customer's request answered by itself: no file; with a journal when it is a task of the queue."""

from __future__ import annotations

from typing import Any

import msgspec

from siafu.agents.faults import PAUSING, unasked
from siafu.agents.task import Surroundings
from siafu.apps.filerun.job import Task
from siafu.apps.support.job import SupportJob
from siafu.apps.support.requests import Answer, CustomerRequest
from siafu.border.canonical import dumps
from siafu.errors import DeadlineReached, Outage, SiafuError, ToolUnavailable
from siafu.queue.worker import Halt, Outcome
from siafu.store.records import Ledger
from siafu.store.task_journal import TaskJournal, TaskRun
from siafu.store.task_records import Expired, Failed, Later, Lease, Succeeded
from siafu.swarm.ending import root_cause
from siafu.swarm.map import map_items
from siafu.swarm.options import MapOptions
from siafu.swarm.results import MapError, MapResult

_HALTS = {error.code for error in PAUSING}


async def answered(
    job: SupportJob, request: CustomerRequest, around: Surroundings, *, run: str, tenant: str = ""
) -> MapResult:
    """The result of `request`, whose value is an `Answer`; an error also when the work stopped before it (no key, no
    credit, ...). job: ready to use the tools of `around`. run: the account that pays for its model calls.

    Cancelling gives the work up; what it did to the world is kept by the effect contract.
    """
    return await _mapped(job, request, around, None, MapOptions(run=run, tenant=lambda _: tenant))


class SupportTasks:
    """Answers requests that are tasks (a `Handler`). Their journals outlive the process. ledger: of the endpoint of
    `around`. run: the account that pays.
    """

    def __init__(self, job: SupportJob, around: Surroundings, ledger: Ledger, run: str) -> None:
        self._job = job
        self._around = around
        self._ledger = ledger
        self._run = run

    async def __call__(self, lease: Lease, journal: TaskJournal, /) -> Outcome:
        request = msgspec.json.decode(lease.payload, type=CustomerRequest)
        options = MapOptions(
            run=self._run,
            tenant=lambda _: lease.tenant,
            priority=lambda _: lease.priority,
            item_timeout=lease.seconds_left,
            retry_failed=True,
            value_type=Answer,
            key=lambda _: lease.id,
        )
        store = TaskRun(lease, journal, self._ledger)
        result = await _mapped(self._job, request, self._around, store, options)
        return self._outcome(msgspec.structs.replace(result, key=request.id))

    def _outcome(self, result: MapResult) -> Outcome:
        code, message = ("", "") if result.error is None else (result.error.code, result.error.message)
        if code == Outage.code:
            return Later(code=code, message=message, failed=True)
        if code in _HALTS:
            return Halt(code, message)
        if code == DeadlineReached.code:
            return Expired()
        record = self._job.record(result)
        told = None if record is None else dumps(record).decode()
        if result.status == "waiting":
            return Later(code=code, message=message, result=told)
        if told is not None and result.ok:
            return Succeeded(told)
        cause = None if result.exception is None else root_cause(result.exception)
        if unasked(cause) or (code == ToolUnavailable.code and self._around.patience.away):
            return Later(code=code, message=message, failed=True)
        passing = cause.retryable if isinstance(cause, SiafuError) else True
        return Failed(code=code, message=message, passing=passing, result=told)


async def _mapped(
    job: SupportJob, request: CustomerRequest, around: Surroundings, store: TaskRun | None, options: MapOptions
) -> MapResult:
    """`options` for one item of one customer."""

    async def work(task: Task, ctx: Any) -> Any:
        return await job.work(task.item, ctx)

    item = Task(request.id, request)
    options = msgspec.structs.replace(
        options, concurrency=1, key=options.key or (lambda task: task.key), user=lambda task: task.item.customer
    )
    async with map_items(work, [item], around=around, store=store, options=options) as results:
        async for result in results:
            return result
    end = results.summary
    error = MapError(end.stopped, end.stop_message)
    return MapResult(key=request.id, index=0, item=item, status="error", error=error)
