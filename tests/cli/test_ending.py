"""How a command ends: messages, exit codes, signals, pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .front import PLAIN, python, siafu

KEY = "sk-abcdefghijklmnop1234"
BOOM = """
import asyncio, os, signal, sys, time, types, typer
from siafu import errors
from siafu.cli import main
module = types.ModuleType("boom")
module.app = typer.Typer()
@module.app.command()
def boom() -> None:
    {}
sys.modules["boom"] = module
main.COMMANDS["boom"] = ("boom", "for this test")
main.main(["boom"])
"""


def boom(folder: Path, body: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The ended process of a command with this body."""
    return python(folder, "-c", BOOM.format(body), **env)


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("pass", 0, ""),
        ("raise typer.Exit(7)", 7, ""),
        ("raise errors.ConfigError('설정이 틀렸습니다')", 2, "siafu: 설정이 틀렸습니다\n"),
        ("raise errors.InputError('line 3 is none')", 2, "siafu: line 3 is none\n"),
        ("raise errors.StoreBusy('in use')", 2, "siafu: in use\n"),
        ("raise errors.BudgetReached('no more')", 3, "siafu: no more\n"),
        ("raise errors.StoreError('no disk')", 1, "siafu: no disk\n"),
        ("raise errors.Interrupted('kept')", 130, "siafu: kept\n"),
        ("raise KeyboardInterrupt", 130, "siafu: interrupted\n"),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(10)", 130, "siafu: interrupted\n"),
        ("asyncio.run(asyncio.sleep(0, os.kill(os.getpid(), signal.SIGINT)))", 130, "siafu: interrupted\n"),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(10)", 130, "siafu: interrupted\n"),
        (
            "signal.signal(signal.SIGINT, signal.SIG_IGN); os.kill(os.getpid(), signal.SIGTERM); time.sleep(10)",
            *(130, "siafu: interrupted\n"),
        ),
        ("asyncio.run(asyncio.sleep(9, os.kill(os.getpid(), signal.SIGTERM)))", 130, "siafu: interrupted\n"),
        ("raise BrokenPipeError", 1, ""),
        (f"raise errors.ConfigError('the key {KEY} is wrong')", 2, "siafu: the key *** is wrong\n"),
        ("raise errors.ConfigError('red \\x1b[31m')", 2, "siafu: red \ufffd[31m\n"),
    ],
)
def test_what_is_raised_becomes_a_message_and_a_code(tmp_path: Path, body: str, code: int, said: str) -> None:
    done = boom(tmp_path, body)
    assert (done.returncode, done.stderr, done.stdout) == (code, said, "")


def test_an_unexpected_error_is_one_line_unless_asked(tmp_path: Path) -> None:
    body = f"raise KeyError('{KEY}')"
    for env in ({}, {"SIAFU_DEBUG": "0"}, {"SIAFU_DEBUG": ""}):
        done = boom(tmp_path, body, **env)
        assert done.returncode == 1 and done.stdout == ""
        assert done.stderr == "siafu: unexpected KeyError: '***' (SIAFU_DEBUG=1 shows where)\n"
    asked = boom(tmp_path, body, SIAFU_DEBUG="1")
    assert asked.returncode == 1 and "Traceback" in asked.stderr and "KeyError: '***'" in asked.stderr
    assert KEY not in asked.stderr


@pytest.mark.parametrize("words", [("shop", "orders"), ("shop", "orders", "--json"), ("--help",)], ids=" ".join)
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path, words: tuple[str, ...]) -> None:
    siafu(tmp_path, "shop", "calls")  # the database is made
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as nobody:
        command = [sys.executable, "-m", "siafu", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=PLAIN, stdout=nobody, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_told(tmp_path: Path, unbuffered: str) -> None:
    plain = {**PLAIN, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        command = [sys.executable, "-m", "siafu", "--version"]
        done = subprocess.run(
            command, cwd=tmp_path, env=plain, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 1 and "No space left" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("ends", "printed"), [("2>/dev/full", "done\n"), ("2>&-", "done\n"), (">&-", "")])
def test_work_goes_on_when_nobody_can_be_told(tmp_path: Path, ends: str, printed: str) -> None:
    body = BOOM.format("typer.echo('주의', err=True); typer.echo('done')")
    command = ["sh", "-c", f'exec "$0" -c "$1" {ends}', sys.executable, body]
    done = subprocess.run(command, cwd=tmp_path, env=PLAIN, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, printed), done.stderr


def test_ctrl_c_ends_a_running_command_with_all_that_it_started(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "siafu", "sim", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, env=PLAIN, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stdout.readline().startswith(b"{")
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=20)
    assert running.returncode in (0, 130) and b"Traceback" not in errors


def test_what_ends_a_command_is_a_line_of_its_log(tmp_path: Path) -> None:
    env = {"SIAFU_DATABASE_URL": "nonsense://x"}
    done = siafu(tmp_path, "worker", "--log-format", "json", **env)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, lines[-1]["level"]) == (2, "error")
    assert "postgresql://" in lines[-1]["message"]
    plain = siafu(tmp_path, "worker", **env)
    assert (plain.returncode, plain.stderr.splitlines()[-1]) == (2, f"siafu: {lines[-1]['message']}")
