"""`siafu batch run` over two upstreams, of which one is killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from processes import wait_until
from siafu.store.report import Report
from sim import running_sim

from .front import PLAIN, siafu

LINES = 300
SETTINGS = """
[limits]
concurrency = 30
[upstreams."부산"]
base_url = "{first}"
[upstreams."서울"]
base_url = "{second}"
[prices.m]
input = 1
output = 2
date = 2026-01-01
"""


def requests() -> str:
    body = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "환불해 주세요"}]}
    return "".join(json.dumps({"custom_id": f"q{n}", "body": body}) + "\n" for n in range(LINES))


def test_an_upstream_is_killed_in_the_middle_and_every_line_is_answered_once(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    (tmp_path / "in.jsonl").write_text(requests(), encoding="utf-8")
    with running_sim(latency="fixed:100ms") as first, running_sim(seed=1, latency="fixed:100ms") as second:
        settings = SETTINGS.format(first=first.url, second=second.url)
        (tmp_path / "siafu.toml").write_text(settings, encoding="utf-8")
        command = [sys.executable, "-m", "siafu", "batch", "run", "in.jsonl", "--out", "out.jsonl", "--budget", "1 USD"]
        run = subprocess.Popen(command, cwd=tmp_path, env=PLAIN, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            wait_until(lambda: run.poll() is not None or (out.exists() and out.read_bytes().count(b"\n") >= 60), 60)
            os.kill(first.pid, signal.SIGKILL)
            told = run.communicate(timeout=60)[1].decode()
        finally:
            run.kill()
            run.wait()
        answered_by_second = second.stats()["completed"]
        status = siafu(tmp_path, "batch", "status", "out.jsonl", "--json")
        doctor = siafu(tmp_path, "doctor", "--json")
    assert run.returncode == 0, told
    assert "부산: " in told and "서울: " not in told

    ids = Counter(json.loads(line)["custom_id"] for line in out.read_bytes().splitlines())
    assert ids == {f"q{n}": 1 for n in range(LINES)}
    calls = _calls(next((tmp_path / ".siafu").rglob("*.db")))
    answers = Counter(task for task, _, outcome, _ in calls if outcome == "ok")
    assert len(answers) == LINES and set(answers.values()) == {1}  # nothing is billed twice
    at = Counter((upstream, outcome) for _, upstream, outcome, _ in calls)
    assert at["부산", "ok"] >= 20 and at["부산", "failed"] >= 1, "killed before or after the run"
    assert at["서울", "ok"] == answered_by_second == LINES - at["부산", "ok"] and not at["서울", "failed"]
    assert any(known is False for _, upstream, _, known in calls if upstream == "부산")  # in flight: as an interval

    found = json.loads(status.stdout)
    assert (found["finished"], found["failed"], found["left"]) == (LINES, 0, 0)
    assert found["usd"] < found["usd_at_most"]
    assert found["upstreams"]["부산"]["ok"] == at["부산", "ok"] and set(found["upstreams"]) == {"부산", "서울"}
    checks = {row["check"]: row["state"] for row in json.loads(doctor.stdout)["checks"]}
    assert (checks["endpoint 부산"], checks["endpoint 서울"]) == ("fail", "ok")


def _calls(journal: Path) -> list[tuple[str, str, str, bool | None]]:
    """(item, upstream, outcome, whether its usage is known) of every attempt."""
    with Report(journal) as report:
        (run,) = report.runs()
        found = [call for item in report.items(run) for call in report.calls(run, item.key)]
    return [
        (each.opened.task, each.opened.upstream, each.settled.outcome, each.settled.usage_known)
        if each.settled
        else (each.opened.task, each.opened.upstream, "open", None)
        for each in found
    ]
