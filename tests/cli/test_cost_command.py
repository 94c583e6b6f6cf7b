"""`siafu cost`, and how a run that reaches a budget ends, as commands."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from siafu.cli.showing import print_table
from sim import running_sim

from .front import PLAIN, siafu

SETTINGS = """
[prices."모델"]
input = "0.60"
cached = "0.15"
output = "2.50"
date = 2026-01-01
[prices."dear"]
input = "6"
output = "25"
date = 2026-01-01
"""


@pytest.fixture(scope="module", autouse=True)
def _endpoint() -> Iterator[None]:
    """One that answers at once."""
    with running_sim() as sim, pytest.MonkeyPatch.context() as patch:
        patch.setitem(PLAIN, "SIAFU_BASE_URL", sim.url)
        yield


def desk(folder: Path, count: int = 6, *, settings: str = "", **body: Any) -> Path:
    body = {"model": "모델", "max_tokens": 100, **body}
    lines = [
        {"custom_id": f"q{number}", "body": {**body, "messages": [{"role": "user", "content": f"주문 {number}?"}]}}
        for number in range(count)
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "siafu.toml").write_text(SETTINGS + settings, encoding="utf-8")
    return folder


def told(done: subprocess.CompletedProcess[str], code: int = 0) -> Any:
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def run(folder: Path, *words: str, out: str = "out.jsonl") -> subprocess.CompletedProcess[str]:
    return siafu(folder, "batch", "run", "in.jsonl", "--out", out, "--json", "--quiet", *words)


def test_from_an_estimate_to_a_run_to_what_if(tmp_path: Path) -> None:
    desk(tmp_path)
    before = told(siafu(tmp_path, "cost", "estimate", "in.jsonl", "--out", "out.jsonl", "--budget", "1 USD", "--json"))
    assert (before["agents"], before["calls"], before["measured_in"]) == (6, 6, [])
    assert 0 < before["usd"] <= before["usd_at_most"] and before["budget_usd"] == 1
    assert not list(tmp_path.glob(".siafu/runs/*")), "nothing was run"
    ran = told(run(tmp_path))
    report = told(siafu(tmp_path, "cost", "report", "--by", "model", "--by", "day", "--json"))
    (group,) = report["groups"]
    assert (group["model"], group["calls"], group["usd"]) == ("모델", 6, ran["usd"])
    assert report["total"]["usd_pico"] == group["usd_pico"] and report["total"]["unpriced"] == 0
    assert (
        told(siafu(tmp_path, "cost", "report", "out.jsonl", "--since", "2020-01-01", "--json"))["total"]["calls"] == 6
    )
    assert told(siafu(tmp_path, "cost", "report", "--until", "2020-01-01", "--json"))["groups"] == []
    status = siafu(tmp_path, "batch", "status", "out.jsonl")
    agents, minutes = (
        re.search(rf"^{name} +(\S+) +(\S+)$", status.stdout, re.MULTILINE) for name in ("agents", "minutes")
    )
    assert agents and agents.groups() == ("6", "6") and minutes and float(minutes[2]) < 5
    assert told(run(tmp_path))["usd"] == ran["usd"]
    after = told(siafu(tmp_path, "cost", "estimate", "in.jsonl", "--json"))
    assert after["measured_in"] == [ran["run"]] and after["usd"] == ran["usd"]
    other = told(siafu(tmp_path, "cost", "what-if", "--run", "out.jsonl", "--models", "모델,dear,nono", "--json"))
    costs = {each["model"]: each["usd"] for each in other["models"]}
    assert (
        costs["모델"] == costs["as it ran"] == ran["usd"] and costs["dear"] > 8 * ran["usd"] and costs["nono"] is None
    )


def test_tables_stand_in_line_with_korean_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("model", "calls"), [("모델", "7"), ("m", "1,000")], numbers=1)
    assert capsys.readouterr().out == "model  calls\n모델       7\nm      1,000\n"
    run(desk(tmp_path, 2))
    shown = siafu(tmp_path, "cost", "report", "out.jsonl", "--estimate")
    assert shown.returncode == 2 and "siafu cost estimate FILE --out" in shown.stderr
    lines = siafu(tmp_path, "cost", "report").stdout.splitlines()
    assert lines[0].split() == ["model", "calls", "wasted", "fresh", "input", "cached", "%", "output", "USD"]


def test_f40_under_a_budget_a_model_without_a_price_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    desk(tmp_path, settings='[prices."free"]\ninput = "0"\noutput = "0"\ndate = 2026-01-01\n')
    text = (tmp_path / "in.jsonl").read_text(encoding="utf-8").splitlines()
    text[5] = text[5].replace(json.dumps("모델"), '"kimi-k2.5-preview-x"')
    (tmp_path / "in.jsonl").write_text("\n".join(text), encoding="utf-8")
    for words in (("cost", "estimate", "in.jsonl"), ("batch", "run", "in.jsonl", "--out", "out.jsonl")):
        done = siafu(tmp_path, *words, "--budget", "0.02 USD")
        assert done.returncode == 2 and "no price for exactly kimi-k2.5-preview-x" in done.stderr
    assert told(siafu(tmp_path, "cost", "report", "--json"))["total"]["calls"] == 0
    assert told(run(tmp_path, "--budget", "1 USD", "--allow-unpriced"))["finished"] == 6
    report = siafu(tmp_path, "cost", "report")
    assert "unpriced calls: 1" in report.stdout
    total = told(siafu(tmp_path, "cost", "report", "--json"))["total"]
    assert (total["unpriced"], total["usd_at_most"]) == (1, None) and total["usd"] > 0
    free = told(run(tmp_path, "--model", "free", "--budget", "0.01 USD", out="free.jsonl"))
    assert (free["finished"], free["usd"]) == (6, 0)


@pytest.mark.parametrize(
    ("budget", "body"),
    [("0.0003 USD", {}), ("0.0001 USD", {"max_tokens": 900_000})],  # spent; never enough for a single call
    ids=["used up", "too small for one"],
)
def test_the_command_that_is_printed_goes_on_to_the_end(tmp_path: Path, budget: str, body: dict[str, Any]) -> None:
    desk(tmp_path, **body)
    done = run(tmp_path, "--concurrency", "2", "--budget", budget)
    assert done.returncode == 3 and json.loads(done.stdout)["left"] > 0
    assert "raise the budget to at least $" in done.stderr
    command = done.stderr.rpartition("to go on: ")[2].strip()
    again = subprocess.run(
        shlex.split(command), cwd=tmp_path, env=PLAIN, capture_output=True, text=True, timeout=60, check=False
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["finished"] == 6


def test_what_is_not_there_is_told_with_what_is(tmp_path: Path) -> None:
    desk(tmp_path, 1)
    empty = siafu(tmp_path, "cost", "report", "nowhere.jsonl")
    assert empty.returncode == 2 and "there is no file nowhere.jsonl, and no run that writes one" in empty.stderr
    assert "there is none yet" in empty.stderr
    name = told(run(tmp_path))["run"]
    for words in (("report", "nowhere.jsonl"), ("report", "--run", "no"), ("what-if", "--run", "no", "--models", "m")):
        done = siafu(tmp_path, "cost", *words)
        assert done.returncode == 2 and f"there are: {name}" in done.stderr, (words, done.stderr)
    assert told(siafu(tmp_path, "cost", "report", "--run", name, "--json"))["total"]["calls"] == 1


def test_a_budget_a_day_holds_for_all_runs_of_a_home(tmp_path: Path) -> None:
    desk(tmp_path, settings='[budgets]\nday = "0.0012 USD"\n')
    first = told(run(tmp_path, "--limit", "2"))
    done = run(tmp_path, "--concurrency", "1", out="second.jsonl")
    second = told(done, 3)
    assert first["finished"] == 2 and 0 < second["finished"] < 6
    assert first["usd"] + second["usd"] <= 0.0012
    assert "a day, for all processes together" in done.stderr and "[budgets] day" in done.stderr
    desk(tmp_path, settings='[budgets]\nday = "1 USD"\n')
    assert told(run(tmp_path, out="second.jsonl"))["finished"] == 6


def test_an_item_past_its_own_budget_fails_alone(tmp_path: Path) -> None:
    desk(tmp_path, 3)
    lines = (tmp_path / "in.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "in.jsonl").write_text("\n".join([lines[0].replace("100", "90000"), *lines[1:]]), encoding="utf-8")
    assert told(run(tmp_path, "--budget-per-item", "0.001 USD"), 1)["finished"] == 2
    (error,) = (tmp_path / "out.errors.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(error)["error"]["code"] == "item_budget_reached"


def test_from_the_soft_limit_on_the_cheaper_model_answers_and_it_is_said_once(tmp_path: Path) -> None:
    desk(tmp_path, model="dear", settings='[budgets]\nsoft = 0.01\ncheaper = { "dear" = "모델" }\n')
    done = run(tmp_path, "--concurrency", "1", "--budget", "0.1 USD")
    assert told(done)["finished"] == 6
    assert done.stderr.count("모델 is asked instead of dear") == 1
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    bodies = [json.loads(line)["response"]["body"] for line in lines]
    assert [(body["model"], body.get("siafu")) for body in bodies] == [
        ("dear", None),
        *[("모델", {"instead_of": "dear"})] * 5,
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report", "--by", "colour"), "--by is one of run, model"),
        (("report", "--since", "gestern"), "is no time"),
        (("report", "none.db"), "none.db"),
        (("estimate", "siafu.toml"), "neither batch lines"),
        (("what-if", "--run", "없음", "--models", "m"), "there is none yet"),
        (("what-if", "--run", "x", "--models", ","), "names no model"),
    ],
)
def test_wrong_use_says_what_to_do(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = siafu(desk(tmp_path), "cost", *words)
    assert done.returncode in (1, 2) and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('[budgets]\nday = "much"', "budgets.day"),
        ("[budgets]\nsoft = 1.5", "budgets.soft"),
        ("[budgets]\nsoft = 0.8", "go together"),
        ('[budgets]\ndya = "1 USD"', "did you mean day"),
    ],
)
def test_wrong_budgets_are_told(tmp_path: Path, given: str, said: str) -> None:
    done = run(desk(tmp_path, settings=given))
    assert done.returncode == 2 and said in done.stderr
