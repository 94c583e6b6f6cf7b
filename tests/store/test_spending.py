"""Sums of a ledger by anything: exactly those of its lines, however many there are."""

from __future__ import annotations

import os
import sqlite3
import tracemalloc
from contextlib import closing
from itertools import product
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from siafu.errors import StoreError
from siafu.store import schema
from siafu.store.records import DOUBTFUL
from siafu.store.report import Report
from siafu.store.spending import DIMENSIONS, Spending, Sums, journals
from siafu.store.sqlite import SqliteStore

from .rows import opened, settled

DAY = 86_400.0
LEDGER: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
    ("a1", {"role": "classify"}, {
        "usd_pico": 10, "input_tokens": 100, "cached_tokens": 30, "cache_write_tokens": 5, "saved_pico": -12,
        "code": DOUBTFUL,
    }),
    ("a2", {"step": "#1"}, {"outcome": "refused", "code": "rate_limited", "usd_pico": 0}),
    ("a3", {"step": "#1"}, {"outcome": "abandoned", "code": "call_timeout", "usage_known": False, "usd_pico": 500}),
    ("a4", {"step": "#1"}, {"usd_pico": 3, "output_tokens": 9, "reasoning_tokens": 4}),
    ("a5", {"step": "#1", "opened_at": 1000.0 + DAY}, {"usd_pico": 4}),  # asked again
    ("a6", {"step": ""}, {"usd_pico": 1}),
    ("a7", {"step": ""}, {"usd_pico": 1}),
    ("a8", {"step": "#2", "reserved_pico": None}, {"usd_pico": None, "served_model": "m-2026"}),
    ("a9", {"step": "#3", "reserved_pico": 70}, None),
]  # fmt: skip


async def write(path: Path, lines: Any) -> Path:
    run = SqliteStore(path).run("실행")
    await run.begin("work")
    for attempt, opening, settling in lines:
        await run.ledger.open(opened(attempt, **opening))
        if settling is not None:
            run.ledger.settle(settled(attempt, **settling))
    await run.aclose()
    return path


async def test_parts_add_up_by_hand(tmp_path: Path) -> None:
    path = await write(tmp_path / "run.db", LEDGER)
    with Spending(path) as ledger:
        (*parts,) = ledger.parts(())
        late = sum((part.sums for part in ledger.parts((), since=1000.0 + DAY)), Sums())
        early = sum((part.sums for part in ledger.parts((), until=1000.0 + DAY)), Sums())
        by_model = {part.key[0] for part in ledger.parts(("model",))}
        by_day = {part.key for part in ledger.parts(("day", "role"))}
    fates = {(part.fate, part.code): part.sums.calls for part in parts}
    assert fates == {
        ("answer", ""): 4, ("answer", DOUBTFUL): 1,
        ("repeated", ""): 1, ("refused", "rate_limited"): 1, ("abandoned", "call_timeout"): 1,
        ("open", ""): 1,
    }  # fmt: skip
    total = sum((part.sums for part in parts), Sums())
    assert total == Sums(
        calls=9, answers=5, wasted=3, input_tokens=100, cached_tokens=30, cache_write_tokens=5, output_tokens=9,
        reasoning_tokens=4, usd_pico=19, unknown=2, unknown_pico=570, unpriced=1, hits=1, saved_pico=-12, doubtful=1,
        wasted_pico=3, wasted_unknown_pico=500,
    )  # fmt: skip
    assert total.fresh_tokens == 70 and late + early == total and (late.calls, late.usd_pico) == (1, 4)
    assert by_model == {"m", "m-2026"}
    assert by_day == {("1970-01-01", "classify"), ("1970-01-01", "writer"), ("1970-01-02", "writer")}


async def test_what_a_run_has_done_and_what_was_measured(tmp_path: Path) -> None:
    path = await write(tmp_path / "run.db", LEDGER)
    with Spending(path) as ledger:
        assert sorted(call.input for call in ledger.measured("실행")) == [0, 0, 0, 0, 100]
        assert (ledger.work("실행").tasks, ledger.work("none").tasks) == (1, 0)
        assert ledger.work("실행").seconds >= 0 and ledger.seconds_per_call("none") is None
        assert (ledger.runs(), ledger.runs("work"), ledger.runs("other")) == (["실행"], ["실행"], [])


