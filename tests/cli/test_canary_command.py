"""`siafu canary` as a process, beside a run over two upstreams: on to the end, and back when the new side fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from processes import wait_until
from siafu.cli.main import main
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
START = ("canary", "start", "--from", "기존", "--to", "new", "--stages", "50,100", "--window", "1s", "--slower", "5",
         "--stop-slower", "50", "--min-samples", "1")  # fmt: skip
Here = Callable[..., tuple[int, str, str]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Runs a command in this process, in the folder of the test: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ.keys() - PLAIN.keys():
        monkeypatch.delenv(name)

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def found_by(here: Here, *words: str, code: int = 0) -> Any:
    ended, out, err = here(*words, "--json")
    assert ended == code, err
    return json.loads(out)


def write(folder: Path, name: str, lines: int) -> None:
    body = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "환불해 주세요"}]}
    text = "".join(json.dumps({"custom_id": f"{name}{n}", "body": body}) + "\n" for n in range(lines))
    (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def answered_once(folder: Path, name: str, lines: int) -> bool:
    ids = Counter(json.loads(line)["custom_id"] for line in (folder / f"{name}.out").read_bytes().splitlines())
    return ids == {f"{name}{n}": 1 for n in range(lines)}


def test_a_canary_goes_on_to_its_end_and_the_next_one_back(tmp_path: Path, here: Here) -> None:
    with running_sim(latency="fixed:100ms") as old, running_sim(seed=1, latency="fixed:100ms") as new:
        (tmp_path / "siafu.toml").write_text(SETTINGS.format(old=old.url, new=new.url), encoding="utf-8")
        _promoted(tmp_path, here, new)
        _rolled_back(tmp_path, here, new)


def _promoted(folder: Path, here: Here, new: Sim) -> None:
    """It is started while the run goes on, and the run carries it to its end."""
    assert found_by(here, "canary", "status") == {"state": "none"}
    write(folder, "a", 2500)
    out = folder / "a.out"
    command = [sys.executable, "-m", "siafu", "batch", "run", "a.jsonl", "--out", "a.out"]
    run = subprocess.Popen(command, cwd=folder, env=PLAIN, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: run.poll() is not None or (out.exists() and out.read_bytes().count(b"\n") >= 30), 60)
        assert new.stats()["completed"] == 0  # of a higher tier: nothing goes there yet
        started = found_by(here, *START)
        assert (started["state"], started["percent"], started["from"], started["to"]) == ("running", 50, "기존", "new")
        assert here(*START)[0] == 2
        told = run.communicate(timeout=90)[1].decode()
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 0 and answered_once(folder, "a", 2500), told
    assert "promoted" in told
    found = found_by(here, "canary", "status")
    assert [each["percent"] for each in found["history"]] == [50, 100, 100] and found["state"] == "promoted"
    assert found["new"]["success"] == 1.0 and found["new"]["usd_per_task"] == found["old"]["usd_per_task"] > 0
    assert 0.09 < found["new"]["p50_seconds"] < 10

    groups = found_by(here, "cost", "report", "--by", "bucket", "--by", "key")["groups"]
    calls = {(each["bucket"], each["key"]): each["calls"] for each in groups}
    assert set(calls) == {("", "기존#1"), ("1/old", "기존#1"), ("1/new", "new#1")} and sum(calls.values()) == 2500
    assert calls["1/new", "new#1"] == new.stats()["completed"]


def _rolled_back(folder: Path, here: Here, new: Sim) -> None:
    """The next one fails half of its calls: it goes back by itself, and every line is answered nevertheless."""
    assert "siafu canary retire" in here(*START)[2]
    assert found_by(here, "canary", "retire")["state"] == "retired"
    assert found_by(here, *START)["state"] == "running"
    new.set_faults(rates="500:50%")
    write(folder, "b", 400)
    done = siafu(folder, "batch", "run", "b.jsonl", "--out", "b.out")
    assert done.returncode == 0 and answered_once(folder, "b", 400), done.stderr
    found = found_by(here, "canary", "status", code=1)
    assert found["state"] == "rolled_back" and "calls failed" in found["reason"]
    code, told, _ = here("canary", "status")
    assert code == 1 and "rolled back; everybody gets 기존" in told and "USD a task" in told

    before = new.stats()["requests"]
    write(folder, "c", 50)
    assert siafu(folder, "batch", "run", "c.jsonl", "--out", "c.out").returncode == 0
    assert new.stats()["requests"] == before and answered_once(folder, "c", 50)


def test_what_cannot_be_done_is_said(tmp_path: Path, here: Here) -> None:
    settings = SETTINGS.format(old="http://127.0.0.1:9/v1", new="http://127.0.0.1:9/v1")
    (tmp_path / "siafu.toml").write_text(settings, encoding="utf-8")
    for words, code, told in (
        ((*START, "--stages", "50,25,100"), 2, "rising whole numbers"),
        ((*START, "--stages", "100"), 2, "rising whole numbers"),
        ((*START, "--stages", "5,50"), 2, "rising whole numbers"),
        ((*START, "--dearer", "3", "--stop-dearer", "2"), 2, "below what --dearer allows"),
        ((*START, "--window", "soon"), 2, "no duration"),
        (("canary", "promote"), 2, "no canary"),
        (("canary", "status"), 0, "no canary"),
    ):
        ended, out, err = here(*words)
        assert ended == code and told in out + err
    assert not (tmp_path / ".siafu").exists()
    code, out, err = here(*START)
    assert code == 0 and "calls of each side are asked for" in err and "tested once, at" in out
    code, _, err = here("canary", "retire")
    assert code == 2 and "running cannot be retired" in err
    assert "by hand: 사유" in here("canary", "promote", "--reason", "사유")[1]
    assert "promoted" in here("canary", "promote")[1]
    assert here("canary", "rollback")[0] == 0
    assert here("canary", "status")[0] == 1
