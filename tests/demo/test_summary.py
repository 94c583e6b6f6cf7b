from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from demo.test_account import REFUSED, call
from siafu.bench.demo.notes import Amounts, ResultLine
from siafu.bench.demo.summary import by_category, nearest_rank, parallel


@pytest.mark.parametrize(
    ("values", "percent", "found"),
    [([1], 50, 1), ([1, 2], 50, 1), ([1, 2, 3], 50, 2), (range(1, 101), 95, 95), (range(1, 101), 99, 99), ([7], 99, 7)],
)
def test_nearest_rank(values: Any, percent: int, found: float) -> None:
    assert nearest_rank(list(values), percent) == found


def line(number: int, category: str | None = "refund", **changes: Any) -> ResultLine:
    values: dict[str, Any] = {
        "id": f"r{number}",
        "status": "ok",
        "category": category,
        "latency_ms": number,
        "tokens": Amounts(input=10, output=1),
        "usd": Decimal("0.000001"),
    }
    return ResultLine(**{**values, **changes})


def test_by_category() -> None:
    rows = by_category([line(1), line(3), line(2, "shipping"), line(9, status="error")])
    assert [(row.category, row.count, row.p50, row.p99, row.input_tokens, row.usd_pico) for row in rows] == [
        ("refund", 2, 1, 3, 20, 2_000_000),
        ("shipping", 1, 2, 2, 10, 1_000_000),
        ("all", 3, 2, 3, 30, 3_000_000),
    ]
    assert by_category([line(1, usd=None), line(2)])[0].usd_pico is None
    assert by_category([]) == []


def test_what_working_in_parallel_was_worth() -> None:
    calls = [
        call(1.0, question="sort", service_seconds=2.0, final=False),
        call(3.0, question="first", service_seconds=3.0, final=False, wants_tools=True),
        call(4.0, question="last", **REFUSED),
        call(4.2, question="last", **REFUSED),
        call(5.0, question="last", service_seconds=5.0),
        call(6.0, question="last", service_seconds=50.0),  # a repetition replaces no work
        call(1.0, "r2", "other", service_seconds=10.0),
        call(1.0, "r3", "never", **REFUSED),
    ]
    found = parallel(calls, wall=4.0, peak=2)
    assert (found.serial_seconds, found.speed_up, found.peak) == (20.0, 5.0, 2)
    assert found.critical_steps == 4  # sort, first, its tool calls, last
    assert (found.refusals, found.waited_out, found.waited_seconds) == (3, 1, 1.0)
    assert parallel([], wall=1.0, peak=0).critical_steps == 0
