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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from siafu import __version__
from siafu.bench.alone import environ, measured
from siafu.bench.gateway import drive
from siafu.bench.gateway.figures import RAW, Run, ratios, rows
from siafu.bench.gateway.peers import PEERS, UVLOOP, environment
from siafu.config.collector import THRESHOLDS
from siafu.errors import ConfigError, MeasurementInvalid

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
    spread: the part of `upstream_ms` by which answers come earlier or later, from 0 to below 1. peers: names out of
    PEERS; they take many times as long as siafu, and differ from it by so much that `peer_repeats` runs are enough.
    home: where journals (of runs, deleted afterwards) and the environments of peers are put.
    """

    concurrency: tuple[int, ...] = (100, 1000)
    calls: int = 2000
    repeats: int = 5
    upstream_ms: float = 200.0
    spread: float = 0.0
    loop: str = "auto"
    peers: tuple[str, ...] = tuple(PEERS)
    peer_repeats: int = 1
    home: Path = Path(".siafu")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`skipped`: why a client is missing. `machine`: what the figures were taken on."""

    rows: list[dict[str, Any]]
    ratios: dict[str, Any]
    machine: dict[str, Any]
    skipped: dict[str, str] = {}


def compare(options: Options, say: Callable[[str], None]) -> Report:
    """Measure, and tell `say` how far it is.

    Raises: MeasurementInvalid when a run of ours contradicts the server's count or Little's law; ConfigError.
    """
    loop = _loop(options.loop)
    options.home.mkdir(parents=True, exist_ok=True)
    peers, skipped = _found(options, loop, say)
    clients = {client.name: client for client in (*OWN, *peers)}
    plan = _plan(options, [client.name for client in peers])
    runs: list[Run] = []
    machine = describe(loop, options.home)
    machine["spread"] = options.spread
    machine["peers"] = {peer.name: peer.package for peer in PEERS.values() if peer.name in clients}
    with server(options.upstream_ms, loop, options.spread) as port:
        for number, (name, agents) in enumerate(plan, 1):
            if name in skipped:
                continue
            say(f"{number} of {len(plan)}: {name}, {agents} agents")
            calls = max(options.calls, 2 * agents)
            try:
                run = measure(clients[name], agents=agents, calls=calls, port=port, loop=loop, home=options.home)
            except MeasurementInvalid as error:
                if clients[name] in OWN:
                    raise
                skipped[name] = error.message
                say(error.message)
            else:
                runs.append(run)
    machine["load_after"] = round(os.getloadavg()[0], 2)
    return Report(rows=rows(runs, options.upstream_ms), ratios=ratios(runs), machine=machine, skipped=skipped)


def _found(options: Options, loop: str, say: Callable[[str], None]) -> tuple[list[Client], dict[str, str]]:
    """The peers that are wanted and can be installed, and why others are missing."""
    clients, skipped = [], {}
    for key in options.peers:
        peer = PEERS[key]
        say(f"looking for {peer.package} (installed on first use)")
        packages = [peer.package, UVLOOP] if loop == "uvloop" else [peer.package]
        python = environment(options.home / "bench-peers" / f"{key}-{loop}", packages)
        if isinstance(python, Path):
            clients.append(Client(name=peer.name, file=_CLIENTS / peer.file, python=(str(python), "-I")))
        else:
            skipped[peer.name] = python
            say(python)
    return clients, skipped


def _plan(options: Options, peers: Sequence[str]) -> list[tuple[str, int]]:
    """Which client runs with how many agents, in this order: each repeat begins with another one."""
    plan = []
    for turn in range(options.repeats):
        names = [client.name for client in OWN] + (list(peers) if turn < options.peer_repeats else [])
        first = turn % len(names)
        plan += [(name, agents) for agents in options.concurrency for name in names[first:] + names[:first]]
    return plan


def measure(client: Client, *, agents: int, calls: int, port: int, loop: str, home: Path) -> Run:
    """One run of one client, checked.

    Raises: MeasurementInvalid.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", dir=home) as folder:
        order = {"port": port, "calls": calls, "agents": agents, "loop": loop, "folder": folder}
        order["collector"] = THRESHOLDS  # as in the commands that run agents
        command = [*client.python, drive.__file__, str(client.file), client.function, json.dumps(order)]
        found = msgspec.json.decode(measured(command, client.name))
    run = Run(client=client.name, agents=agents, calls=calls, **found)
    run.check()
    return run


@contextlib.contextmanager
def server(latency_ms: float, loop: str, spread: float = 0.0) -> Iterator[int]:
    """The server in a process of its own while the block runs; yields its port on 127.0.0.1. spread: as there."""
    command = [sys.executable, "-P", "-m", "siafu.bench.gateway.server", str(latency_ms), loop, str(spread)]
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