def many(path: Path, lines: int) -> tuple[int, int]:
    """Write so many lines at once; returns the cost of those whose usage is known, and what others may cost at most."""
    rng, known, unknown = Random(3), 0, 0
    with closing(sqlite3.connect(path)) as db:
        for number in range(lines):
            usd, sure = rng.randrange(10**9), rng.random() < 0.95
            known, unknown = known + usd * sure, unknown + 2 * usd * (not sure)
            db.execute(
                "INSERT INTO attempt (attempt, run, task, step, agent, role, upstream, model, opened_at, reserved_pico,"
                " outcome, usage_known, usd_pico) VALUES (?, 1, ?, '#0', '', ?, 'u', ?, ?, ?, 'ok', ?, ?)",
                (f"x{number}", f"t{number // 2}", f"role{number % 7}", f"모델{number % 5}", number * 10.0, 2 * usd,
                 sure, usd if sure else 2 * usd),
            )  # fmt: skip
        db.commit()
    return known, unknown


async def test_twenty_thousand_lines_add_up_exactly_in_little_memory(tmp_path: Path) -> None:
    path = await write(tmp_path / "run.db", [])
    known, unknown = many(path, 20_000)
    names = list(DIMENSIONS)
    with Spending(path) as ledger:
        tracemalloc.start()
        for by in [(), *product(names[:2], names[2:]), tuple(names[:5])]:
            total = sum((part.sums for part in ledger.parts(by)), Sums())
            assert (total.calls, total.usd_pico, total.unknown_pico) == (20_000, known, unknown)
            assert total.wasted == 10_000  # every step was answered twice
        measured = sum(1 for _ in ledger.measured("실행"))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert 9_000 < measured < 10_000 and peak < 1_000_000


async def test_journals_of_a_home(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    ours = await write(tmp_path / "first.db", [])
    second = await write(tmp_path / "runs" / "b.bak-1.db", [])
    sqlite3.connect(tmp_path / "shop.db").execute("CREATE TABLE t (a)").connection.close()
    (tmp_path / "torn.db").write_bytes(b"no database at all, but who knows what it was" * 100)
    assert journals(tmp_path) == [ours, second, tmp_path / "torn.db"]
    with pytest.raises(StoreError):
        Spending(tmp_path / "torn.db")


async def test_by_key_bucket_and_client(tmp_path: Path) -> None:
    """A client is known in the run of `siafu serve` only: elsewhere a task may be called anything."""
    for name in ("serve", "other"):
        run = SqliteStore(tmp_path / f"{name}.db").run(name)
        await run.begin("work")
        for attempt, task, bucket in (
            ("a1", "key_1/req_1", "3/new"),
            ("a2", "key_1/req_1", "3/fallback"),
            ("a3", "t/x", ""),
        ):
            await run.ledger.open(opened(attempt, task=task, step="", bucket=bucket, key="seoul#2"))
            run.ledger.settle(settled(attempt, usd_pico=1))
        await run.aclose()
    with Spending(tmp_path / "serve.db") as ledger:
        assert {part.key: part.sums.calls for part in ledger.parts(("key", "client"))} == {
            ("seoul#2", ""): 1,
            ("seoul#2", "key_1"): 2,
        }
        assert {part.key[0] for part in ledger.parts(("bucket",))} == {"", "3/new", "3/fallback"}
    with Spending(tmp_path / "other.db") as ledger:
        assert {part.key[0] for part in ledger.parts(("client",))} == {""}


@pytest.mark.parametrize("version", range(1, len(schema.MIGRATIONS)))
async def test_a_ledger_of_a_version_before_can_be_read_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    path = tmp_path / "old.db"
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:version])
        run = SqliteStore(path).run("r")
        await run.begin("work")
        await run.aclose()
    with closing(sqlite3.connect(path)) as db:
        db.execute(
            "INSERT INTO attempt (attempt, run, task, step, agent, role, upstream, model, opened_at)"
            " VALUES ('a', 1, 't', '', '', '', 'u', 'm', 1.0)"
        )
        db.commit()
    with Spending(path) as ledger:
        assert [(part.key, part.sums.calls) for part in ledger.parts(("upstream", "key", "bucket"))] == [
            (("u", "", ""), 1)
        ]
    with Report(path) as report:
        assert [call.opened.key for call in report.calls("r", "t")] == [""]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (version,)
    run = SqliteStore(path).run("r")  # resumed, it is brought up to date
    await run.begin("work")
    await run.ledger.open(opened("b", key="u#1"))
    await run.aclose()
    with Spending(path) as ledger:
        assert {part.key[0] for part in ledger.parts(("key",))} == {"", "u#1"}


@pytest.mark.parametrize("read_only", [True, False])
async def test_a_ledger_on_a_read_only_disk_is_read_without_a_log_beside_it(
    read_only: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, disk = await write(tmp_path / "run.db", LEDGER), os.statvfs(tmp_path)
    if read_only:
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=disk.f_flag | os.ST_RDONLY))
    with Spending(path) as ledger:
        assert ledger.total("실행").calls == len(LEDGER)
        assert path.with_name("run.db-shm").exists() is not read_only
