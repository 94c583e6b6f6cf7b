"""One surge: an endpoint with a limit, `siafu serve` in front of it, and the load in a process of its own."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from siafu.bench.alone import environ
from siafu.bench.gateway.compare import describe
from siafu.bench.gateway.drive import server_stats
from siafu.bench.goals import Judged
from siafu.bench.serve.compare import Server, cpu_seconds, started
from siafu.bench.surge import load
from siafu.bench.surge.figures import Came, Seen, by_second, check, goals, recovered_within, rows
from siafu.bench.surge.plan import Surge
from siafu.bench.watching import Held, held
from siafu.border.text import preview
from siafu.config.simulated import simulated
from siafu.errors import ConfigError, MeasurementInvalid

LOOK = 0.25  # seconds between two looks at the server's memory
GIVE_UP = 40.0  # seconds after which a client waits no more: later than the server lets it


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """capacity: requests a second that the endpoint takes; latency_ms: of its answers. concurrency: calls at once of
    the server; four times as many requests may wait. home: where its ledger is put meanwhile.
    """

    surge: Surge = Surge()
    capacity: float = 200.0
    latency_ms: float = 200.0
    concurrency: int = 100
    home: Path = Path(".siafu")


class Report(Judged, frozen=True, kw_only=True):
    """by_second: what became of the requests that were planned in it. server: its memory in MB, and CPU seconds."""

    by_second: list[dict[str, Any]]
    server: dict[str, Any]


def compare(options: Options, say: Callable[[str], None]) -> Report:
    """Measure one surge. Raises: MeasurementInvalid, ConfigError."""
    surge, need = options.surge, recovered_within(4 * options.concurrency, options.capacity) + 1
    if surge.after < need:
        raise ConfigError(f"--after {surge.after:g}: to see the recovery, watch {math.ceil(need)} s or more")
    options.home.mkdir(parents=True, exist_ok=True)
    machine = describe("asyncio", options.home)
    rise = f"{surge.calm:g} to {surge.peak:g} requests a second in {surge.rise:g} s"
    say(f"{rise}; the endpoint takes {options.capacity:g}")
    came, seen = asyncio.run(_measure(options))
    check(surge, came, seen)
    machine["load_after"] = round(os.getloadavg()[0], 2)
    memory = [each.rss_mb for each in seen.held]
    return Report(
        rows=rows(came),
        goals=goals(surge, came, seen),
        by_second=by_second(surge, came),
        server={
            "rss_before_mb": round(memory[0], 1) if memory else None,
            "rss_most_mb": round(max(memory), 1) if memory else None,
            "descriptors_most": max((each.descriptors for each in seen.held), default=None),
            "cpu_seconds": None if seen.cpu is None else round(seen.cpu, 2),
        },
        machine=machine,
    )


async def _measure(options: Options) -> tuple[list[Came], Seen]:
    burst = 1.0  # seconds' worth
    rpm = 60 * options.capacity
    limits = ("--rpm", str(rpm), "--burst", str(burst), "--latency", f"fixed:{options.latency_ms}ms")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.home) as folder:
        home = os.path.realpath(folder)  # noqa: ASYNC240 - once, before anything runs
        async with simulated(*limits) as url:
            command = [sys.executable, "-P", "-m", "siafu", "serve", "--port", "0", "--rpm", str(rpm)]
            command += ["--concurrency", str(options.concurrency)]
            told = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-bench", "SIAFU_HOME": home}
            with started("siafu serve", command, told, Path(home)) as server:
                cpu = cpu_seconds(server.pid)
                came, memory = await _under_load(options, server)
                after = cpu_seconds(server.pid)
            stats = await asyncio.to_thread(server_stats, urlsplit(url).port or 80, "/_sim/stats")
    return came, Seen(
        capacity=options.capacity,
        burst=burst * options.capacity,
        waiting=4 * options.concurrency,
        sent=stats["requests"],
        completed=stats["completed"],
        held=memory,
        cpu=None if cpu is None or after is None else after - cpu,
    )


async def _under_load(options: Options, server: Server) -> tuple[list[Came], list[Held]]:
    order = load.Order(url=f"http://127.0.0.1:{server.port}/v1", give_up=GIVE_UP, surge=options.surge)
    sender = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", load.__name__, msgspec.json.encode(order).decode(),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True, env=environ(),
    )  # fmt: skip
    memory: list[Held] = []

    async def look() -> None:
        while True:
            if (now := held(server.pid)) is not None:
                memory.append(now)
            await asyncio.sleep(LOOK)

    looking = asyncio.create_task(look())
    try:
        async with asyncio.timeout(options.surge.over + options.surge.after + GIVE_UP + 60):
            told, wrong = await sender.communicate()
    finally:
        looking.cancel()
        if sender.returncode is None:
            sender.kill()
    if sender.returncode:
        raise MeasurementInvalid(f"the load failed: {preview(wrong.decode('utf-8', 'replace')[-300:])}")
    return msgspec.json.decode(told, type=list[Came]), memory
