"""Runs one client in this process and prints what it took, as one JSON line.

    python drive.py CLIENT_FILE FUNCTION '{"port":…,"calls":…,"agents":…,"loop":"asyncio","collector":[…],"folder":"…"}'

Only the standard library is imported, so that every client, whatever environment it lives in, is driven by this file.
Each agent asks, waits for the answer and asks again. Connections are open before the clock starts. CPU time is that
of the whole process, its threads included. `collector`: the thresholds of the garbage collector, the same for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import importlib
import importlib.util
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

TOGETHER = 256  # agents that start in one turn of the loop, as `siafu.map` starts them
MARK = "배송"  # stands in every answer of the server
BODY = {
    "model": "kimi-k2.5",
    "messages": [
        {"role": "system", "content": "You answer customers of an online shop, briefly and in their language."},
        {
            "role": "user",
            "content": "주문번호 1001번 배송이 언제 오는지 알려주세요. " + "They ordered a kettle and two cups. " * 12,
        },
    ],
    "max_tokens": 512,
}


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes event loops of the kind `asyncio` or `uvloop`."""
    if name == "asyncio":
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module(name).new_event_loop
    return factory


def raise_file_limit() -> None:
    """As many open sockets as the system allows this process."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):  # macOS names a limit that it does not grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Crowd:
    """Agents that share `calls` calls among them. Times in seconds."""

    def __init__(self, call: Callable[[int], Awaitable[str]]) -> None:
        self._call = call
        self.answered: list[float] = []
        self.busy = 0.0
        self.errors: list[str] = []

    async def run(self, numbers: range, agents: int) -> None:
        left = iter(numbers)

        async def agent() -> None:
            for number in left:
                began = time.perf_counter()
                wrong = ""
                try:
                    text = await self._call(number)
                    if MARK not in text:
                        wrong = "another answer than the server's"
                except Exception as error:  # noqa: BLE001 - whatever a client raises is its result
                    wrong = f"{type(error).__name__}: {error}"[:200]
                seconds = time.perf_counter() - began
                self.busy += seconds
                if wrong:
                    self.errors.append(wrong)
                else:
                    self.answered.append(seconds)

        tasks = []
        for number in range(1, agents + 1):
            tasks.append(asyncio.create_task(agent()))
            if number % TOGETHER == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)


def server_stats(port: int, path: str = "/stats") -> dict[str, Any]:
    """What the server on this machine says that it has seen; at `/stats`, since it was asked the last time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        stats: dict[str, Any] = json.loads(connection.getresponse().read())
        return stats
    finally:
        connection.close()


async def measure(connect: Any, *, port: int, calls: int, agents: int, folder: str) -> dict[str, Any]:
    """Warm up with one call an agent, then time `calls` calls."""
    async with connect(f"http://127.0.0.1:{port}/v1", BODY, agents, Path(folder)) as call:
        await Crowd(call).run(range(-agents, 0), agents)
        server_stats(port)
        crowd = Crowd(call)
        cpu, began = time.process_time(), time.perf_counter()
        await crowd.run(range(calls), agents)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        stats = server_stats(port)
    return {
        "answered": crowd.answered,
        "busy": crowd.busy,
        "errors": len(crowd.errors),
        "first_error": crowd.errors[0] if crowd.errors else "",
        "cpu": cpu,
        "wall": wall,
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "server_calls": stats["calls"],
        "service_ms": stats["service_ms"],
    }


def main(file: str, function: str, order: str) -> None:
    raise_file_limit()
    spec = importlib.util.spec_from_file_location("client", file)
    assert spec is not None and spec.loader is not None  # noqa: S101  it is a Python file
    client = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(client)
    options = json.loads(order)
    gc.freeze()
    gc.set_threshold(*options.pop("collector"))
    with asyncio.Runner(loop_factory=loop_factory(options.pop("loop"))) as runner:
        print(json.dumps(runner.run(measure(getattr(client, function), **options))))


if __name__ == "__main__":
    main(*sys.argv[1:])
