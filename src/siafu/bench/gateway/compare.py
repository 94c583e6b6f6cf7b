"""One comparison: a server, and the clients one after the other, each in a process of its own, again and again."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from siafu import __version__
from siafu.bench.gateway import drive
from siafu.bench.gateway.figures import RAW, Run, ratios, rows
from siafu.bench.gateway.peers import OPENAI, UVLOOP, environment
from siafu.border.text import preview
from siafu.config.collector import THRESHOLDS
from siafu.errors import ConfigError, MeasurementInvalid

RUN_SECONDS = 900.0
_CLIENTS = Path(__file__).parent / "clients"


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """`file` and `function`: what `drive.py` loads; `python`: with which interpreter and options."""

    name: str
    file: Path
    function: str = "connect"
    python: tuple[str, ...] = (sys.executable, "-P")


OWN = (
    Client(name=RAW, file=_CLIENTS / "raw_aiohttp.py"),
    Client(name="siafu", file=_CLIENTS / "siafu_path.py", function="with_store"),
    Client(name="siafu, no store", file=_CLIENTS / "siafu_path.py", function="without_store"),
)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """concurrency: agents at once, one series each. calls: a run, at least two an agent. loop: auto, asyncio, uvloop.
    home: where journals (of runs, deleted afterwards) and the environments of peers are put.
    """

    concurrency: tuple[int, ...] = (100, 1000)
    calls: int = 2000
    repeats: int = 5
    upstream_ms: float = 200.0
    loop: str = "auto"
    peers: bool = True
    home: Path = Path(".siafu")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`skipped`: why a client is missing. `machine`: what the figures were taken on."""

    rows: list[dict[str, Any]]
    ratios: dict[str, Any]
    machine: dict[str, Any]
    skipped: dict[str, str] = {}


def compare(options: Options, say: Callable[[str], None]) -> Report:
    """Measure, and tell `say` how far it is.

    Raises: MeasurementInvalid when a run contradicts the server's count or Little's law; ConfigError.
    """
    loop = _loop(options.loop)
    options.home.mkdir(parents=True, exist_ok=True)
    clients, skipped = list(OWN), {}
    if options.peers:
        packages = [OPENAI, UVLOOP] if loop == "uvloop" else [OPENAI]
        say(f"looking for {packages[0]} (installed on first use)")
        python = environment(options.home / "bench-peers" / f"openai-{loop}", packages)
        if isinstance(python, Path):
            own = Client(name="OpenAI SDK", file=_CLIENTS / "openai_sdk.py", python=(str(python), "-I"))
            clients.append(own)
        else:
            skipped["OpenAI SDK"] = python
            say(python)
    plan = [
        (client, agents)
        for turn in range(options.repeats)
        for agents in options.concurrency
        for client in clients[turn % len(clients) :] + clients[: turn % len(clients)]
    ]
    runs = []
    machine = describe(loop, options.home)
    with server(options.upstream_ms, loop) as port:
        for number, (client, agents) in enumerate(plan, 1):
            say(f"{number} of {len(plan)}: {client.name}, {agents} agents")
            calls = max(options.calls, 2 * agents)
            runs.append(measure(client, agents=agents, calls=calls, port=port, loop=loop, home=options.home))
    machine["load_after"] = round(os.getloadavg()[0], 2)
    return Report(rows=rows(runs, options.upstream_ms), ratios=ratios(runs), machine=machine, skipped=skipped)


def measure(client: Client, *, agents: int, calls: int, port: int, loop: str, home: Path) -> Run:
    """One run of one client, checked.

    Raises: MeasurementInvalid.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", dir=home) as folder:
        order = {"port": port, "calls": calls, "agents": agents, "loop": loop, "folder": folder}
        order["collector"] = THRESHOLDS  # as in the commands that run agents
        command = [*client.python, drive.__file__, str(client.file), client.function, json.dumps(order)]
        try:
            ended = subprocess.run(
                command, capture_output=True, timeout=RUN_SECONDS, check=False, start_new_session=True, env=environ()
            )
        except subprocess.TimeoutExpired:
            raise MeasurementInvalid(f"{client.name} did not end within {RUN_SECONDS:.0f} s") from None
    if ended.returncode:
        said = ended.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise MeasurementInvalid(f"{client.name} failed: {preview(said[-1])}")
    run = Run(client=client.name, agents=agents, calls=calls, **msgspec.json.decode(ended.stdout))
    run.check()
    return run


@contextlib.contextmanager
def server(latency_ms: float, loop: str) -> Iterator[int]:
    """The server in a process of its own while the block runs; yields its port on 127.0.0.1."""
    command = [sys.executable, "-P", "-m", "siafu.bench.gateway.server", str(latency_ms), loop]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=environ()
    ) as process:
        try:
            line = process.stdout.readline() if process.stdout else b""
            if not line:
                raise MeasurementInvalid("the server that answers the clients did not start")
            yield int(line)
        finally:
            process.kill()


def describe(loop: str, home: Path) -> dict[str, Any]:
    """What the figures depend on beside the clients."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "loop": loop,
        "load": round(os.getloadavg()[0], 2),
        "fsync_ms": round(_fsync_ms(home), 3),
        "siafu": __version__,
        "aiohttp": aiohttp.__version__,
        "openai": OPENAI.partition("==")[2],
    }


def _fsync_ms(home: Path) -> float:
    """The median time of a small write and its fsync on the disk that journals are put on."""
    took = []
    with tempfile.TemporaryFile(dir=home) as file:
        for _ in range(21):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began)
    return sorted(took)[10] * 1e3


def _loop(wanted: str) -> str:
    found = importlib.util.find_spec("uvloop") is not None
    if wanted == "uvloop" and not found:
        raise ConfigError("uvloop is not installed: pip install 'siafu[uvloop]', or use --loop asyncio")
    return "uvloop" if found and wanted != "asyncio" else "asyncio"


def environ() -> dict[str, str]:
    """The server is on this machine: no proxy may stand between."""
    return {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
