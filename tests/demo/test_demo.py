"""The demo as a whole: real processes, really killed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from siafu.bench.demo.demo import GLUE, Options, Outcome, show
from siafu.bench.demo.phases import Moment
from siafu.bench.demo.place import own_folder
from siafu.bench.demo.servers import DemoFailed
from siafu.bench.payments.ledger import read_ledger
from siafu.cli.demo_report import as_json, print_report

REQUESTS = 12
BROKEN = "import sys\nsys.exit('the script says why')\n"
pytestmark = pytest.mark.kill


def processes(folder: Path) -> list[str]:
    """Command lines of the living processes that work in `folder` or name it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            where = (entry / "cwd").readlink()
        except OSError:  # it has just ended, or is a kernel's
            continue
        if where.is_relative_to(folder) or str(folder) in command:
            found.append(command)
    return found


def run_demo(options: Options, folder: Path) -> tuple[Outcome, list[Moment]]:
    moments: list[Moment] = []
    with own_folder(folder) as own:
        outcome = asyncio.run(show(options, own, moments.append))
    return outcome, moments


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Outcome, list[Moment]]]:
    folder = tmp_path_factory.mktemp("demo") / "out"
    outcome, moments = run_demo(Options(requests=REQUESTS), folder)
    assert processes(folder) == []
    yield folder, outcome, moments


def test_siafu_loses_nothing_and_does_nothing_twice(demo: tuple[Path, Outcome, list[Moment]]) -> None:
    folder, outcome, _ = demo
    found = outcome.siafu
    assert (found.answered, found.lost, found.run_twice) == (REQUESTS, 0, 0)
    assert found.wasted <= found.in_flight
    assert found.unexplained_pico == 0
    assert found.clean
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text("utf-8").splitlines()]
    assert len({line["id"] for line in lines}) == len(lines) == REQUESTS


def test_the_glue_works_and_does_its_work_twice(demo: tuple[Path, Outcome, list[Moment]]) -> None:
    _, outcome, _ = demo
    found = outcome.glue
    assert (found.answered, found.lost, outcome.glue_exit) == (REQUESTS, 0, 0)
    assert found.run_twice > 0
    assert found.wasted > outcome.siafu.wasted
    assert found.tool_calls_twice > 0


def test_siafu_pays_each_refund_that_is_due_once_and_no_other(demo: tuple[Path, Outcome, list[Moment]]) -> None:
    _, outcome, _ = demo
    found = outcome.siafu.refunds
    assert (found.twice, found.wrongly, found.unapproved, found.unpaid) == (0, 0, 0, 0)
    assert found.waiting == 1
    assert found.paid == found.due - 1 >= 3


def test_the_glue_pays_twice_and_what_is_not_due(demo: tuple[Path, Outcome, list[Moment]]) -> None:
    _, outcome, _ = demo
    found = outcome.glue.refunds
    assert found.paid == found.due
    assert found.twice >= 1  # two requests for one refund, whatever the moment of the kill
    assert found.wrongly >= 1
    assert found.unapproved == 1


def test_answers_are_lost_after_the_money_was_paid_for_both(demo: tuple[Path, Outcome, list[Moment]]) -> None:
    folder, _, _ = demo
    for program in ("glue", "siafu"):
        book = read_ledger(folder / f"{program}-payments.jsonl")
        assert {"lost", "error_after"} <= {request.fault for request in book.requests}


def test_both_meet_429s_and_are_killed_at_forty_per_cent(demo: tuple[Path, Outcome, list[Moment]]) -> None:
    _, outcome, moments = demo
    assert outcome.glue.refused > 0 and outcome.siafu.refused > 0
    for program in ("glue", "siafu"):
        stages = [moment.stage for moment in moments if moment.program == program]
        assert list(dict.fromkeys(stages)) == ["running", "killed", "again", "done"]
        (killed,) = [moment for moment in moments if (moment.program, moment.stage) == (program, "killed")]
        assert 0.4 * REQUESTS <= killed.answered < REQUESTS


def test_the_summary_adds_up(demo: tuple[Path, Outcome, list[Moment]]) -> None:
    _, outcome, _ = demo
    everything = outcome.categories[-1]
    assert everything.category == "all"
    assert everything.count == sum(row.count for row in outcome.categories[:-1]) == REQUESTS
    assert outcome.spent.least_pico <= (outcome.siafu.usd_pico or 0) <= outcome.spent.most_pico
    assert outcome.parallel.critical_steps >= 4
    assert 1 < outcome.parallel.peak <= 50


