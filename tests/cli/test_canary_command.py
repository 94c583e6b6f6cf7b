"""`siafu canary` as a process, beside a run over two upstreams: on to the end, and back when the new side fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from processes import wait_until
from sim import Sim, running_sim

from .front import PLAIN, siafu

SETTINGS = """
[limits]
concurrency = 30
[upstreams."기존"]
base_url = "{old}"
[upstreams.new]
base_url = "{new}"
tier = 2
[prices.m]
input = 1
output = 2
date = 2026-01-01
"""
# Both sides are the same machine, which others use as well: what it does to their times is no matter here.
START = ("canary", "start", "--from", "기존", "--to", "new", "--stages", "50,100", "--window", "1s", "--min-samples", "1",
         "--slower", "5", "--stop-slower", "50")  # fmt: skip


def canary(folder: Path, *words: str, code: int = 0) -> Any:
    done = siafu(folder, *words, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def write(folder: Path, name: str, lines: int) -> None:
    body = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "환불해 주세요"}]}
    text = "".join(json.dumps({"custom_id": f"{name}{n}", "body": body}) + "\n" for n in range(lines))
    (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def answered_once(folder: Path, name: str, lines: int) -> bool:
    ids = Counter(json.loads(line)["custom_id"] for line in (folder / f"{name}.out").read_bytes().splitlines())
    return ids == {f"{name}{n}": 1 for n in range(lines)}


def test_a_canary_goes_on_to_its_end_and_the_next_one_back(tmp_path: Path) -> None:
    with running_sim(latency="fixed:100ms") as old, running_sim(seed=1, latency="fixed:100ms") as new:
        (tmp_path / "siafu.toml").write_text(SETTINGS.format(old=old.url, new=new.url), encoding="utf-8")
        _promoted(tmp_path, new)
        _rolled_back(tmp_path, old, new)


def _promoted(folder: Path, new: Sim) -> None:
    """It is started while the run goes on, and the run carries it to its end."""
    assert canary(folder, "canary", "status") == {"state": "none"}
    write(folder, "a", 2500)
    out = folder / "a.out"
    command = [sys.executable, "-m", "siafu", "batch", "run", "a.jsonl", "--out", "a.out"]
    run = subprocess.Popen(command, cwd=folder, env=PLAIN, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: run.poll() is not None or (out.exists() and out.read_bytes().count(b"\n") >= 30), 60)
        assert new.stats()["completed"] == 0  # of a higher tier: nothing goes there yet
        started = canary(folder, *START)
        assert (started["state"], started["percent"], started["from"], started["to"]) == ("running", 50, "기존", "new")
        assert siafu(folder, *START).returncode == 2
        told = run.communicate(timeout=90)[1].decode()
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 0 and answered_once(folder, "a", 2500), told
    assert "promoted" in told
    found = canary(folder, "canary", "status")
    assert [each["percent"] for each in found["history"]] == [50, 100, 100] and found["state"] == "promoted"
    assert found["new"]["success"] == 1.0 and found["new"]["usd_per_task"] == found["old"]["usd_per_task"] > 0
    assert 0.09 < found["new"]["p50_seconds"] < 10

    groups = canary(folder, "cost", "report", "--by", "bucket", "--by", "key")["groups"]
    calls = {(each["bucket"], each["key"]): each["calls"] for each in groups}
    assert set(calls) == {("", "기존#1"), ("1/old", "기존#1"), ("1/new", "new#1")} and sum(calls.values()) == 2500
    assert calls["1/new", "new#1"] == new.stats()["completed"]


def _rolled_back(folder: Path, old: Sim, new: Sim) -> None:
    """The next one fails half of its calls: it goes back by itself, and every line is answered nevertheless."""
    assert "siafu canary retire" in siafu(folder, *START).stderr
    assert canary(folder, "canary", "retire")["state"] == "retired"
    assert canary(folder, *START)["state"] == "running"
    new.set_faults(rates="500:50%")
    write(folder, "b", 400)
    done = siafu(folder, "batch", "run", "b.jsonl", "--out", "b.out")
    assert done.returncode == 0 and answered_once(folder, "b", 400), done.stderr
    found = canary(folder, "canary", "status", code=1)
    assert found["state"] == "rolled_back" and "calls failed" in found["reason"]
    told = siafu(folder, "canary", "status")
    assert "rolled back; everybody gets 기존" in told.stdout and "USD a task" in told.stdout

    before = new.stats()["requests"]
    write(folder, "c", 50)
    assert siafu(folder, "batch", "run", "c.jsonl", "--out", "c.out").returncode == 0
    assert new.stats()["requests"] == before and answered_once(folder, "c", 50)


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    (tmp_path / "siafu.toml").write_text(SETTINGS.format(old="http://127.0.0.1:9/v1", new="http://127.0.0.1:9/v1"))
    for words, told in (
        ((*START, "--stages", "50,25,100"), "rising whole numbers"),
        ((*START, "--stages", "100"), "rising whole numbers"),
        ((*START, "--stages", "5,50"), "rising whole numbers"),
        ((*START, "--stop-dearer", "1.1"), "below what --dearer allows"),
        ((*START, "--window", "soon"), "no duration"),
        (("canary", "promote"), "no canary"),
    ):
        done = siafu(tmp_path, *words)
        assert done.returncode == (0 if words[1] == "promote" else 2) and told in done.stdout + done.stderr
    assert not (tmp_path / ".siafu").exists()
    done = siafu(tmp_path, *START)
    assert done.returncode == 0 and "calls of each side are asked for" in done.stderr
    done = siafu(tmp_path, "canary", "retire")
    assert done.returncode == 2 and "running cannot be retired" in done.stderr
    assert "by hand: 사유" in siafu(tmp_path, "canary", "promote", "--reason", "사유").stdout
    assert "promoted" in siafu(tmp_path, "canary", "promote").stdout
    assert siafu(tmp_path, "canary", "rollback").returncode == 0
