"""`siafu batch run` without credit, or with an endpoint that fails: it pauses, says so, and goes on."""

from __future__ import annotations

import json
from pathlib import Path

from sim import running_sim

from .front import siafu

LINES = 60
SETTINGS = """
[endpoint]
base_url = "{url}"
[models]
default = "m"
[limits]
concurrency = 5
[patience]
quota_probe_seconds = 0.2
"""


def wanted(folder: Path, url: str, more: str = "") -> None:
    """The input and the settings."""
    body = {"model": "m", "messages": [{"role": "user", "content": "환불해 주세요"}]}
    lines = [json.dumps({"custom_id": f"q{n}", "body": body}) for n in range(LINES)]
    (folder / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "siafu.toml").write_text(SETTINGS.format(url=url) + more, encoding="utf-8")


def test_f04_used_up_credit_pauses_the_run_until_there_is_some_again(tmp_path: Path) -> None:
    with running_sim() as sim:
        wanted(tmp_path, sim.url)
        sim.set_faults({"kind": "quota", "times": 8})
        run = siafu(tmp_path, "batch", "run", "in.jsonl", "--out", "out.jsonl", "--json")
        stats = sim.stats()
    assert run.returncode == 0, run.stderr
    assert "default: no credit or quota left; it is asked again now and then" in run.stderr
    assert "default answers again" in run.stderr
    assert json.loads(run.stdout)["finished"] == LINES
    assert stats["requests"] == LINES + 8, "nothing was asked twice but what was refused"


def test_lines_that_an_outage_leaves_are_left_and_the_same_command_goes_on(tmp_path: Path) -> None:
    run = ("batch", "run", "in.jsonl", "--out", "out.jsonl", "--json")
    with running_sim() as sim:
        wanted(tmp_path, sim.url, "outage_seconds = 1\n")
        sim.set_faults({"kind": "500", "times": None, "skip": 20})
        for _ in range(2):  # the second time it has never answered
            out = siafu(tmp_path, *run)
            assert out.returncode == 3, out.stderr
            told = json.loads(out.stdout)
            assert (told["finished"], told["failed"], told["left"], told["stopped"]) == (20, 0, LINES - 20, "outage")
            assert "to go on, once it answers: " in out.stderr
        assert "has not answered since this run began" in out.stderr
        text = siafu(tmp_path, "batch", "status", "out.jsonl").stdout
        (failing,) = json.loads(siafu(tmp_path, "batch", "status", "out.jsonl", "--json").stdout)["failing"]
        sim.set_faults()
        again = siafu(tmp_path, *run)
        after = json.loads(siafu(tmp_path, "batch", "status", "out.jsonl", "--json").stdout)
    assert f"failing    m at default since {failing['since']}, " in text and "(upstream_fault)" in text
    assert failing["calls"] >= 3
    assert again.returncode == 0 and json.loads(again.stdout)["finished"] == LINES, again.stderr
    assert (after["failing"], after["left"]) == ([], 0)
