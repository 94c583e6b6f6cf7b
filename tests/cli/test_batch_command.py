"""`siafu batch`: exit codes, what is printed where."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sim import running_sim

from . import front


def siafu(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return front.siafu(folder, "batch", *words, **env)


def requests(*ids: str, **body: Any) -> bytes:
    message = [{"role": "user", "content": "재고가 있나요?"}]
    rows = [{"custom_id": name, "body": {"model": "gpt-4.1-mini", "messages": message, **body}} for name in ids]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_a_file_is_run_resumed_and_looked_at(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(requests("a", "b") + b"no\n")
    ended = siafu(tmp_path, "run", "in.jsonl", "--out", "결과.jsonl", "--limit", "2", "--budget", "1 USD", "--json")
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert (summary["total"], summary["finished"], summary["left"], summary["calls"]) == (2, 2, 0, 2)
    assert 0 < summary["usd"] <= summary["usd_at_most"] < 0.01
    assert "SIMULATED" in ended.stderr

    ended = siafu(tmp_path, "run", "in.jsonl", "--out", "결과.jsonl")
    assert ended.returncode == 1
    assert "2 of 3 lines answered in 결과.jsonl\n1 failed, see 결과.errors.jsonl" in ended.stdout
    assert "line 3 is not valid JSON" in ended.stderr
    assert "SIMULATED" not in ended.stderr  # nothing was left to ask

    ended = siafu(tmp_path, "status", "결과.jsonl", "--json")
    found = json.loads(ended.stdout)
    assert (found["finished"], found["bad_lines"], found["left"], found["calls"]) == (2, 1, 0, 2)


def test_standard_input_is_read(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "siafu", "batch", "run", "-", "--out", "out.jsonl", "--quiet"]
    ended = subprocess.run(
        command, cwd=tmp_path, input=requests("a"), capture_output=True, env=front.PLAIN, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()
    assert len((tmp_path / "out.jsonl").read_bytes().splitlines()) == 1


def test_a_budget_ends_the_run_and_more_of_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(requests(*map(str, range(8)), max_tokens=100))
    run = ("run", "in.jsonl", "--out", "out.jsonl", "--concurrency", "1", "--json", "--budget")
    with running_sim() as sim:
        first = siafu(tmp_path, *run, "0.0003 USD", SIAFU_BASE_URL=sim.url)
        second = siafu(tmp_path, *run, "1 USD", SIAFU_BASE_URL=sim.url)
    assert first.returncode == 3, first.stderr
    summary = json.loads(first.stdout)
    assert 0 < summary["finished"] < 8
    assert summary["left"] == 8 - summary["finished"]
    assert summary["stopped"] == "budget_reached"
    assert "to go on: " in first.stderr
    assert (second.returncode, json.loads(second.stdout)["calls"]) == (0, 8)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "in.jsonl", "--out", "in.jsonl"), "same file"),
        (("run", "none.jsonl", "--out", "out.jsonl"), "cannot read none.jsonl"),
        (("run", "in.jsonl", "--out", "."), "no regular file"),
        (("run", "in.jsonl", "--out", "-"), "go to a file"),
        (("run", "in.jsonl", "--out", "notes.txt"), "nothing was written"),
        (("run", "in.jsonl", "--out", "out.jsonl", "--budget", "much"), "US dollars"),
        (("run", "twice.jsonl", "--out", "out.jsonl", "--strict"), "line 2 has the id of line 1"),
        (("status", "out.jsonl"), "no run has written out.jsonl"),
        (("run", "in.jsonl"), "--out"),
    ],
)
def test_wrong_use_is_told_and_exits_with_2(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    (tmp_path / "in.jsonl").write_bytes(requests("a"))
    (tmp_path / "twice.jsonl").write_bytes(requests("a", "a"))
    (tmp_path / "notes.txt").write_bytes(b"my notes\n")
    ended = siafu(tmp_path, *words)
    assert ended.returncode == 2
    assert told in ended.stderr
    assert ended.stdout == ""
    assert (tmp_path / "notes.txt").read_bytes() == b"my notes\n"


def test_a_run_without_any_answer_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(requests("a", "b"))
    run = ("run", "in.jsonl", "--out", "out.jsonl", "--base-url")
    with running_sim(require_key=True) as sim:
        ended = siafu(tmp_path, *run, sim.url)
        assert ended.returncode == 2
        assert "this endpoint wants a key: set SIAFU_API_KEY" in ended.stderr
        ended = siafu(tmp_path, *run, sim.origin, SIAFU_API_KEY="sk-any-0123456789abcdef")
        assert ended.returncode == 1
        assert f"the API is at {sim.url}: set the base URL to that" in ended.stderr


def test_requests_of_customers_are_told_from_lines_of_a_batch(tmp_path: Path) -> None:
    customers = b'{"id": "r1", "customer": "kim", "text": "\xed\x99\x98\xeb\xb6\x88"}\n' * 3
    (tmp_path / "customers.jsonl").write_bytes(customers)
    ended = siafu(tmp_path, "run", "customers.jsonl", "--out", "out.jsonl")
    assert ended.returncode == 2 and ended.stderr.count("siafu support run") == 1 and "and 2 more" in ended.stderr
    (tmp_path / "batch.jsonl").write_bytes(requests("a", "b"))
    ended = front.siafu(tmp_path, "support", "run", "batch.jsonl", "--out", "out.jsonl")
    assert ended.returncode == 2 and ended.stderr.count("siafu batch run") == 1
    ended = front.siafu(tmp_path, "submit", "support", "batch.jsonl")
    assert ended.returncode == 1 and ended.stderr.count("siafu batch run") == 1 and "siafu worker" not in ended.stderr
    assert not (tmp_path / "out.jsonl").exists()


def test_check_tells_what_is_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(requests("a", "b") + b"\x1b[31mno\n")
    ended = siafu(tmp_path, "check", "in.jsonl")
    assert ended.returncode == 1
    assert "2 of 3 lines can be run" in ended.stdout
    assert "line 3" in ended.stdout
    assert "\x1b" not in ended.stdout
    assert json.loads(siafu(tmp_path, "check", "in.jsonl", "--json").stdout)["usable"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_f47_check_tells_of_an_id_that_stands_again(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(requests("a", "a", "b", "a"))
    ended = siafu(tmp_path, "check", "in.jsonl")
    assert ended.returncode == 1
    told = ended.stdout
    assert "2 of 4 lines can be run" in told
    assert "line 2 has the id of line 1" in told
    assert "line 4 has the id of line 1" in told