def test_the_report_fits_80_columns_and_says_simulated(
    demo: tuple[Path, Outcome, list[Moment]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_report(Options(requests=REQUESTS), demo[1], Path("out/demo"))
    text = capsys.readouterr().out
    assert "SIMULATED" in text and "nothing was billed" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_json_holds_everything(demo: tuple[Path, Outcome, list[Moment]]) -> None:
    text = as_json(Options(requests=REQUESTS), demo[1], Path("out/demo"))
    found = json.loads(text)
    assert found["simulated"] is True and found["clean"] is True
    assert found["siafu"]["unexplained_usd"] == 0
    assert 0 < found["glue"]["wasted_usd"] < found["glue"]["usd"]
    assert "pico" not in text


def test_the_quick_demo_is_smaller_and_says_so(tmp_path: Path) -> None:
    """Only its beginning: a script that does not run ends it."""
    (tmp_path / "mine.py").write_text(BROKEN)
    command = [sys.executable, "-m", "siafu", "demo", "--quick", "--glue", "mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "the script says why" in done.stderr
    assert "16 requests, twice" in done.stderr and "QUICK: answers take a fifth of their usual time" in done.stderr
    done = subprocess.run([*command, "--local"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2


def test_a_script_that_does_not_run_is_told_with_its_own_words(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(BROKEN)
    with pytest.raises(DemoFailed, match=r"mine.py ended with 1(.|\n)*the script says why"):
        run_demo(Options(requests=REQUESTS, glue=script), tmp_path / "out")
    assert processes(tmp_path / "out") == []


def test_a_script_that_hangs_meets_a_deadline(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("import time\nprint('waiting', flush=True)\ntime.sleep(600)\n")
    with pytest.raises(DemoFailed, match="took longer than 1 s"):
        run_demo(Options(requests=REQUESTS, glue=script, seconds=1), tmp_path / "out")
    assert processes(tmp_path / "out") == []


def test_the_glue_is_about_ninety_lines() -> None:
    assert 70 <= len([line for line in GLUE.read_text("utf-8").splitlines() if line.strip()]) <= 100


QUICK = """
import json, os, sys, time, urllib.request
from concurrent.futures import ThreadPoolExecutor

def ask(line):
    body = {"model": "m", "messages": [{"role": "user", "content": json.loads(line)["text"]}],
            "tools": [{"type": "function", "function": {"name": "x"}}], "tool_choice": "none"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request).read()
    except OSError:
        pass

with ThreadPoolExecutor(5) as pool:
    list(pool.map(ask, open(sys.argv[1])))
"""


def started(tmp_path: Path, phase: str, source: str = QUICK) -> subprocess.Popen[str]:
    """A demo with a quick script in place of the glue, once it has said a line like `phase`."""
    out, script = tmp_path / "out", tmp_path / "mine.py"
    script.write_text(source)
    command = [sys.executable, "-m", "siafu", "demo", "--requests", "10", "--glue", str(script), "--out", str(out)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stderr
    said = ""
    while not re.match(phase, said):
        said = child.stderr.readline()
        assert said, f"it ended before it said {phase}"
    if phase != "It allows":
        assert len(processes(out)) >= 4, (
            "endpoint, payments, shop and a program are at work, and this test can see them"
        )
    return child


def no_process_is_left(out: Path) -> None:
    deadline = time.monotonic() + 5
    while processes(out) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes(out) == []


@pytest.mark.parametrize("phase", ["It allows", "mine.py: .*", "siafu: .* kill -9"])
def test_ctrl_c_leaves_no_process(phase: str, tmp_path: Path) -> None:
    child = started(tmp_path, phase)
    child.send_signal(signal.SIGINT)
    shown, told = child.communicate(timeout=20)
    assert child.returncode == 130, told
    assert "interrupted" in told and shown == ""
    no_process_is_left(tmp_path / "out")


@pytest.mark.parametrize("phase", ["mine.py: .*", "siafu: [1-9].*"])
def test_a_demo_that_is_killed_leaves_no_process(phase: str, tmp_path: Path) -> None:
    stays = "" if phase.startswith("siafu") else "import time\ntime.sleep(60)\n"
    child = started(tmp_path, phase, QUICK + stays)
    child.kill()
    child.communicate(timeout=20)
    no_process_is_left(tmp_path / "out")
