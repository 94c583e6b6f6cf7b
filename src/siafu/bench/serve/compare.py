"""One comparison: an upstream, both servers in front of it, and the same load on them in turns."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from siafu.bench.alone import environ
from siafu.bench.gateway.compare import describe, server
from siafu.bench.gateway.drive import BODY, server_stats
from siafu.bench.gateway.figures import Spread
from siafu.bench.serve import bare
from siafu.bench.serve.figures import BARE, SIAFU, Run, ratios, rows
from siafu.bench.serve.load import found_tool, load
from siafu.errors import MeasurementInvalid

WARM_SECONDS = 1.0
BODIES = {
    "plain": msgspec.json.encode(BODY),
    "streamed": msgspec.json.encode({**BODY, "stream": True, "stream_options": {"include_usage": True}}),
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """clients: at once. seconds: of each run. load: wrk, own or auto. home: where the ledger is put meanwhile."""

    clients: int = 64
    seconds: float = 5.0
    repeats: int = 5
    upstream_ms: float = 5.0
    load: str = "auto"
    home: Path = Path(".siafu")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`ratios`: by mode, siafu over the bare pass-through. `machine`: what the figures were taken on."""

    rows: list[dict[str, Any]]
    ratios: dict[str, dict[str, Spread | None]]
    machine: dict[str, Any]


def compare(options: Options, say: Callable[[str], None]) -> Report:
    """Measure, and tell `say` how far it is.

    Raises: MeasurementInvalid; ConfigError.
    """
    tool = found_tool(options.load)
    options.home.mkdir(parents=True, exist_ok=True)
    machine = {**describe("asyncio", options.home), "load_by": tool}
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.home) as home, contextlib.ExitStack() as stack:
        folder = Path(home).resolve()
        upstream = stack.enter_context(server(options.upstream_ms, "asyncio"))
        bench = _Bench(options, folder, tool, upstream)
        servers = [stack.enter_context(_bare(upstream)), stack.enter_context(_siafu(upstream, options.clients, folder))]
        for each in servers:
            for mode in BODIES:
                bench.run(each, mode, min(WARM_SECONDS, options.seconds))
        plan = [(mode, each) for turn in range(options.repeats) for mode in BODIES for each in servers[:: (-1) ** turn]]
        for number, (mode, each) in enumerate(plan, 1):
            say(f"{number} of {len(plan)}: {each.name}, {mode}")
            runs.append(bench.run(each, mode, options.seconds))
            runs[-1].check()
    machine["load_after"] = round(os.getloadavg()[0], 2)
    return Report(rows=rows(runs), ratios=ratios(runs), machine=machine)


class Server(msgspec.Struct, frozen=True):
    """A process that listens on a port of this machine."""

    name: str
    pid: int
    port: int


class _Bench(msgspec.Struct, frozen=True):
    """What every run has in common. upstream: its port."""

    options: Options
    folder: Path
    tool: str
    upstream: int

    def run(self, server: Server, mode: str, seconds: float) -> Run:
        clients = self.options.clients
        server_stats(self.upstream)
        cpu = cpu_seconds(server.pid)
        came = load(server.port, BODIES[mode], clients=clients, seconds=seconds, folder=self.folder, tool=self.tool)
        after = cpu_seconds(server.pid)
        return Run(
            server=server.name,
            mode=mode,
            clients=clients,
            answered=came.answered,
            errors=came.errors,
            seconds=came.seconds,
            p50_ms=came.p50_ms,
            p99_ms=came.p99_ms,
            cpu=None if cpu is None or after is None else after - cpu,
            upstream_calls=server_stats(self.upstream)["calls"],
        )


@contextlib.contextmanager
def _bare(upstream: int) -> Iterator[Server]:
    command = [sys.executable, "-P", "-m", bare.__name__, f"http://127.0.0.1:{upstream}"]
    with started(BARE, command, {}, None) as server:
        yield server


@contextlib.contextmanager
def _siafu(upstream: int, clients: int, home: Path) -> Iterator[Server]:
    """`siafu serve` as users have it: limits, retries, checks, and a ledger on the disk."""
    command = [sys.executable, "-P", "-m", "siafu", "serve", "--port", "0", "--concurrency", str(clients)]
    told = {"OPENAI_BASE_URL": f"http://127.0.0.1:{upstream}/v1", "OPENAI_API_KEY": "sk-bench"}
    with started(SIAFU, command, {**told, "SIAFU_HOME": str(home)}, home) as server:
        yield server


@contextlib.contextmanager
def started(name: str, command: list[str], told: dict[str, str], folder: Path | None) -> Iterator[Server]:
    """A server's process while the block runs. Its first line says the port, alone or in a URL."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**environ(), **told},
        cwd=folder,  # no siafu.toml of the user's
    ) as process:
        try:
            line = process.stdout.readline().decode() if process.stdout else ""
            port = re.search(r"(?:^|:)(\d+)", line)
            if port is None:
                raise MeasurementInvalid(f"{name} did not start")
            yield Server(name, process.pid, int(port[1]))
        finally:
            process.kill()


def cpu_seconds(pid: int) -> float | None:
    """What a process has used so far, all its threads; None where the system has no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
