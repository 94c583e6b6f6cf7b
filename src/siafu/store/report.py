"""What a run did and what it cost, read from its file, also while it runs. Nothing is written."""

# ruff: noqa: S608 - the names put into statements are those of our own records

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from siafu.errors import StoreError
from siafu.store.faults import store_error
from siafu.store.records import AttemptOpened, AttemptSettled, ItemRecord
from siafu.store.schema import open_reader
from siafu.store.sql import ITEM, OPENED, SETTLED

PAGE = 500  # results held in memory at a time


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Physical attempts added up.

    usd_pico: the cost of those whose usage is known. unknown: attempts whose usage is not known, as they were cut off
    or are still open; together they cost between 0 and unknown_pico (their reservations). unpriced: attempts whose
    model has no price, so they are in neither amount.
    """

    calls: int = 0
    ok: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    usd_pico: int = 0
    unknown: int = 0
    unknown_pico: int = 0
    unpriced: int = 0

    def __add__(self, other: Tally) -> Tally:
        ours, theirs = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        return Tally(**{name: ours[name] + theirs[name] for name in ours})


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """A run's ledger. outcomes: attempts by outcome; `open` = not settled yet. by_model: by the model that served.

    answers: logical steps that got an answer. wasted: settled attempts that became nobody's answer: refused, failed,
    abandoned, or asked again as the answer was lost with the process.
    """

    all: Tally
    outcomes: dict[str, int]
    by_model: dict[str, Tally]
    by_role: dict[str, Tally]
    answers: int
    wasted: int


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One physical attempt; settled is None while it is open."""

    opened: AttemptOpened
    settled: AttemptSettled | None


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """One process that worked on a run. ended_at None: it still works, or it was killed."""

    session: int
    pid: int
    work_print: str
    began_at: float
    ended_at: float | None


# Wherever the price is unknown, the amount is NULL and SUM leaves it out; `unpriced` counts it.
_GROUPS = """
SELECT COALESCE(NULLIF(served_model, ''), model), role, COALESCE(outcome, 'open'), COUNT(*),
    SUM(input_tokens), SUM(cached_tokens), SUM(output_tokens),
    COALESCE(SUM(usd_pico) FILTER (WHERE usage_known), 0),
    COUNT(*) FILTER (WHERE NOT usage_known),
    COALESCE(SUM(reserved_pico) FILTER (WHERE NOT usage_known), 0),
    COUNT(*) FILTER (WHERE CASE WHEN usage_known THEN usd_pico ELSE reserved_pico END IS NULL)
FROM attempt WHERE run = ? GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""
# Calls outside any step have no journal place; each of their answers counts.
_ANSWERS = """
SELECT COUNT(*) FROM (
    SELECT DISTINCT task, step, CASE WHEN step = '' THEN id END FROM attempt WHERE run = ? AND outcome = 'ok')
"""
_UPSTREAMS = """
SELECT upstream, CASE WHEN outcome IS NULL THEN 'open' WHEN outcome = 'ok' OR code = '' THEN outcome ELSE code END,
    COUNT(*)
FROM attempt WHERE run = ? GROUP BY 1, 2 ORDER BY MIN(id)
"""
_ITEMS = f"""
SELECT id, {", ".join(ITEM)} FROM item WHERE run = ? AND id > ? AND status IS NOT NULL ORDER BY id LIMIT {PAGE}
"""
_CALLS = f"SELECT {', '.join((*OPENED, *SETTLED))} FROM attempt WHERE run = ? AND task = ? ORDER BY id"


class Report:
    """Reads the journal file at `path`; use it with `with`. Its calls block, so keep them off an event loop.

    Raises: StoreError when there is no such file, or it is none of ours.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).resolve()
        self._db = open_reader(self._path)

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._db.close()

    def runs(self) -> list[str]:
        """The names of all runs in the file, oldest first."""
        return [name for (name,) in self._rows("SELECT name FROM run ORDER BY id")]

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

    def totals(self, run: str) -> Totals:
        """The run's ledger, added up over all its sessions."""
        number = self._id(run)
        outcomes: Counter[str] = Counter()
        models: defaultdict[str, Tally] = defaultdict(Tally)
        roles: defaultdict[str, Tally] = defaultdict(Tally)
        total = Tally()
        for model, role, outcome, calls, *sums in self._rows(_GROUPS, number):
            tally = Tally(
                calls=calls,
                ok=calls if outcome == "ok" else 0,
                **dict(zip(Tally.__struct_fields__[2:], sums, strict=True)),
            )
            outcomes[outcome] += calls
            models[model] += tally
            roles[role] += tally
            total += tally
        ((answers,),) = self._rows(_ANSWERS, number)
        return Totals(
            all=total,
            outcomes=dict(outcomes),
            by_model=dict(models),
            by_role=dict(roles),
            answers=answers,
            wasted=total.calls - outcomes["open"] - answers,
        )

    def upstreams(self, run: str) -> dict[str, dict[str, int]]:
        """How attempts ended at each upstream: `ok`, the code of the error, or `open` when they are not settled."""
        found: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for upstream, ended, count in self._rows(_UPSTREAMS, self._id(run)):
            found[upstream][ended] = count
        return dict(found)

    def items(self, run: str) -> Iterator[ItemRecord]:
        """Every result in the order in which the items were first claimed; a page at a time is in memory."""
        number, last = self._id(run), 0
        while rows := self._rows(_ITEMS, number, last):
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
        rows = self._rows("SELECT id FROM run WHERE name = ?", run)
        if not rows:
            raise StoreError(f"{self._path} holds no run {run!r}; it holds: {', '.join(self.runs()) or 'none'}")
        return int(rows[0][0])

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error
