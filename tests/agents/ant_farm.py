"""A task in a glass box: a journal in a dict, a tool set that counts, and crashes at any step."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from siafu.agents.replay import Replay
from siafu.agents.task import Surroundings, TaskContext
from siafu.gateway.endpoint import Endpoint
from siafu.observe.calls import CallContext
from siafu.observe.events import Event
from siafu.pace.clock import SystemClock
from siafu.store.records import JournalEntry
from siafu.tools.toolset import Tool, ToolResult

LOOK, ACT, POLL = Tool(name="look", read_only=True), Tool(name="act"), Tool(name="poll", idempotent=True)


class DictJournal:
    """Entries of all tasks by (task, path, seq)."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, int], JournalEntry] = {}

    async def entries(self, task: str) -> list[JournalEntry]:
        return [entry for key, entry in sorted(self.rows.items()) if key[0] == task]

    async def append(self, task: str, entry: JournalEntry) -> None:
        self.rows[task, entry.path, entry.seq] = entry


class Tools:
    """`look` reads, `act` has an effect, `poll` is idempotent. `fault`: raised instead of a result."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.fault: BaseException | None = None

    async def list(self) -> Sequence[Tool]:
        await asyncio.sleep(0)
        return [LOOK, ACT, POLL]

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        self.calls[name] += 1
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        return ToolResult(text=f"{name} {self.calls[name]}", structured=dict(arguments))


class Farm:
    """Contexts of one task, all on one journal, as a process would build them after each start."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.journal = DictJournal()
        self.tools = Tools()
        self.endpoint = endpoint
        self.events: list[Event] = []

    def seen(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    async def context(self) -> TaskContext:
        around = Surroundings(
            endpoint=self.endpoint,
            clock=SystemClock(),
            tools=self.tools,
            defaults={"model": "small"},
            observer=self.events.append,
        )
        replay = Replay("t", self.journal, await self.journal.entries("t"))
        return TaskContext(around, CallContext(run="r", task="t"), replay)
