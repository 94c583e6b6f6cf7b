"""The engine of every command over files: check the input, see what an earlier run left, do the rest, record it.

The rule of resuming: an id with a result is finished. An id with an error stays failed unless `retry_failed`; then
its record is dropped first, and the new outcome takes its place. What the journal knows and the files lack (a process
was killed between the two) is written again from the journal. So in the end each id has exactly one record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from typing import Any, BinaryIO

import msgspec

from siafu.apps.filerun.check import SHOWN, Bits, Checked, checked, tasks
from siafu.apps.filerun.index import Index
from siafu.apps.filerun.job import FileJob, Opener, Plan, Setup, Task, Watcher, Written
from siafu.apps.filerun.place import Place, opened, set_aside
from siafu.border.jsonl import JsonlSink, LineError, mend, raw_lines, sift
from siafu.border.jsonl import MAX_RECORD
from siafu.border.money import to_usd
from siafu.errors import InputError
from siafu.store.lock import Lock
from siafu.swarm.map import MapOptions, MapResult, map_items

SYNC_SECONDS = 1.0


class FileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """strict: refuse an input with a line that cannot be used. retry_failed: run failed items again. fresh: move what
    an earlier run left aside and start over. limit: only the first so many lines; None = all.
    """

    strict: bool = False
    retry_failed: bool = False
    fresh: bool = False
    limit: int | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose input is accepted and whose files are whole and locked. skip: lines that need no work."""

    job: FileJob
    where: Place
    file: BinaryIO
    lines: int
    skip: Bits
    plan: Plan
    retry_failed: bool


@contextmanager
def ready(job: FileJob, where: Place, options: FileOptions, watch: Watcher) -> Iterator[Ready]:
    """Check everything that can be checked before money is spent, and hold the run's lock while the block runs.

    Nothing is written before the input is accepted. It reads files at length, so call it outside an event loop.

    Raises: InputError, StoreBusy when another process works on the same output, StoreError.
    """
    with ExitStack() as stack:
        file = stack.enter_context(opened(where.source))
        found = checked(job, file, limit=options.limit)
        stack.callback(found.index.close)
        _tell_bad(found, options.strict, watch)
        where.folder.mkdir(parents=True, exist_ok=True)
        stack.callback(Lock(where.folder / where.run).release)
        if options.fresh and (number := set_aside(where)) is not None:
            watch.note(f"started over; what was there is kept as {where.out.name}.bak-{number}")
        for path in where.outputs:
            if cut := mend(path, lambda line: job.read_back(line) is not None, job.starts):
                watch.note(f"{path.name} ended in half a record ({cut} bytes); moved to {path.name}.torn")
        done, failed = _left_behind(job, where, found, watch)
        _check_unchanged(where, found.index, done, Bits(found.lines) if options.retry_failed else failed)
        for path in where.outputs:
            sift(path, lambda line: not _obsolete(job.read_back(line), found.index, done, options.retry_failed))
        found.index.save(where.index)
        if options.retry_failed:
            failed = Bits(found.lines)
        plan = Plan(total=found.usable + found.bad, bad=found.bad, finished=len(done), failed=len(failed))
        yield Ready(
            job=job, where=where, file=file, lines=found.lines, skip=done | failed, plan=plan,
            retry_failed=options.retry_failed,
        )  # fmt: skip


def _tell_bad(found: Checked, strict: bool, watch: Watcher) -> None:
    if not found.bad:
        return
    shown = "; ".join(error.message for error in found.first_bad)
    more = f"; and {found.bad - SHOWN} more" if found.bad > SHOWN else ""
    text = f"{found.bad} of {found.bad + found.usable} lines cannot be used: {shown}{more}"
    if strict or not found.usable:
        raise InputError(text)
    watch.note(text)


def _left_behind(job: FileJob, where: Place, found: Checked, watch: Watcher) -> tuple[Bits, Bits]:
    """The lines whose ids have a good record, and those that only have a failed one."""
    done, failed = Bits(found.lines), Bits(found.lines)
    strangers = twice = 0
    for path in where.outputs:
        for written in _records(job, path):
            line = None if written.key is None else found.index.line(written.key)
            strangers += line is None and written.key is not None
            if line is not None:
                twice += written.ok and line in done
                (done if written.ok else failed).add(line)
    failed -= done
    if strangers and not done and not failed:
        raise InputError(
            f"none of the ids in {where.out} stands in this input, so nothing was written there; choose another "
            "--out, or start over with --fresh"
        )
    if strangers:
        watch.note(f"{strangers} records in {where.out.name} are of ids that this input does not hold; they stay")
    if twice:
        watch.note(f"{twice} records in {where.out.name} repeat an id; its first record counts")
    return done, failed


def _records(job: FileJob, path: Any) -> Iterator[Written]:
    if path.exists():
        with path.open("rb") as file:
            for raw in raw_lines(file, max_line=MAX_RECORD):
                written = job.read_back(raw.data or b"")
                if written is not None:
                    yield written


def _obsolete(written: Written | None, index: Index, done: Bits, retry_failed: bool) -> bool:
    """Whether a record is dropped at the start: it will be written again, or a good one has taken its place."""
    if written is None or written.ok:
        return False
    if written.key is None:
        return True
    line = index.line(written.key)
    return line is not None and (retry_failed or line in done)
