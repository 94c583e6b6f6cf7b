"""kill -9 at every step of a batch and at random moments: nothing is lost, and no answer is asked for again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from processes import wait_until

from .child import CONCURRENCY
from .front import lines

CHILD = Path(__file__).with_name("child.py")
LINES = 120
POINTS = ("file_sealed", "batch_laid_out", "batch_accepted", "batch_validated")
LAST_POINTS = ("batch_finalizing", "batch_handed_out", "batch_ended")


def start(folder: Path, *words: str, at: str = "") -> subprocess.Popen[bytes]:
    command = [sys.executable, str(CHILD), str(folder), *words]
    return subprocess.Popen(
        command, env={**os.environ, "SIAFU_CRASH_AT": at}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def killed_at_work(folder: Path, rng: random.Random, *words: str) -> None:
    """A process that has asked something, and is killed a moment later."""
    before = size(folder / "asked")
    process = start(folder, *words)
    assert wait_until(lambda: size(folder / "asked") > before, 30)
    time.sleep(rng.uniform(0, 0.05))
    process.kill()
    _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err.decode()


def prepared(folder: Path) -> list[str]:
    ids = [f"q{number}" for number in range(LINES)]
    (folder / "in.jsonl").write_bytes(lines(*ids))
    return ids


def asked(folder: Path) -> Counter[str]:
    return Counter((folder / "asked").read_text().splitlines())


@pytest.mark.kill
def test_g21_a_batch_of_the_server_that_is_killed_at_every_step(tmp_path: Path) -> None:
    ids, rng, kills = prepared(tmp_path), random.Random(7), 5
    for point in POINTS:
        process = start(tmp_path, at=point)
        _, err = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, (point, err.decode())
    assert size(tmp_path / "asked") == 0
    for _ in range(kills):
        killed_at_work(tmp_path, rng)
    for point in LAST_POINTS:
        process = start(tmp_path, at=point)
        _, err = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, (point, err.decode())
    process = start(tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    batch: dict[str, Any] = json.loads(out)
    assert (batch["status"], batch["completed"], batch["failed"]) == ("completed", LINES, 0)
    output = tmp_path / "home" / "files" / batch["output_file_id"]
    found = [json.loads(each) for each in output.read_bytes().splitlines()]
    assert {each["custom_id"]: each["response"]["body"]["choices"][0]["message"]["content"] for each in found} == {
        id: f"답 {id}" for id in ids
    }
    assert len(found) == LINES
    assert within(asked(tmp_path), kills)
    names = {path.name for path in (tmp_path / "home" / "files").iterdir()}
    assert names == {batch["input_file_id"], batch["output_file_id"]}
    assert not list((tmp_path / "home" / "batches").iterdir())


def within(calls: Counter[str], kills: int) -> bool:
    """Whether every line was asked, and again at most those that were under way at a kill."""
    return len(calls) == LINES and calls.total() <= LINES + kills * CONCURRENCY


@pytest.mark.kill
def test_the_check_can_fail(tmp_path: Path) -> None:
    prepared(tmp_path)
    process = start(tmp_path)
    assert wait_until(lambda: size(tmp_path / "asked") > 300, 30)  # at least 60 lines
    process.kill()
    process.communicate()
    process = start(tmp_path, "forget")
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not within(asked(tmp_path), 1)
