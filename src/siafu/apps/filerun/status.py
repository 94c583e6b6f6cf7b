"""How a run over a file stands, read from its files and its journal, also while it works. Nothing is written."""

from __future__ import annotations

from pathlib import Path

import msgspec

from siafu.apps.filerun.index import opened_index
from siafu.apps.filerun.job import FileJob, Written
from siafu.apps.filerun.place import Place
from siafu.apps.filerun.prepare import records
from siafu.border.jsonl import MAX_RECORD, raw_lines
from siafu.errors import InputError
from siafu.store.report import Failing, Report
from siafu.store.spending import Spending, Sums, Work


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """finished, failed, waiting: ids by their record. bad: lines that could not be used.
    left: ids without a record; None when the input was never accepted. spent: every attempt of all sessions; None
    without a journal; work: as that. upstreams, failing: as in `Report`; what fails is told while something is left.
    """

    finished: int
    failed: int
    waiting: int
    bad: int
    left: int | None
    spent: Sums | None
    work: Work | None
    upstreams: dict[str, dict[str, int]]
    failing: list[Failing]


def status(job: FileJob, where: Place) -> Status:
    """Raises: InputError when no run has written `where.out`; StoreError."""
    if not where.out.exists() and not where.journal.exists():
        raise InputError(f"no run has written {where.out} from here; its journal would be {where.journal}")
    if _is_strange(job, where.out):
        raise InputError(f"{where.out} was written by another command; ask that one for its status")
    counts = {"finished": 0, "failed": 0, "waiting": 0, "bad": 0}
    for path in where.outputs:
        for record in records(job, path):
            counts[_kind(record)] += 1
    left = None
    if where.index.exists():
        with opened_index(where.index) as index:
            left = max(0, index.lines - counts["finished"] - counts["failed"] - counts["waiting"])
    upstreams, failing = _upstreams(where)
    cost, work = _spent(where)
    failing = [] if left == 0 else failing
    return Status(**counts, left=left, spent=cost, work=work, upstreams=upstreams, failing=failing)


def _kind(record: Written) -> str:
    if record.key is None:
        return "bad"
    return "waiting" if record.waits else "finished" if record.ok else "failed"


def _is_strange(job: FileJob, path: Path) -> bool:
    """Whether the first line of a results file is whole and no record of this command."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        first = next(raw_lines(file, max_line=MAX_RECORD), None)
    return first is not None and first.ended and job.read_back(first.data or b"") is None


def spent(where: Place) -> Sums | None:
    """What all sessions of a run have cost; None when there is no journal."""
    return _spent(where)[0]


def _spent(where: Place) -> tuple[Sums, Work] | tuple[None, None]:
    if where.journal.exists():
        with Spending(where.journal) as ledger:
            if where.run in ledger.runs():
                return ledger.total(where.run), ledger.work(where.run)
    return None, None


def _upstreams(where: Place) -> tuple[dict[str, dict[str, int]], list[Failing]]:
    if not where.journal.exists():
        return {}, []
    with Report(where.journal) as report:
        if where.run not in report.runs():
            return {}, []
        return report.upstreams(where.run), report.failing(where.run)
