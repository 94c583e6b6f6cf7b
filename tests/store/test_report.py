"""What a report says of a run, by hand-made ledgers whose sums can be seen."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from siafu.errors import StoreError
from siafu.store import report
from siafu.store.report import Call, Report, Session
from siafu.store.spending import Spending, Sums
from siafu.store.sqlite import SqliteStore

from .rows import item, opened, settled

# attempt, its opened half, its settled half (None: still open)
LEDGER: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
    ("a1", {"role": "classifier", "model": "big", "task": "가"}, {"usd_pico": 10, "input_tokens": 100}),
    ("a2", {"task": "가", "step": "#1"}, {"outcome": "refused", "status": 429, "code": "rate_limited", "usd_pico": 0}),
    ("a3", {"task": "가", "step": "#1"}, {"outcome": "failed", "usage_known": False, "usd_pico": 500}),
    ("a4", {"task": "가", "step": "#1"}, {"usd_pico": 4, "input_tokens": 50, "cached_tokens": 30, "output_tokens": 5}),
    ("a5", {"task": "나"}, {"usd_pico": 4, "served_model": "m-2026", "output_tokens": 7}),
    ("a6", {"task": "나"}, {"usd_pico": 4}),  # asked again: the answer of a5 was lost
    ("a7", {"task": "다", "reserved_pico": None}, {"usd_pico": None}),  # no price
    ("a8", {"task": "다", "step": "#1", "reserved_pico": 70}, None),
    ("a9", {"task": "", "step": ""}, {"usd_pico": 1}),
    ("b0", {"task": "", "step": ""}, {"usd_pico": 1}),
]  # fmt: skip


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    path = tmp_path / "run.db"
    run = SqliteStore(path, wall=lambda: 2000.0).run("r")
    await run.begin("w")
    for attempt, opening, settling in LEDGER:
        await run.ledger.open(opened(attempt, **opening))
        if settling is not None:
            run.ledger.settle(settled(attempt, **settling))
    await run.claim([(f"항목-{n}", "in") for n in range(1201)])
    for n in range(1200):
        await run.record(item(f"항목-{n}", status="error" if n % 100 == 0 else "ok"))
    await run.aclose()
    return path


def test_totals(path: Path) -> None:
    with Spending(path) as ledger:
        total = ledger.total("r")
        by_fate, by_model, by_role = fates(ledger), sums(ledger, "model"), sums(ledger, "role")
    assert total == Sums(
        calls=10, answers=6, wasted=3, input_tokens=150, cached_tokens=30, output_tokens=12, usd_pico=24, unknown=2,
        unknown_pico=570, unpriced=1, hits=1, wasted_pico=4, wasted_unknown_pico=500,
    )  # fmt: skip
    assert by_fate == {"answer": 6, "repeated": 1, "refused": 1, "failed": 1, "open": 1}
    assert {name: found.calls for name, found in by_model.items()} == {"big": 1, "m": 8, "m-2026": 1}
    assert by_role["classifier"] == Sums(calls=1, answers=1, input_tokens=100, usd_pico=10)
    assert by_role["writer"].calls == 9


def fates(ledger: Spending) -> Counter[str]:
    return sum((Counter({part.fate: part.sums.calls}) for part in ledger.parts((), run="r")), Counter[str]())


def sums(ledger: Spending, by: str) -> dict[str, Sums]:
    found: defaultdict[str, Sums] = defaultdict(Sums)
    for part in ledger.parts([by], run="r"):
        found[part.key[0]] += part.sums
    return found


def test_a_run_that_is_not_there_has_cost_nothing_and_cannot_be_reported(path: Path) -> None:
    with Spending(path) as ledger:
        assert ledger.total("x") == Sums()
    with Report(path) as reader, pytest.raises(StoreError, match="holds no run 'x'; it holds: r"):
        reader.upstreams("x")


def test_every_attempt_of_one_item(path: Path) -> None:
    with Report(path) as reader:
        calls = reader.calls("r", "가")
        still_open = reader.calls("r", "다")[1]
        assert reader.calls("r", "none") == []
    expected = [(name, o, s) for name, o, s in LEDGER if o["task"] == "가"]
    assert calls == [Call(opened=opened(n, **o), settled=settled(n, **(s or {}))) for n, o, s in expected]
    assert still_open == Call(opened=opened("a8", **LEDGER[7][1]), settled=None)


def test_results_come_in_the_order_of_their_claim_a_page_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = []
    rows = Report._rows

    def counted(self: Report, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        pages.append(len(found := list(rows(self, statement, *values))))
        return found

    monkeypatch.setattr(Report, "_rows", counted)
    with Report(path) as reader:
        assert [result.key for result in reader.items("r")] == [f"항목-{n}" for n in range(1200)]
    assert max(pages) == report.PAGE


def test_counts_by_status_and_sessions(path: Path) -> None:
    with Report(path) as reader:
        assert reader.statuses("r") == {"ok": 1188, "error": 12, "unfinished": 1}
        (session,) = reader.sessions("r")
        assert reader.runs() == ["r"]
    assert session == Session(session=1, pid=session.pid, work_print="w", began_at=2000.0, ended_at=2000.0)


async def test_a_report_on_a_run_at_work(path: Path) -> None:
    run = SqliteStore(path).run("r")
    await run.begin("w")
    with Report(path) as reader, Spending(path) as ledger:
        assert fates(ledger)["abandoned"] == 1
        assert reader.calls("r", "다")[1].settled is not None
        assert reader.sessions("r")[1].ended_at is None
        await run.record(item("new"))
        assert reader.statuses("r")["ok"] == 1189
    await run.aclose()


def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none\.db"):
        Report(tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []


async def test_how_attempts_ended_at_each_upstream(tmp_path: Path) -> None:
    run = SqliteStore(tmp_path / "run.db").run("r")
    await run.begin("w")
    endings: list[dict[str, Any] | None] = [{"outcome": "ok"}, {"outcome": "failed", "code": "unreachable"}, None]
    for number, ending in enumerate([*endings, *endings]):
        await run.ledger.open(opened(f"a{number}", upstream="부산" if number else "seoul"))
        if ending is not None:
            run.ledger.settle(settled(f"a{number}", **ending))
    await run.aclose()
    with Report(tmp_path / "run.db") as reader:
        assert reader.upstreams("r") == {"seoul": {"ok": 1}, "부산": {"unreachable": 2, "open": 2, "ok": 1}}
