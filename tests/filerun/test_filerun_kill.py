"""Real ends of real processes: kill -9 at random moments, signals, and memory."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filerun.mini import ids

CHILD = Path(__file__).with_name("child.py")
KILLS, LINES, CONCURRENCY = 20, 1500, 10


def until(true: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 30) -> None:
    """Wait until something is true, while the process lives."""
    end = time.monotonic() + seconds
    while not true() and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.002)


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.mark.kill
def test_g21_killed_twenty_times_and_cut_at_random_bytes(tmp_path: Path) -> None:
    rng = random.Random(7)
    out, asked = tmp_path / "out.jsonl", tmp_path / "asked"
    command = [sys.executable, str(CHILD), str(tmp_path), str(LINES)]
    kills = cuts = 0
    while kills < KILLS:
        before = size(asked)
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        until(lambda then=before: size(asked) > then, process)  # type: ignore[misc]
        time.sleep(rng.uniform(0, 0.06))
        process.kill()
        _, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, err.decode()  # it was still at work
        kills += 1
        if rng.random() < 0.5 and size(out):
            cuts += 1
            os.truncate(out, rng.randrange(max(0, size(out) - 500), size(out)))
    subprocess.run(command, check=True, timeout=60)
    assert ids(out) == sorted(f"q{number}" for number in range(LINES))
    assert {found["text"] for found in map(json.loads, out.read_bytes().splitlines())} == {
        f"답 q{number}" for number in range(LINES)
    }
    calls = Counter(asked.read_text().splitlines())
    assert len(calls) == LINES
    assert LINES < calls.total() <= LINES + KILLS * CONCURRENCY
    assert cuts > 3


@pytest.fixture
def sim() -> Iterator[str]:
    """The base URL of a simulated endpoint that takes 0.3 s a call."""
    command = [sys.executable, "-m", "siafu", "sim", "--latency", "fixed:300ms", "--json"]
    with subprocess.Popen([*command, "--parent-pid", str(os.getpid())], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        process.terminate()


def batch_file(folder: Path, count: int) -> Path:
    path = folder / "requests.jsonl"
    message = [{"role": "user", "content": "주문은 어디에 있나요?"}]
    rows = [{"custom_id": f"q{n}", "body": {"model": "m", "messages": message}} for n in range(count)]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.kill
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_everything_and_prints_the_command_that_goes_on(
    tmp_path: Path, sim: str, number: signal.Signals
) -> None:
    source, out = batch_file(tmp_path, 60), tmp_path / "결과 1.jsonl"
    command = [sys.executable, "-m", "siafu", "batch", "run", str(source), "--out", str(out), "--fresh"]
    command += ["--concurrency", "10", "--base-url", sim]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: size(out) > 0, process)
    process.send_signal(number)
    _, told = process.communicate(timeout=20)
    assert process.returncode == 130
    assert 0 < len(out.read_bytes().splitlines()) < 60
    resume = told.decode().rsplit("To go on:\n", 1)[1].strip()
    assert "--fresh" not in resume
    ended = subprocess.run(shlex.split(resume), cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
    assert "60 of 60 lines" in ended.stdout.decode()
    found = [json.loads(line)["custom_id"] for line in out.read_bytes().splitlines()]
    assert sorted(found) == sorted(f"q{n}" for n in range(60))


@pytest.mark.kill
@pytest.mark.parametrize(("drain", "kept"), [(("--drain", "20"), True), (("--drain", "0"), False)])
def test_what_is_in_flight_when_it_is_stopped_is_awaited_for_a_while(
    tmp_path: Path, sim: str, drain: tuple[str, str], kept: bool
) -> None:
    source, out = batch_file(tmp_path, 60), tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "siafu", "batch", "run", str(source), "--out", str(out), "--base-url", sim]
    process = subprocess.Popen(
        [*command, "--concurrency", "10", *drain], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    until(lambda: size(out) > 0, process)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=20)
    assert process.returncode == 130
    assert ("stopping; what is in flight" in told.decode()) is kept
    status = subprocess.run(
        [sys.executable, "-m", "siafu", "batch", "status", str(out), "--json"],
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    found = json.loads(status.stdout)
    calls = found["upstreams"]["default"]
    assert (set(calls) == {"ok"}) is kept, calls
    assert found["left"] > 0
    if kept:
        assert found["finished"] == calls["ok"] == len(out.read_bytes().splitlines())


@pytest.mark.kill
def test_each_signal_hurries_and_the_last_ends_at_once(tmp_path: Path, sim: str) -> None:
    source, out = batch_file(tmp_path, 60), tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "siafu", "batch", "run", str(source), "--out", str(out), "--base-url", sim]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: size(tmp_path / "out.errors.jsonl") > 0 or out.exists(), process)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == 130


MEMORY = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from filerun.mini import Desk, lines
count = int(sys.argv[3])
folder = Path(sys.argv[2])
desk = Desk(folder, b"")
with desk.source.open("wb") as file:
    for number in range(count):
        file.write(lines(f"q{number}", text=lambda name: name + "x" * 200))
with desk.out.open("wb") as file:
    for number in range(count - 200):
        file.write(b'{"id":"q%d","status":"ok","text":"%s"}\\n' % (number, b"y" * 200))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
outcome = desk.run()
assert (outcome.finished, len(desk.asked)) == (count, 200), outcome
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_file_of_100000_lines_needs_little_more_memory_than_a_small_one(tmp_path: Path) -> None:
    def growth(count: int) -> int:
        folder = tmp_path / str(count)
        folder.mkdir()
        command = [sys.executable, "-c", MEMORY, str(CHILD.parents[1]), str(folder), str(count)]
        return int(subprocess.run(command, capture_output=True, check=True, timeout=100).stdout)  # KiB

    assert growth(100_000) - growth(1_000) < 25_000
