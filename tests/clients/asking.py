"""MCP clients as processes that do what the tests say (ask.py, node/ask.mjs), and how those of others are installed.

A line to a client is {"what": ..., ...}, and so is what it answers with:
  connect    command, args, env (stdio) or url, headers (HTTP) -> server, instructions, protocol
  tools      -> tools                       as the server sent them
  call       tool, args                     -> error, structured, text, progress (what was told meanwhile)
  resources  -> resources, templates
  read       uri -> contents
What the client itself or the protocol refuses is answered with failed (the message) and code.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NODE = HERE / "node"
FASTMCP = ROOT / ".clients"
ANSWER_SECONDS, INSTALL_SECONDS = 30.0, 100.0


class Asked:
    """A running client. Raises (`ask`): AssertionError when it ends or does not answer in time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.about: dict[str, Any] = {}

    def ask(self, what: str, **how: Any) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout and self._process.stderr
        too_late = threading.Timer(ANSWER_SECONDS, self._process.kill)
        too_late.start()
        try:
            self._process.stdin.write(json.dumps({"what": what, **how}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            too_late.cancel()
        assert line, f"the client ended when asked to {what}: {self._process.stderr.read()[-2000:]}"
        found: dict[str, Any] = json.loads(line)
        return found

    def call(self, tool: str, **args: Any) -> dict[str, Any]:
        return self.ask("call", tool=tool, args=args)


@contextmanager
def asking(command: Sequence[str], server: dict[str, Any]) -> Iterator[Asked]:
    """The client that `command` starts, connected to `server`, until the end of the block."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    ) as process:
        try:
            client = Asked(process)
            client.about = client.ask("connect", **server)
            assert "failed" not in client.about, client.about
            yield client
        finally:
            assert process.stdin
            process.stdin.close()
            try:
                process.wait(ANSWER_SECONDS)
            finally:
                process.kill()


def command(which: str) -> list[str]:
    """What starts this client. Those of others are fetched when they are missing; where they cannot be had, skips."""
    if which == "sdk":
        return [sys.executable, str(HERE / "ask.py"), which]
    if which == "fastmcp":
        return [str(_fastmcp()), str(HERE / "ask.py"), which]
    return [_node(), str(NODE / "ask.mjs"), which.removeprefix("npm-")]


def _fastmcp() -> Path:
    """A Python that has FastMCP, in an environment of its own."""
    wanted, python = ROOT / "requirements" / "clients.txt", FASTMCP / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--require-hashes", "--no-deps"]
    steps = [
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(FASTMCP)],
        [*pip, "--only-binary", ":all:", "--no-compile", "-r", str(wanted)],
    ]
    _installed(FASTMCP / ".made", wanted, steps)
    return python


def _node() -> str:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node and npm are not installed")
    _installed(NODE / "node_modules" / ".made", NODE / "package-lock.json", [[npm, "ci", "--prefix", str(NODE)]])
    return node


def _installed(mark: Path, wanted: Path, steps: Sequence[Sequence[str]]) -> None:
    """Carry out `steps`, unless `mark` tells that it was done for what is `wanted` now. Skips when they fail."""
    with wanted.open(encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one process of the tests at a time
        text = lock.read()
        if mark.exists() and mark.read_text(encoding="utf-8") == text:
            return
        for step in steps:
            try:
                done = subprocess.run(step, capture_output=True, encoding="utf-8", timeout=INSTALL_SECONDS)
            except subprocess.TimeoutExpired:
                pytest.skip(f"not installed within {INSTALL_SECONDS:.0f} seconds: {' '.join(step)}")
            if done.returncode:
                pytest.skip(f"cannot be installed: {' '.join(step)}: {done.stderr[-600:]}")
        mark.write_text(text, encoding="utf-8")
