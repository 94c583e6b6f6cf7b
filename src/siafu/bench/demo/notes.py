"""What a program wrote down itself: its results, and its cost records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

import msgspec

from siafu.bench.demo.account import Notes, Paid
from siafu.bench.demo.seen import Tokens
from siafu.store.report import Report

_Kind = TypeVar("_Kind", bound=msgspec.Struct)


class Amounts(msgspec.Struct, frozen=True):
    input: int = 0
    cached: int = 0
    output: int = 0


class Failure(msgspec.Struct, frozen=True):
    code: str = "unknown"


class ResultLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a results file; what a program does not write keeps its default. usd: None = unknown."""

    id: str
    status: str
    category: str | None = None
    tool_calls: int = 0
    latency_ms: float = 0
    tokens: Amounts = Amounts()
    usd: Decimal | None = None
    steps: int = 0
    outcome: str = ""
    flagged: str = ""
    error: Failure | None = None


class _LogLine(msgspec.Struct):
    usage: Tokens
    model: str


def results(file: Path) -> list[ResultLine]:
    """The results in a file; lines that are none are passed over, and no file is no results."""
    return list(_lines(file, ResultLine))


def answers(lines: Iterable[ResultLine]) -> Counter[str]:
    """How many answers there are for each id."""
    return Counter(line.id for line in lines if line.status == "ok")


def from_log(file: Path) -> Notes:
    """The cost records of a script: lines of its output like {"usage": {...}, "model": "..."}."""
    known: Counter[Paid] = Counter()
    for line in _lines(file, _LogLine):
        usage = line.usage.usage()
        known[(line.model, usage.input, usage.cached, usage.output)] += 1
    return Notes(known=known)


def from_ledger(report: Report, run: str, requests: Iterable[str]) -> Notes:
    """The cost records of siafu: the ledger of a run. A line that was never settled has an unknown usage, too."""
    known: Counter[Paid] = Counter()
    unknown: list[tuple[str, int]] = []
    for request in requests:
        for call in report.calls(run, request):
            end = call.settled
            if end is None or not end.usage_known:
                unknown.append((call.opened.model, call.opened.reserved_pico or 0))
            elif end.outcome == "ok":
                known[(call.opened.model, end.input_tokens, end.cached_tokens, end.output_tokens)] += 1
    return Notes(known=known, unknown=unknown)


def _lines(file: Path, kind: type[_Kind]) -> Iterator[_Kind]:
    if not file.exists():
        return
    for line in file.read_bytes().splitlines():
        try:
            yield msgspec.json.decode(line, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):  # other output, or a line that was cut by the kill
            continue
