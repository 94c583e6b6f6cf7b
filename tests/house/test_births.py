"""What `births` starts is what `subprocess` would have started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import births
from processes import alive, children, wait_until

SIAFU = [sys.executable, "-m", "siafu"]
TELLS = str(Path(__file__).with_name("tells.py"))


def both(monkeypatch: pytest.MonkeyPatch, *words: str, **more: Any) -> list[subprocess.CompletedProcess[str]]:
    """A process that was born, and one that started by itself."""
    started = []
    for cold in ("", "1"):
        monkeypatch.setenv(births.COLD, cold)
        started.append(subprocess.run(words, stdout=-1, stderr=-1, text=True, timeout=60, check=False, **more))
    return started


@pytest.mark.parametrize("words", [["--version"], ["nope"], ["shop", "orders", "--customer", "kim", "--json"]])
def test_a_command_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    born, other = both(monkeypatch, *SIAFU, *words, cwd=tmp_path)
    assert (born.returncode, born.stdout, born.stderr) == (other.returncode, other.stdout, other.stderr)


@pytest.mark.parametrize("more", [{}, {"start_new_session": True}, {"process_group": 0}])
@pytest.mark.parametrize("flags", [[], ["-P"]])
def test_a_process_finds_the_same_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], more: dict[str, Any]
) -> None:
    environment = {"PYTHONPATH": os.pathsep.join((births.SRC, "/more")), "PYTHONUNBUFFERED": "1", "가": "나"}
    command = [sys.executable, *flags, TELLS]
    born, other = (
        json.loads(ended.stdout)
        for ended in both(monkeypatch, *command, cwd=tmp_path, env=environment, input="안녕", **more)
    )
    assert born == other
    assert born["environment"]["가"] == "나" and born["read"] == "안녕" and born["child"] == os.getpid()


def test_a_process_dies_alone_and_what_it_started_is_its_own() -> None:
    with subprocess.Popen([sys.executable, TELLS, "nest"], stdin=-1, stdout=-1) as outer:
        assert outer.stdout
        inner = int(outer.stdout.readline())
        assert children(outer.pid) == {inner} and outer.pid in children()
        outer.kill()
        assert outer.wait(20) == -signal.SIGKILL and alive(inner)
        os.kill(inner, signal.SIGKILL)
        assert wait_until(lambda: not alive(inner))


def test_this_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(births.Mother, "bear", lambda *words: asked.append(words))
    both(monkeypatch, *SIAFU, "--version")
    assert len(asked) == 1  # the one that was to be born, and the other one was not
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    subprocess.run([sys.executable, "-W", "error", TELLS], stdin=-3, stdout=-3, check=True)
    assert len(asked) == 1
