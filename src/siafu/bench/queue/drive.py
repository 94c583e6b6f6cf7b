"""Runs one queue and prints what it took, as one JSON line.

    python drive.py CLIENT_FILE ORDER_FILE

The order is JSON: together, tasks, ms, slots, submitters, limit (seconds), and what the queue's own file reads of it.
Only the standard library is imported, so that every queue, whatever environment it lives in, is driven by this file.
The worker is a process of its own, unless the order says `together`. One task is done before the clock starts. It stops
when the last end is recorded. CPU time is that of both processes, their threads included; that of servers is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Submit = Callable[[int], Awaitable[Any]]


class Count:
    """What a worker has done, of all tasks and the one before them. Times in seconds. Safe in threads."""

    def __init__(self, tasks: int, say: Callable[[dict[str, Any]], None]) -> None:
        self._wanted = tasks + 1
        self._say = say
        self._lock = threading.Lock()
        self._seen: set[int] = set()
        self._begun = self._recorded = self._running = self._most = 0
        self._busy = self._longest = self._cpu = 0.0

    @contextlib.contextmanager
    def task(self, number: int) -> Iterator[None]:
        """A task is worked on while the block runs."""
        with self._lock:
            self._begun += 1
            self._seen.add(number)
            self._running += 1
            self._most = max(self._most, self._running)
        began = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - began
            with self._lock:
                self._running -= 1
                self._busy += took
                self._longest = max(self._longest, took)

    def recorded(self, more: int = 1) -> None:
        """So many more ends are recorded."""
        with self._lock:
            before = self._recorded
            self._recorded += more
            if before == 0 < self._recorded:
                self._busy, self._longest, self._cpu = 0.0, 0.0, time.process_time()
                self._say({"warm": True})
            if before < self._wanted <= self._recorded:
                self._say(
                    {
                        "done": len(self._seen) - 1,
                        "twice": self._begun - len(self._seen),
                        "busy": self._busy,
                        "longest": self._longest,
                        "most": self._most,
                        "cpu": time.process_time() - self._cpu,
                    }
                )


class Told:
    """What a worker says, line by line, until it has ended."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def say(self, line: dict[str, Any] | None) -> None:
        self._lines.put_nowait(line)

    async def next(self) -> dict[str, Any]:
        line = await self._lines.get()
        if line is None:
            raise RuntimeError("the worker ended before its tasks had")
        return line


@contextlib.asynccontextmanager
async def apart(words: Sequence[str], told: Told) -> AsyncIterator[None]:
    """A worker in a process of its own while the block runs."""
    flags = ("-I",) if sys.flags.isolated else ("-P",)
    worker = await asyncio.create_subprocess_exec(
        sys.executable, *flags, __file__, *words, "worker",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert worker.stdout is not None  # noqa: S101  it was asked for

    async def listen(lines: asyncio.StreamReader) -> None:
        async for line in lines:
            if line.startswith(b'{"'):  # else it is said by the queue's own library
                told.say(json.loads(line))
        told.say(None)

    listening = asyncio.create_task(listen(worker.stdout))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()
        listening.cancel()


async def measure(submit: Submit, order: dict[str, Any], told: Told) -> dict[str, Any]:
    """One task, then all of them from `submitters` that wait for each acceptance."""
    await submit(0)
    await told.next()
    left = iter(range(1, order["tasks"] + 1))

    async def submitter() -> None:
        for number in left:
            await submit(number)

    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.gather(*(submitter() for _ in range(order["submitters"])))
    accepted = time.perf_counter() - began
    found = await told.next()
    seconds, own = time.perf_counter() - began, time.process_time() - cpu
    found["cpu"] = own if order["together"] else own + found["cpu"]
    return {**found, "seconds": seconds, "accepted": accepted}


async def run(client: Any, words: Sequence[str], order: dict[str, Any]) -> dict[str, Any]:
    told = Told()
    async with asyncio.timeout(order["limit"]):
        if order["together"]:
            async with client.together(order, Count(order["tasks"], told.say)) as submit:
                return await measure(submit, order, told)
        async with apart(words, told), client.submitting(order) as submit:
            return await measure(submit, order, told)


def main(file: str, order_file: str, role: str = "submitter") -> None:
    spec = importlib.util.spec_from_file_location("client", file)
    assert spec is not None and spec.loader is not None  # noqa: S101  it is a Python file
    client = importlib.util.module_from_spec(spec)
    sys.modules["client"] = client  # some libraries look a task's module up
    spec.loader.exec_module(client)
    order = json.loads(Path(order_file).read_text(encoding="utf-8"))
    if role == "worker":
        threading.Thread(target=_end_with_parent, daemon=True).start()
        client.worker(order, Count(order["tasks"], lambda line: print(json.dumps(line), flush=True)))
    else:
        print(json.dumps(asyncio.run(run(client, (file, order_file), order))))


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
