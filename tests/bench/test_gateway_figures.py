"""Percentiles, self-checks and ratios of `siafu bench gateway`."""

from __future__ import annotations

from typing import Any

import pytest

from siafu.bench.gateway.figures import RAW, Run, nearest_rank, ratios, rows
from siafu.errors import MeasurementInvalid


def run(client: str = RAW, *, latency: float = 0.2, cpu: float = 0.03, **fields: Any) -> Run:
    """Ten agents that made ten calls each, without a pause."""
    usual: dict[str, Any] = {
        "client": client, "agents": 10, "calls": 100, "answered": [latency] * 100, "busy": 100 * latency, "errors": 0,
        "first_error": "", "cpu": cpu, "wall": 10 * latency, "rss": 50 * 2**20, "server_calls": 100,
        "service_ms": 200.0,
    }  # fmt: skip
    return Run(**{**usual, **fields})


@pytest.mark.parametrize(
    ("samples", "percent", "expected"),
    [
        (range(1, 101), 50, 50),
        (range(1, 101), 95, 95),
        (range(1, 101), 99, 99),
        (range(100, 0, -1), 99, 99),
        (range(1, 102), 50, 51),
        (range(1, 1001), 99.9, 999),
        ([7], 50, 7),
        ([7], 99, 7),
        ([1, 2], 50, 1),
        ([1, 2], 51, 2),
        ([3, 1, 2], 0, 1),
    ],
)
def test_f51_percentiles_are_by_nearest_rank(samples: list[float], percent: float, expected: float) -> None:
    assert nearest_rank(list(samples), percent) == expected


def test_a_run_that_adds_up_passes() -> None:
    run().check()
    run(answered=[0.2] * 98, errors=2, server_calls=99).check()  # an error may have happened before it was sent


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"server_calls": 99}, "server counted 99"),
        ({"server_calls": 101}, "server counted 101"),
        ({"answered": [0.2] * 90, "errors": 10, "server_calls": 89}, "server counted 89"),
        ({"answered": [0.2] * 99}, "99 answers"),
        ({"busy": 25.0}, "12.5 calls in flight"),  # more than ten agents can have
        ({"busy": 10.0}, "5.0 calls in flight"),
    ],
)
def test_a_run_that_does_not_add_up_is_refused(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(MeasurementInvalid, match=word):
        run(**fields).check()


def test_rows_are_medians_with_extremes_and_sums() -> None:
    (row,) = rows([run(cpu=0.03), run(cpu=0.05), run(cpu=0.04)], 200.0)
    assert (row["client"], row["concurrency"], row["upstream_ms"], row["runs"]) == (RAW, 10, 200.0, 3)
    assert (row["calls"], row["server_calls"], row["errors"], row["rss_mb"]) == (300, 300, 0, 50.0)
    assert (row["cpu_ms_per_call"], row["min"]["cpu_ms_per_call"], row["max"]["cpu_ms_per_call"]) == (0.4, 0.3, 0.5)
    assert (row["p50_ms"], row["p95_ms"], row["p99_ms"], row["calls_per_s"]) == (200.0, 200.0, 200.0, 50.0)


def test_ratios_are_to_raw_in_the_same_repeat() -> None:
    pairs = [(0.02, 0.04), (0.04, 0.06), (0.03, 0.09)]
    runs = [one for raw, own in pairs for one in (run(cpu=raw), run("siafu", cpu=own, latency=0.25))]
    found = ratios(runs)["10"]
    base, cpu, p50 = found[RAW]["cpu"], found["siafu"]["cpu"], found["siafu"]["p50"]
    upstream = found["siafu"]["p50_of_upstream"]
    assert base is not None and cpu is not None and p50 is not None and upstream is not None
    assert base.median == 1.0
    assert (cpu.median, cpu.min, cpu.max) == pytest.approx((2.0, 1.5, 3.0))
    assert p50.median == upstream.median == pytest.approx(1.25)


def test_clients_with_fewer_runs_are_compared_with_the_first_repeats() -> None:
    runs = [run(cpu=0.02), run("other", cpu=0.2), run(cpu=0.04)]
    cpu = ratios(runs)["10"]["other"]["cpu"]
    assert cpu is not None
    assert (cpu.median, cpu.min, cpu.max) == pytest.approx((10.0, 10.0, 10.0))


def test_without_an_answer_there_is_no_latency() -> None:
    failed = run("other", answered=[], errors=100, first_error="no", service_ms=None, server_calls=0, busy=15.0)
    failed.check()
    (row,) = rows([failed], 200.0)
    assert (row["p50_ms"], row["calls_per_s"], row["errors"], row["first_error"]) == (None, 0.0, 100, "no")
    found = ratios([run(), failed])["10"]["other"]
    assert (found["p50"], found["p50_of_upstream"]) == (None, None)
