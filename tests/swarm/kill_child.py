"""A process to be killed: maps over items with a SQLite journal, and asks a model in its parent over a socket.

python kill_child.py JOURNAL PORT keep|forget

It tells the parent of every answer once its journal entry is confirmed. `forget` drops the journal entries, to show
that the check would notice.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from siafu.agents.task import Surroundings, TaskContext
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import PlainReply, Reply
from siafu.gateway.scripted import say
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock
from siafu.store.records import AttemptOpened, AttemptSettled, JournalEntry, Ledger
from siafu.store.sqlite import SqliteStore
from siafu.swarm.map import map_items
from siafu.swarm.options import MapOptions
from siafu.swarm.results import MapResult

ITEMS = [{"id": f"주문-{n}"} for n in range(40)]
CALLS = 3 * len(ITEMS)
CONCURRENCY = 6


class Remote:
    """An Endpoint behind one socket, with a ledger line for each call."""

    def __init__(self, ledger: Ledger, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ledger = ledger
        self._writer = writer
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._listening = asyncio.create_task(self._listen(reader))
        self._attempts = 0

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            told = json.loads(line)
            self._waiting.pop(told["asked"]).set_result(told["answer"])

    def tell(self, word: str, asked: str) -> None:
        self._writer.write(json.dumps({word: asked}).encode() + b"\n")

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        asked = str(request.messages[-1]["content"])
        self._attempts += 1
        attempt = f"{os.getpid()}-{self._attempts}-{asked}"
        await self._ledger.open(
            AttemptOpened(
                attempt=attempt, run=context.run, task=context.task, step=context.step, agent="", role="",
                upstream="parent", model="m", opened_at=0.0, reserved_pico=9,
            )
        )  # fmt: skip
        self._waiting[asked] = asyncio.get_running_loop().create_future()
        self.tell("asked", asked)
        answer = say(await self._waiting[asked])
        self._ledger.settle(AttemptSettled(attempt=attempt, outcome="ok", settled_at=1.0, usage_known=True, usd_pico=7))
        return PlainReply(answer)

    async def aclose(self) -> None:
        self._listening.cancel()
        self._writer.close()


class Forgetful:
    async def entries(self, task: str) -> list[JournalEntry]:
        return []

    async def append(self, task: str, entry: JournalEntry) -> None: ...


async def work(item: dict[str, str], ctx: TaskContext, tell: Any = lambda word, asked: None) -> str:
    """Two calls at once, and a third that depends on both."""

    async def ask(text: str) -> str:
        answer = (await ctx.model(f"{item['id']} {text}")).text
        tell("kept", f"{item['id']} {text}")
        return answer

    parts = await asyncio.gather(ask("a"), ask("b"))
    return await ask(" ".join(parts))


async def run(journal: str, port: int, *, forget: bool = False) -> list[MapResult]:
    """One session; all results."""
    store = SqliteStore(journal).run("killed")
    if forget:
        store.journal = Forgetful()
    endpoint = Remote(store.ledger, *await asyncio.open_connection("127.0.0.1", port))

    async def told(item: dict[str, str], ctx: TaskContext) -> str:
        return await work(item, ctx, endpoint.tell)

    around = Surroundings(endpoint=endpoint, clock=SystemClock(), defaults={"model": "m"})
    options = MapOptions(concurrency=CONCURRENCY, run="killed")
    try:
        return [r async for r in map_items(told, ITEMS, around=around, store=store, options=options)]
    finally:
        await endpoint.aclose()
        await store.aclose()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2]), forget=sys.argv[3] == "forget"))
