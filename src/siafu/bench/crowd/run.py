"""The crowd, in a process of its own; prints what it took as JSON.

python -m siafu.bench.crowd.run '{"port":...,"waiting":...,"in_flight":...,"calls":...,"folder":"..."}'
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from siafu.bench.crowd.probe import Probe, stall_ms
from siafu.bench.gateway.clients.siafu_path import with_store
from siafu.bench.gateway.drive import BODY, Crowd, raise_file_limit, server_stats
from siafu.config.collector import relieve_collector

IDLE_SECONDS = 3.0


async def run(port: int, waiting: int, in_flight: int, calls: int, folder: str) -> dict[str, Any]:
    """One crowd: each agent asks, waits for its turn and its answer, and asks again. How late the loop is counts from
    when half of them were answered once, so that all wait or are under way, until they begin to have nothing to ask.
    """
    async with Probe() as idle:
        await asyncio.sleep(IDLE_SECONDS)
    before = _rss_mb()
    async with with_store(f"http://127.0.0.1:{port}/v1", BODY, in_flight, Path(folder)) as call:
        crowd, agents = Crowd(call), waiting + in_flight
        server_stats(port)
        cpu, began = time.process_time(), time.perf_counter()
        async with Probe() as whole, asyncio.TaskGroup() as group:
            group.create_task(crowd.run(range(calls), agents))
            await _ended(crowd, agents // 2)
            async with Probe() as busy:
                await _ended(crowd, calls - agents)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        stats = server_stats(port)
    return {
        "agents": agents,
        "calls": calls,
        "errors": len(crowd.errors),
        "first_error": crowd.errors[0] if crowd.errors else "",
        "server_calls": stats["calls"],
        "agents_in_calls": crowd.busy / wall,
        "in_flight": stats["calls"] * (stats["service_ms"] or 0.0) / 1e3 / wall,
        "calls_per_s": calls / wall,
        "cpu_ms_per_call": cpu / calls * 1e3,
        "rss_mb": _rss_mb(),
        "rss_before_mb": before,
        "stall_p99_9_ms": stall_ms(busy.late, 99.9),
        "stall_p50_ms": stall_ms(busy.late, 50),
        "stall_longest_ms": stall_ms(whole.late, 100),
        "idle_p99_9_ms": stall_ms(idle.late, 99.9),
        "idle_longest_ms": stall_ms(idle.late, 100),
    }


async def _ended(crowd: Crowd, calls: int) -> None:
    """Wait until so many calls have ended."""
    while len(crowd.answered) + len(crowd.errors) < calls:  # noqa: ASYNC110 - it tells nobody, so that it costs nothing
        await asyncio.sleep(0.02)


def _rss_mb() -> float:
    """The most that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    raise_file_limit()
    relieve_collector()
    print(json.dumps(asyncio.run(run(**json.loads(sys.argv[1])))))
