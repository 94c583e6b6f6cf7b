"""The lines of a client's batch: what `siafu batch` does with them, within what the client's key allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from siafu.apps.batch import BatchJob
from siafu.apps.filerun.check import Checked, checked, tasks
from siafu.apps.filerun.job import Plan, Task
from siafu.apps.filerun.place import opened
from siafu.apps.filerun.prepare import Ready
from siafu.border.jsonl import JsonlSink, LineError, disk
from siafu.errors import InputError
from siafu.store.batch_records import SHOWN_ERRORS, BatchFault
from siafu.store.client_keys import KeyTerms
from siafu.swarm.results import MapError, MapResult

MAX_LINES = 50_000
_AT_MOST = f"a batch may have at most {MAX_LINES:,}"
_BLOCK = 1 << 20
_CODES = {"not_json": "invalid_json_line", "not_utf8": "invalid_json_line", "duplicate_id": "duplicate_custom_id"}
EXPIRED = MapError("batch_expired", "the batch's completion window ended before this line could be done")
Tell = Callable[[str, str], MapError]


class ServedBatch(BatchJob):
    """terms: of the key that asks, None = no key is needed. own: how models begin that are no models but siafu itself.
    tell: how an error (code, message) is told to a client.
    """

    def __init__(self, run: str, terms: KeyTerms | None, own: str, tell: Tell) -> None:
        super().__init__(run)
        self._terms = terms
        self._own = own
        self._tell = tell

    def parse(self, value: Any) -> Task:
        task = super().parse(value)
        model = task.item.model
        if model.startswith(self._own):
            raise InputError(f"body.model: {model[:100]} cannot be asked by a batch")
        if self._terms is not None and not self._terms.allows(model):
            raise InputError(f"body.model: this client key may not use the model {model[:100]!r}")
        return task

    def record(self, result: MapResult) -> dict[str, Any]:
        if result.error is not None and result.error is not EXPIRED:
            result = msgspec.structs.replace(result, error=self._tell(result.error.code, result.error.message))
        return super().record(result)


def faults(job: ServedBatch, source: Path) -> tuple[int, list[BatchFault]]:
    """How many lines there are, and why they cannot be run: a batch is run whole or not at all. Reads at length.

    Raises: StoreError.
    """
    with opened(source) as file, disk(source):
        ends = sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))
        if ends > 2 * MAX_LINES:  # blank ones too take their time
            return 0, [BatchFault(code="too_many_lines", message=f"the file has {ends:,} lines; {_AT_MOST}")]
        try:
            found: Checked = checked(job, file, shown=SHOWN_ERRORS)
        except InputError as error:
            return 0, [BatchFault(code="empty_file", message=error.message)]
    found.index.close()
    total = found.usable + found.bad
    if total > MAX_LINES:
        return total, [BatchFault(code="too_many_lines", message=f"the file has {total:,} requests; {_AT_MOST}")]
    return total, [_fault(error) for error in found.first_bad]


def _fault(error: LineError) -> BatchFault:
    return BatchFault(code=_CODES.get(error.code, "invalid_request"), message=error.message, line=error.line)


def give_up(ready: Ready) -> int:
    """Write an error for every line that has no record; returns how many. Raises: StoreError, InputError."""
    count = 0
    sink = JsonlSink(ready.where.outputs[-1])
    try:
        for count, task in enumerate(_undone(ready), 1):
            result = MapResult(key=task.key, index=count, item=task, status="error", error=EXPIRED)
            sink.append(ready.job.record(result))
    finally:
        sink.close()
    return count


def _undone(ready: Ready) -> Iterator[Task]:
    found = tasks(ready.job, ready.file, lines=ready.lines, skip=ready.skip, index=ready.index)
    return (task for task in found if isinstance(task, Task))


class Count:
    """A Watcher that counts lines with a record. remark: told what a person should know."""

    def __init__(self, remark: Callable[[str], None]) -> None:
        self.completed = self.failed = 0
        self._remark = remark

    def begin(self, plan: Plan) -> None:
        self.completed, self.failed = plan.finished, plan.failed

    def ended(self, result: MapResult) -> None:
        self.completed += result.ok
        self.failed += not result.ok

    def note(self, text: str) -> None:
        self._remark(text)
