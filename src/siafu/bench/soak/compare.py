"""One soak: an endpoint, `siafu serve` in front of it, and a worker whose tasks call it; looked at from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from siafu.bench import servers
from siafu.bench.alone import environ
from siafu.bench.gateway.compare import describe
from siafu.bench.goals import Judged
from siafu.bench.serve.compare import Server, started
from siafu.bench.soak import run
from siafu.bench.soak.figures import Sample, Totals, check, goals, rows
from siafu.bench.watching import held
from siafu.border.text import preview
from siafu.config.simulated import simulated
from siafu.errors import MeasurementInvalid

LATENCY_MS = 100
LOOKS = 120  # of a run, unless that would be more than one a second
QUIET = 120.0  # seconds after which a worker that says nothing is given up


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """hours: how long. rate: tasks a second. keep: seconds until a task that has ended is removed, None = a tenth of
    the time, at most ten minutes. servers: a PostgreSQL and a Redis of our own; else postgres, redis: addresses of some
    to use, None = a SQLite file, no Redis. home: where files are put meanwhile.
    """

    hours: float = 1.0
    rate: float = 20.0
    keep: float | None = None
    servers: bool = False
    postgres: str | None = None
    redis: str | None = None
    home: Path = Path(".siafu")


class Report(Judged, frozen=True, kw_only=True):
    """A row for each thing that was looked at; samples: all looks."""

    totals: Totals
    samples: list[Sample]


def compare(options: Options, say: Callable[[str], None]) -> Report:
    """Soak. Raises: MeasurementInvalid, ConfigError."""
    options.home.mkdir(parents=True, exist_ok=True)
    machine = describe("asyncio", options.home)
    samples, totals = asyncio.run(_soak(options, say))
    check(totals)
    machine["load_after"] = round(os.getloadavg()[0], 2)
    return Report(rows=rows(samples), goals=goals(samples, totals), totals=totals, samples=samples, machine=machine)


async def _soak(options: Options, say: Callable[[str], None]) -> tuple[list[Sample], Totals]:
    seconds = options.hours * 3600
    every = max(1.0, seconds / LOOKS)
    keep = min(600.0, seconds / 10) if options.keep is None else options.keep
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.home) as folder, contextlib.ExitStack() as stack:
        home = os.path.realpath(folder)  # noqa: ASYNC240 - once, before anything runs
        database = options.postgres or f"sqlite:///{home}/tasks.db"
        redis = options.redis
        if options.servers:
            database = stack.enter_context(servers.postgresql())
            redis = stack.enter_context(servers.redis())
        async with simulated("--latency", f"fixed:{LATENCY_MS}ms") as url:
            command = [sys.executable, "-P", "-m", "siafu", "serve", "--port", "0"]
            told = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "sk-bench", "SIAFU_HOME": home}
            with started("siafu serve", command, told, Path(home)) as server:
                order = run.Order(
                    seconds=seconds,
                    every=every,
                    rate=options.rate,
                    keep=keep,
                    folder=home,
                    url=f"http://127.0.0.1:{server.port}/v1",
                    database=database,
                    redis=redis,
                )
                return await _watched(order, server, say)


async def _watched(order: run.Order, server: Server, say: Callable[[str], None]) -> tuple[list[Sample], Totals]:
    """Start the worker, and look at both processes whenever it tells something."""
    file = Path(order.folder) / "order.json"  # not on the command line, where others could read its passwords
    file.write_bytes(msgspec.json.encode(order))
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", run.__name__, str(file),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True, env=environ(),
    )  # fmt: skip
    samples: list[Sample] = []
    try:
        if worker.stdout is None or worker.stderr is None:
            raise TypeError("its output was asked for")
        while True:
            line = await asyncio.wait_for(worker.stdout.readline(), order.every + QUIET)
            if not line:
                said = (await worker.stderr.read()).decode("utf-8", "replace").strip().splitlines()
                raise MeasurementInvalid(f"the worker ended early: {preview(said[-1] if said else 'no reason given')}")
            told = json.loads(line)
            if told.get("ended"):
                return samples, _totals(told)
            samples.append(_sample(told, worker.pid, server.pid))
            if len(samples) % 10 == 1:
                say(_how_far(samples[-1], told, order.seconds))
    except TimeoutError:
        raise MeasurementInvalid(f"the worker has said nothing for {order.every + QUIET:.0f} s") from None
    finally:
        if worker.returncode is None:
            worker.kill()
        await worker.wait()


def _sample(told: dict[str, Any], worker: int, server: int) -> Sample:
    values: dict[str, float] = {}
    for name, pid in (("worker", worker), ("serve", server)):
        if (now := held(pid)) is not None:
            values |= {f"{name} memory_mb": now.rss_mb, f"{name} descriptors": float(now.descriptors)}
    values |= {f"{table} rows": float(number) for table, number in told["rows"].items()}
    if told["file_mb"] is not None:
        values["tasks file_mb"] = told["file_mb"]
    values["ledger kept_mb"] = told["ledger_mb"]
    return Sample(at=told["at"], values=values)


def _totals(told: dict[str, Any]) -> Totals:
    left, states = told["left"], told["states"]
    ended = ("succeeded", "failed", "cancelled", "expired", "dead_letter")
    return Totals(
        submitted=told["submitted"],
        succeeded=left.get("succeeded", 0),
        other=sum(number for state, number in left.items() if state not in ("succeeded", "ready")),
        open=sum(number for state, number in states.items() if state not in ended),
    )


def _how_far(sample: Sample, told: dict[str, Any], seconds: float) -> str:
    memory = ", ".join(f"{name} {value:,.0f}" for name, value in sample.values.items() if name.endswith("memory_mb"))
    return f"{sample.at:,.0f} of {seconds:,.0f} s: {told['submitted']:,} tasks submitted; {memory}"
