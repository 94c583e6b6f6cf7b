"""A running simulated endpoint for tests: `with running_sim(seed=1, latency="none") as sim: ... sim.url ...`."""

from __future__ import annotations

import http.client
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SRC = Path(__file__).parents[1] / "src"
START_SECONDS, STOP_SECONDS = 30.0, 10.0


class Sim:
    """The endpoint of `running_sim`. The calls block for a moment; they are for checks, not for load."""

    def __init__(self, url: str, pid: int) -> None:
        self.url = url  # ends with /v1
        self.pid = pid
        self.origin = url.removesuffix("/v1")

    def stats(self) -> dict[str, Any]:
        """Totals: requests, completed, by_status, by_model, by_fault, limited, tokens, peak_in_flight, ..."""
        found: dict[str, Any] = self.control("GET", "stats")
        return found

    def requests(self, since: int = 0) -> list[dict[str, Any]]:
        """Every kept request later than number `since`, in order of arrival."""
        found: list[dict[str, Any]] = []
        while True:
            page = self.control("GET", f"requests?since={found[-1]['n'] if found else since}")["requests"]
            if not page:
                return found
            found += page

    def set_faults(self, *rules: dict[str, Any], rates: str | None = None) -> None:
        """Replace the script by `rules`, e.g. {"kind": "429", "form": "seconds", "wait": 2, "times": 3}."""
        self.control("POST", "faults", {"rules": list(rules)} | ({} if rates is None else {"rates": rates}))

    def set_limits(self, **limits: float | None) -> None:
        """Change rpm, tpm, max_concurrency, slots, burst."""
        self.control("POST", "limits", limits)

    def reset(self) -> None:
        """As after the start: nothing happened yet, the faults and limits of `options`."""
        self.control("POST", "reset", {})

    def control(self, method: str, path: str, body: Any = None) -> Any:
        """One request to /_sim/. Raises AssertionError unless it is answered with 200."""
        return control(f"{self.origin}/_sim/{path}", method, body)


def control(url: str, method: str = "GET", body: Any = None) -> Any:
    """What a simulator's own route says, as JSON. Raises AssertionError unless it is answered with 200."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request(method, target, body=data, headers={"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read()
    finally:
        connection.close()
    assert reply.status == 200, text
    return json.loads(text)


@contextmanager
def running_sim(*, models: dict[str, tuple[float, float]] | None = None, **options: Any) -> Iterator[Sim]:
    """`siafu sim` as a process on a free port, ended with the block.

    `options` are its flags with underscores (`seed=3`, `latency="none"`, `rpm=600`, `faults="429:5%"`,
    `keep_bodies=True`, ...); latency is "none" unless given. `models`: name -> (ttft_ms, per_token_ms).
    """
    flags = ["--json", "--parent-pid", str(os.getpid())]
    for name, value in {"latency": "none", **options}.items():
        flag = "--" + name.replace("_", "-")
        flags += [flag] if value is True else [] if value in (None, False) else [flag, str(value)]
    for name, (first, token) in (models or {}).items():
        flags += ["--model", f"{name}={first},{token}"]
    with running("sim", *flags) as ready:
        yield Sim(ready["url"], ready["pid"])


@contextmanager
def running(*words: str) -> Iterator[Any]:
    """`siafu WORDS` as a process, ended with the block; yields the JSON that it prints first."""
    paths = os.pathsep.join([str(SRC), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "siafu", *words],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": paths},
        )
        try:
            line = _first_line(process)
            errors.seek(0)
            assert line, f"siafu {' '.join(words)} did not start: {errors.read()[-2000:].decode()}"
            yield json.loads(line)
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()


def _first_line(process: subprocess.Popen[bytes]) -> bytes:
    """What the process prints first; empty when it ends or START_SECONDS pass before."""
    assert process.stdout
    deadline, line = time.monotonic() + START_SECONDS, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return b""
            piece = os.read(process.stdout.fileno(), 4096)
            if not piece:
                return b""
            line += piece
    return line
