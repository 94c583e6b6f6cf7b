"""`siafu bench serve`: figures, and one small run of it with real servers and sockets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from siafu.bench.serve.figures import BARE, SIAFU, Run, ratios, rows
from siafu.bench.serve.load import found_tool
from siafu.errors import MeasurementInvalid

from .commands import bench


def run(server: str = BARE, **fields: Any) -> Run:
    """Four clients that got a hundred answers in two seconds."""
    usual: dict[str, Any] = {
        "server": server, "mode": "plain", "clients": 4, "answered": 100, "errors": 0, "seconds": 2.0, "p50_ms": 20.0,
        "p99_ms": 30.0, "cpu": 0.05, "upstream_calls": 102,
    }  # fmt: skip
    return Run(**{**usual, **fields})


def test_a_run_that_adds_up_passes() -> None:
    run().check()
    run(upstream_calls=100).check()
    run(upstream_calls=108).check()  # under way before and after


@pytest.mark.parametrize("calls", [0, 99, 109, 200])
def test_a_server_that_answers_by_itself_or_asks_twice_is_found_out(calls: int) -> None:
    with pytest.raises(MeasurementInvalid, match=f"counted {calls} calls"):
        run(upstream_calls=calls).check()


def test_a_server_that_answers_nothing_is_found_out() -> None:
    with pytest.raises(MeasurementInvalid, match="nothing was answered, 7 errors"):
        run(answered=0, errors=7).check()


def test_rows_are_medians_and_sums() -> None:
    (row,) = rows([run(cpu=0.05), run(cpu=0.09, errors=1), run(cpu=0.07)])
    assert (row["server"], row["mode"], row["runs"], row["answered"], row["errors"]) == (BARE, "plain", 3, 300, 1)
    assert (row["requests_per_s"], row["cpu_ms_per_request"], row["p50_ms"]) == (50.0, 0.7, 20.0)


def test_ratios_are_to_the_bare_server_in_the_same_repeat() -> None:
    pairs = [(100, 60), (100, 80), (200, 140)]
    runs = [each for bare, own in pairs for each in (run(answered=bare), run(SIAFU, answered=own, cpu=None))]
    found = ratios([*runs, run(mode="streamed"), run(SIAFU, mode="streamed")])
    assert found.keys() == {"plain", "streamed"}
    rate = found["plain"]["requests_per_s"]
    assert rate is not None
    assert (rate.median, rate.min, rate.max) == pytest.approx((0.7, 0.6, 0.8))
    assert found["plain"]["cpu_ms_per_request"] is None  # not told by the system


def test_wrk_is_missed_when_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert (found_tool("auto"), found_tool("own")) == ("own", "own")
    with pytest.raises(MeasurementInvalid, match="--load own"):
        found_tool("wrk")


def test_both_servers_are_measured_with_both_kinds_of_answers(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    small = ("--clients", "2", "--seconds", "0.4", "--repeats", "1", "--load", "own", "--html", str(page))
    ended = bench("serve", tmp_path, *small, "--json")
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    kinds = [(row["mode"], row["server"]) for row in report["rows"]]
    assert kinds == [(mode, server) for mode in ("plain", "streamed") for server in (BARE, SIAFU)]
    for row in report["rows"]:
        assert row["answered"] > 2 and row["errors"] == 0
        assert 5.0 <= row["p50_ms"] <= row["p99_ms"]
    assert report["ratios"].keys() == {"plain", "streamed"}
    assert "siafu serve" in page.read_text(encoding="utf-8")
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]  # the ledger is deleted
