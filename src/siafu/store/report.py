"""What a run did, read from its file, also while it runs. What it cost is added up in `spending`."""

# ruff: noqa: S608 - the names put into statements are those of our own records

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec

from siafu.errors import StoreError
from siafu.store.journal_file import JournalFile
from siafu.store.records import AttemptOpened, AttemptSettled, ItemRecord
from siafu.store.sql import ITEM, OPENED, SETTLED

PAGE = 500  # results held in memory at a time


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One physical attempt; settled is None while it is open."""

    opened: AttemptOpened
    settled: AttemptSettled | None


class Failing(msgspec.Struct, frozen=True):
    """A model of an upstream whose last `calls` failed. since: seconds since 1970; code: of the last one."""

    upstream: str
    model: str
    calls: int
    since: float
    code: str


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One process that worked on a run. ended_at None: it still works, or it was killed."""

    session: int
    pid: int
    work_print: str
    began_at: float
    ended_at: float | None


_UPSTREAMS = """
SELECT upstream, CASE WHEN outcome IS NULL THEN 'open' WHEN outcome = 'ok' OR code = '' THEN outcome ELSE code END,
    COUNT(*)
FROM attempt WHERE run = ? GROUP BY 1, 2 ORDER BY MIN(id)
"""
_FAILING = """
WITH answered AS (
    SELECT upstream, model, MAX(opened_at) AS at FROM attempt WHERE run = ? AND outcome = 'ok' GROUP BY 1, 2
)
SELECT upstream, model, COUNT(*), MIN(settled_at), code, MAX(settled_at)
FROM attempt LEFT JOIN answered USING (upstream, model)
WHERE run = ? AND (outcome = 'failed' OR code = 'call_timeout') AND opened_at > COALESCE(at, 0)
GROUP BY 1, 2 HAVING COUNT(*) >= 3 ORDER BY 4
"""
_ITEMS = f"""
SELECT id, {", ".join(ITEM)} FROM item WHERE run = ? AND id > ? AND status IS NOT NULL ORDER BY id LIMIT {PAGE}
"""
_CALLS = f"SELECT {', '.join((*OPENED, *SETTLED))} FROM attempt WHERE run = ? AND task = ? ORDER BY id"


class Report(JournalFile):
    """What runs did, as their journal file says."""

    def sessions(self, run: str) -> list[Session]:
        """Every process that worked on the run, in order."""
        names = Session.__struct_fields__
        rows = self._rows(f"SELECT {', '.join(names)} FROM session WHERE run = ? ORDER BY session", self._id(run))
        return [Session(**dict(zip(names, row, strict=True))) for row in rows]

    def statuses(self, run: str) -> dict[str, int]:
        """Items by status: ok, error, and `unfinished` for those claimed and without a result."""
        return dict(
            self._rows(
                "SELECT COALESCE(status, 'unfinished'), COUNT(*) FROM item WHERE run = ? GROUP BY 1", self._id(run)
            )
        )

    def upstreams(self, run: str) -> dict[str, dict[str, int]]:
        """How attempts ended at each upstream: `ok`, the code of the error, or `open` when they are not settled."""
        found: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for upstream, ended, count in self._rows(_UPSTREAMS, self._id(run)):
            found[upstream][ended] = count
        return dict(found)

    def failing(self, run: str) -> list[Failing]:
        """What has failed three times or more since its last answer; refused calls are none of these."""
        number = self._id(run)
        return [Failing(*row[:5]) for row in self._rows(_FAILING, number, number)]

    def items(self, run: str) -> Iterator[ItemRecord]:
        """Every result in the order in which the items were first claimed; a page at a time is in memory."""
        number, last = self._id(run), 0
        while rows := list(self._rows(_ITEMS, number, last)):
            last = rows[-1][0]
            for row in rows:
                yield ItemRecord(**dict(zip(ITEM, row[1:], strict=True)))

    def calls(self, run: str, task: str) -> list[Call]:
        """Every attempt made for one item, in the order in which they were sent."""
        found = []
        for row in self._rows(_CALLS, self._id(run), task):
            opened = AttemptOpened(run=run, **dict(zip(OPENED, row, strict=False)))
            half: dict[str, Any] = dict(zip(SETTLED, row[len(OPENED) :], strict=True))
            half["usage_known"] = bool(half["usage_known"])
            settled = AttemptSettled(attempt=opened.attempt, **half) if half["outcome"] else None
            found.append(Call(opened=opened, settled=settled))
        return found

    def _id(self, run: str) -> int:
        rows = list(self._rows("SELECT id FROM run WHERE name = ?", run))
        if not rows:
            raise StoreError(f"{self._path} holds no run {run!r}; it holds: {', '.join(self.runs()) or 'none'}")
        return int(rows[0][0])
