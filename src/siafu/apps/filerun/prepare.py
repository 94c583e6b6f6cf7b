"""Before a run over a file: check the input, see what an earlier run left, say what is left to do.

The rule of resuming: an id with a result is finished. An id with an error stays failed unless `retry_failed`; then
its record is dropped first, and the new outcome takes its place. An id that waits for a person's decision is worked on
again, and its record stays until another outcome takes its place. What the journal knows and the files lack (a process
was killed between the two) is written again from the journal. So in the end each id has exactly one record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from siafu.apps.filerun.check import SHOWN, Bits, Checked, checked, of_each_kind
from siafu.apps.filerun.index import Index, opened_index
from siafu.apps.filerun.job import FileJob, Plan, Watcher, Written
from siafu.apps.filerun.place import Place, opened, set_aside
from siafu.border.jsonl import MAX_RECORD, disk, mend, raw_lines, sift
from siafu.border.text import counted
from siafu.errors import InputError
from siafu.store.lock import Lock


class FileOptions(msgspec.Struct, frozen=True, kw_only=True):
    """strict: refuse an input with a line that cannot be used. retry_failed: run failed items again. fresh: move what
    an earlier run left aside and start over. limit: only the first so many lines; None = all.
    """

    strict: bool = False
    retry_failed: bool = False
    fresh: bool = False
    limit: int | None = None


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose input is accepted and whose files are whole and locked. skip: lines that need no work. waiting: ids
    with a record that says they wait, and the code of what for.
    """

    job: FileJob
    where: Place
    file: BinaryIO
    lines: int
    index: Index
    skip: Bits
    waiting: Mapping[str, str]
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
        with disk(f"{where.source}, or the folder for temporary files (TMPDIR)"):
            found = checked(job, file, limit=options.limit)
        stack.callback(found.index.close)
        _tell_bad(found, options.strict, watch)
        for remark in job.remarks():
            watch.note(remark)
        with disk(where.folder):
            where.folder.mkdir(parents=True, exist_ok=True)
            stack.callback(Lock(where.folder / where.run).release)
            if options.fresh and (number := set_aside(where)) is not None:
                watch.note(f"started over; what was there is kept as {where.out.name}.bak-{number}")
            done, failed, waiting = _reconcile(job, where, found, options.retry_failed, watch)
        plan = Plan(total=found.usable + found.bad, bad=found.bad, finished=len(done), failed=len(failed))
        yield Ready(
            job=job,
            where=where,
            file=file,
            lines=found.lines,
            index=found.index,
            skip=done | failed,
            waiting=dict(waiting.values()),
            plan=plan,
            retry_failed=options.retry_failed,
        )


def _reconcile(job: FileJob, where: Place, found: Checked, retry: bool, watch: Watcher) -> _Left:
    """Make the output files whole and fit for the input; returns what is left behind, without failed lines that are
    worked on again.
    """
    for path in where.outputs:
        if cut := mend(path, lambda line: job.read_back(line) is not None, job.starts):
            watch.note(f"{path.name} ended in half a record ({cut:,} bytes); it is kept in {path.name}.torn")
    done, failed, waiting = _left_behind(job, where, found, watch)
    if retry:
        failed = Bits(found.lines)
    _check_unchanged(where, found.index, done | failed | Bits(found.lines, waiting))
    for path in where.outputs:
        sift(path, lambda line: not _obsolete(job.read_back(line), found.index, done, retry))
    found.index.save(where.index)
    return _Left(done, failed, waiting)


class _Left(NamedTuple):
    """Lines whose ids have a good record, a failed one, and one that waits: those with the id and what for."""

    done: Bits
    failed: Bits
    waiting: dict[int, tuple[str, str]]


def _tell_bad(found: Checked, strict: bool, watch: Watcher) -> None:
    if not found.bad:
        return
    shown = of_each_kind(error.message for error in found.first_bad)
    more = f"; and {found.bad - len(shown):,} more" if found.bad > len(shown) else ""
    of = counted(found.bad + found.usable, "line")
    text = f"{found.bad:,} of {of} cannot be used: {'; '.join(shown)}{more}"
    if strict or not found.usable:
        raise InputError(text)
    watch.note(text)


def _left_behind(job: FileJob, where: Place, found: Checked, watch: Watcher) -> _Left:
    """What the output files hold. An id counts once: as good, else as waiting, else as failed."""
    done, failed, waiting = Bits(found.lines), Bits(found.lines), dict[int, tuple[str, str]]()
    strangers = twice = 0
    for path in where.outputs:
        for written in records(job, path):
            line = None if written.key is None else found.index.line(written.key)
            strangers += line is None and written.key is not None
            if line is None or written.key is None:
                continue
            if written.waits:
                waiting[line] = written.key, written.reason
            else:
                twice += written.ok and line in done
                (done if written.ok else failed).add(line)
    waiting = {line: told for line, told in waiting.items() if line not in done}
    failed = failed - done - Bits(found.lines, waiting)
    if strangers and not done and not failed and not waiting:
        raise InputError(
            f"none of the ids in {where.out} stands in this input, so nothing was written there; choose another "
            "--out, or start over with --fresh"
        )
    if strangers:
        watch.note(f"{strangers} records in {where.out.name} are of ids that this input does not hold; they stay")
    if twice:
        watch.note(f"{twice} records in {where.out.name} repeat an id; its first record counts")
    return _Left(done, failed, waiting)


def records(job: FileJob, path: Path) -> Iterator[Written]:
    """The records of an output file, none for a missing one; lines that are no record are passed over."""
    if path.exists():
        with path.open("rb") as file:
            for raw in raw_lines(file, max_line=MAX_RECORD):
                written = job.read_back(raw.data or b"")
                if written is not None:
                    yield written


def _check_unchanged(where: Place, index: Index, settled: Bits) -> None:
    """Raises: InputError when a line whose record stays was another one when that record was written."""
    with opened_index(where.index) as old:
        changed = sorted(line for line in index.changed_since(old) if line in settled)
    if changed:
        shown = ", ".join(map(str, changed[:SHOWN])) + (", ..." if len(changed) > SHOWN else "")
        raise InputError(
            f"{counted(len(changed), 'line')} of the input changed since the results were written (line {shown}), so "
            "these would not fit; restore them, give them new ids, or start over with --fresh"
        )


def _obsolete(written: Written | None, index: Index, done: Bits, retry_failed: bool) -> bool:
    """Whether a record is dropped at the start: it will be written again, or a good one has taken its place."""
    if written is None or (written.ok and not written.waits):
        return False
    if written.key is None:
        return True
    line = index.line(written.key)
    return line is not None and (line in done or (retry_failed and not written.waits))
