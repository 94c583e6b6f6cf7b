"""One stage, in a process of its own; prints what it took as JSON.

    python -m siafu.bench.stages.run '{"tasks":1200,"workers":50,"rpm":1800,"burst":1,"latency_ms":200,"folder":"..."}'

The whole of siafu: tasks are accepted into SQLite all at once, a worker with so many slots does them, each is one model
call with limits, ledger and journal.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from siafu.bench.gateway.drive import BODY, raise_file_limit, server_stats
from siafu.bench.gateway.figures import nearest_rank
from siafu.bench.tasks import one_call, task_store
from siafu.border.stopping import Stops
from siafu.config.assembly import Plan, opened
from siafu.config.collector import relieve_collector
from siafu.config.settings import Settings
from siafu.config.simulated import simulated
from siafu.gateway.chat import Usage
from siafu.gateway.pricing import Prices
from siafu.pace.clock import SystemClock
from siafu.queue.worker import Handler, Worker, WorkerOptions
from siafu.store.spending import Spending
from siafu.store.task_desk import TaskDesk, Which
from siafu.store.task_records import NewTask

KIND = "stage"


async def run(tasks: int, workers: int, rpm: float, burst: float, latency_ms: float, folder: str) -> dict[str, Any]:
    limits = ("--rpm", str(rpm), "--burst", str(burst), "--latency", f"fixed:{latency_ms}ms")
    async with simulated(*limits) as url:
        settings = Settings.model_validate(
            {
                "endpoint": {"base_url": url, "api_key": "sk-bench"},
                "limits": {"concurrency": workers, "rpm": rpm},
            }
        )
        async with opened(settings, Plan(run=KIND, journal=Path(folder) / "ledger.db")) as house:
            if house.store is None:
                raise TypeError("a stage needs a ledger")
            await house.store.begin(KIND)
            calls: list[float] = []

            found = await _burst(tasks, workers, one_call(house.around, KIND, calls.append), folder)
        stats = await asyncio.to_thread(server_stats, urlsplit(url).port or 80, "/_sim/stats")
    with Spending(Path(folder) / "ledger.db") as ledger:
        spent = ledger.total(KIND).usd_pico
    tokens = stats["tokens"]
    rates = Prices().rates(str(BODY["model"]), time.time())
    used = Usage(input=tokens["prompt"], output=tokens["completion"], cached=tokens["cached"])
    return {
        **found,
        "busy": sum(calls),
        "call_p50": nearest_rank(calls, 50),
        "call_p95": nearest_rank(calls, 95),
        "call_p99": nearest_rank(calls, 99),
        "sent": stats["requests"],
        "refused": stats["by_status"].get("429", 0),
        "completed": stats["completed"],
        "spent_pico": spent,
        "priced_pico": 0 if rates is None else rates.cost(used, stats["completed"]),
        "cpu": time.process_time(),
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024),
    }


async def _burst(tasks: int, workers: int, handle: Handler, folder: str) -> dict[str, Any]:
    """Submit all at once to a worker that waits for them; what came of it, by the store's own times."""
    async with task_store(Path(folder) / "tasks.db") as (database, store, bell):
        stops = Stops(asyncio.Event(), asyncio.Event())
        worker = Worker("bench", store, {KIND: handle}, bell, SystemClock(), WorkerOptions(slots=workers))
        running = asyncio.create_task(worker.run(stops))
        began = time.perf_counter()
        await store.accept([NewTask(kind=KIND, payload="null") for _ in range(tasks)])
        while sum(worker.tally.left.values()) < tasks and not running.done():  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.005)
        seconds = time.perf_counter() - began
        stops.asked.set()
        await running
        ended = [row for row in await TaskDesk(database).find(Which(), limit=tasks) if row.ended_at is not None]
        planned = min((row.created_at for row in ended), default=0.0)  # of all: the burst is one moment
        took = [row.ended_at - planned for row in ended if row.ended_at is not None]
        return {
            "seconds": seconds,
            "succeeded": sum(row.state == "succeeded" for row in ended),
            "longest": max(took, default=0.0),
            "task_p50": nearest_rank(took, 50),
            "task_p95": nearest_rank(took, 95),
            "task_p99": nearest_rank(took, 99),
        }


if __name__ == "__main__":
    raise_file_limit()
    relieve_collector()
    print(json.dumps(asyncio.run(run(**json.loads(sys.argv[1])))))
