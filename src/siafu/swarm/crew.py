"""One item, from what the journal knows of it to its recorded result."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from siafu.agents.faults import PAUSING
from siafu.agents.replay import Replay, failed
from siafu.agents.task import Surroundings, TaskContext
from siafu.border.canonical import dumps
from siafu.border.money import MOST
from siafu.border.text import preview
from siafu.errors import (
    ApprovalPending,
    BudgetReached,
    DeadlineReached,
    NotNow,
    Outage,
    OutputInvalid,
    StoreError,
    ToolFault,
)
from siafu.observe import spans
from siafu.observe.calls import CallContext
from siafu.store.records import ItemRecord, RunStore
from siafu.swarm.ending import ends_within, put_down, root_cause
from siafu.swarm.intake import Entry
from siafu.swarm.options import MapOptions
from siafu.swarm.results import MapError, MapResult, Tally, failure
from siafu.swarm.work import Job

log = logging.getLogger("siafu")


class Pause(msgspec.Struct, frozen=True):
    """The item met something that every other would meet too; the run starts no more of them, or, with `item_only`,
    ends so when all else is done. budget, needs_pico: as in BudgetReached.
    """

    code: str
    message: str
    budget: str = ""
    needs_pico: int = 0
    item_only: bool = False


_TOO_SHORT = Pause(DeadlineReached.code, "the time left for the run was too short for some items", item_only=True)


class Crew:
    """Does items for one run."""

    def __init__(
        self, job: Job, around: Surroundings, store: RunStore | None, options: MapOptions, tally: Tally
    ) -> None:
        self._job = job
        self._around = around
        self._store = store
        self._options = options
        self._tally = tally

    async def do(self, entry: Entry, ends_at: float | None) -> MapResult | Pause | None:
        """The item's result, recorded unless it waits; a Pause; or None. With the last two the item is left to the next
        session.

        `ends_at`: when the whole run ends, on the monotonic clock. Cancelling cancels the work and waits for it.
        Raises: StoreError.
        """
        began = self._around.clock.now()
        ctx = await self._context(entry, began, ends_at)
        value, error = await self._work(entry, ctx)
        cause = None if error is None else root_cause(error)
        if isinstance(cause, StoreError):
            raise cause
        if isinstance(cause, PAUSING):
            budget, needs = (cause.budget, cause.needs_pico) if isinstance(cause, BudgetReached) else ("", 0)
            item_only = isinstance(cause, Outage) and not cause.lasts
            return Pause(cause.code, cause.message, budget, needs, item_only)
        if isinstance(cause, KeyboardInterrupt | SystemExit):
            return None  # they end the event loop by themselves
        if isinstance(cause, DeadlineReached) and ends_at is not None and ctx.call.deadline == ends_at:
            return _TOO_SHORT  # it was the run's time, not the item's
        data = None
        if error is None:
            ctx.report_discarded()
            if self._store is not None:
                try:
                    data = dumps(value)
                    value = self._read_back(data)
                except (TypeError, ValueError, RecursionError, OutputInvalid) as wrong:
                    value, error = None, OutputInvalid(f"what the work returned cannot be kept: {wrong}")
        costs = {"seconds": self._around.clock.now() - began, **msgspec.structs.asdict(ctx.spent)}
        if ctx.waiting and (error is None or isinstance(cause, ToolFault)):
            error = _open(ctx.waiting)
        if error is None:
            result = MapResult(
                key=entry.name.key, index=entry.index, item=entry.item, status="ok", value=value, **costs
            )
        else:
            result = failure(entry, error, value=value, **costs)
        if self._store is not None and result.status != "waiting":
            await self._store.record(self._record(entry, result, data))
        return result

    def restore(self, entry: Entry, record: ItemRecord) -> MapResult:
        """The result that an earlier session recorded."""
        value, error = None, None if record.status == "ok" else MapError(record.code, record.message)
        if record.value is not None:
            try:
                value = self._read_back(record.value)
            except OutputInvalid as wrong:
                error = MapError(wrong.code, wrong.message)
        return MapResult(
            key=entry.name.key,
            index=entry.index,
            item=entry.item,
            status="ok" if error is None else "error",
            value=value,
            error=error,
            seconds=record.seconds,
            usd_pico=record.usd_pico,
            input_tokens=record.input_tokens,
            cached_tokens=record.cached_tokens,
            output_tokens=record.output_tokens,
            restored=True,
        )

    def _read_back(self, data: bytes) -> Any:
        """A value as every session sees it, the one that made it too."""
        try:
            return msgspec.json.decode(data, type=self._options.value_type)
        except msgspec.MsgspecError as error:
            raise OutputInvalid(f"the kept value does not fit value_type: {error}") from None

    def _record(self, entry: Entry, result: MapResult, data: bytes | None) -> ItemRecord:
        return ItemRecord(
            key=result.key,
            status="ok" if result.ok else "error",
            input_print=entry.name.input_print,
            work_print=self._job.work_print,
            value=data if result.ok else None,
            code="" if result.error is None else result.error.code,
            message="" if result.error is None else result.error.message,
            seconds=result.seconds,
            usd_pico=None if result.usd_pico is None else min(result.usd_pico, MOST),
            input_tokens=result.input_tokens,
            cached_tokens=result.cached_tokens,
            output_tokens=result.output_tokens,
            ended_at=self._around.clock.wall(),
        )

    async def _context(self, entry: Entry, began: float, ends_at: float | None) -> TaskContext:
        options, key = self._options, entry.name.key
        journal = None if self._store is None else self._store.journal
        entries = await journal.entries(key) if journal is not None and entry.journaled else []
        if entry.retried:  # what failed then is tried now
            entries = [e for e in entries if not failed(e)]
        own = None if options.item_timeout is None else began + options.item_timeout
        call = CallContext(
            run=options.run,
            task=key,
            tenant=entry.tenant,
            user=entry.user,
            priority=entry.priority,
            deadline=min((end for end in (own, ends_at) if end is not None), default=None),
        )
        return TaskContext(self._around, call, Replay(key, journal, entries))

    async def _work(self, entry: Entry, ctx: TaskContext) -> tuple[Any, BaseException | None]:
        """What the work returned, or how it failed. It runs in a task of its own, so that its being cancelled, or
        its swallowing that, stays its own affair.
        """

        async def perform() -> Any:
            told = {"gen_ai.workflow.name": self._options.run, "siafu.task": entry.name.key}
            with spans.span("invoke_workflow", self._options.run, told):
                return await self._job.perform(entry.item, ctx)

        task = asyncio.create_task(perform(), name=f"siafu: work on {entry.name.key}")
        limit, in_time = self._options.item_timeout, False
        try:
            in_time = await ends_within(task, limit, self._around.clock)
        finally:
            if not in_time:
                running = await put_down({task}, self._options.grace)
                if running and not self._tally.sums["abandoned"]:
                    log.warning(
                        "run %s: the work on item %s does not end although it was cancelled, so it is waited for no "
                        "more (but by asyncio.run, until Ctrl-C); let CancelledError through. This is said once",
                        self._options.run,
                        preview(entry.name.key, 100),
                    )
                self._tally.sums["abandoned"] += len(running)
        if not in_time:
            return None, DeadlineReached(f"not done within the {limit:g} seconds given to the item")
        if task.cancelled():
            return None, asyncio.CancelledError("the work cancelled itself")
        error = task.exception()
        return (None, error) if error is not None else (task.result(), None)


def _open(waiting: Mapping[str, str]) -> NotNow:
    """Why the item waits; where several effects do, because of one that needs no person. `waiting`: tools by code."""
    code = min(waiting, key=lambda code: (code == ApprovalPending.code, code))
    if code == ApprovalPending.code:
        return ApprovalPending(f"{waiting[code]}: a person has to decide first; see: siafu approvals list")
    return NotNow(f"{waiting[code]} is not done yet ({code}); it is asked for again when the run is", reason=code)
