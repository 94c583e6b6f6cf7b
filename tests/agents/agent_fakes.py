"""What agents are tested with: tools in a dict, a journal in a dict, a context over a scripted endpoint."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from siafu.agents.replay import Replay
from siafu.agents.task import ModelOptions, Surroundings, TaskContext
from siafu.gateway.endpoint import Endpoint
from siafu.observe.calls import CallContext
from siafu.pace.clock import Clock, SystemClock
from siafu.store.records import JournalEntry
from siafu.tools.toolset import Tool, ToolResult

Body = Callable[[dict[str, Any]], Awaitable[ToolResult]]


def tool(name: str, *required: str, read_only: bool = True, **properties: Any) -> Tool:
    """A tool whose properties are strings unless told otherwise."""
    known = {key: {"type": "string"} for key in required} | properties
    schema = {"type": "object", "properties": known, "required": list(required), "additionalProperties": False}
    return Tool(name=name, description=f"{name} does it", input_schema=schema, read_only=read_only)


STATUS = tool("get_order_status", "order_id")
REFUND = tool("process_refund", "order_id", read_only=False, amount={"type": "integer", "minimum": 1})
PING = tool("ping")
SHOP = (STATUS, REFUND, PING)


class FakeTools:
    """A ToolSet over a dict of bodies; a tool without a body answers with its name and arguments."""

    def __init__(self, tools: Iterable[Tool] = SHOP, **bodies: Body | ToolResult | BaseException) -> None:
        self.tools = tuple(tools)
        self.bodies = bodies
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.contexts: list[CallContext] = []
        self.lists = self.running = self.peak = 0

    async def list(self) -> Sequence[Tool]:
        self.lists += 1
        return self.tools

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        self.calls.append((name, dict(arguments)))
        self.contexts.append(context)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await asyncio.sleep(0)
            body = self.bodies.get(name)
            if body is None:
                return ToolResult(text=f"{name} {dict(arguments)}")
            if isinstance(body, BaseException):
                raise body
            return body if isinstance(body, ToolResult) else await body(dict(arguments))
        finally:
            self.running -= 1


class Crash(Exception):
    """The process died here."""


class DictJournal:
    """A journal in a dict. The process dies at its `crash_at`-th append (from 0), after or before the entry is kept;
    nothing is kept from then on, until `restart`.
    """

    def __init__(self, *, crash_at: int | None = None, kept: bool = True) -> None:
        self.rows: dict[tuple[str, int], JournalEntry] = {}
        self.appends = 0
        self.crash_at = crash_at
        self.kept = kept

    async def entries(self, task: str) -> list[JournalEntry]:
        return [self.rows[key] for key in sorted(self.rows)]

    async def append(self, task: str, entry: JournalEntry) -> None:
        await asyncio.sleep(0)
        number, self.appends = self.appends, self.appends + 1
        alive = self.crash_at is None or number < self.crash_at
        if alive or (self.kept and number == self.crash_at):
            self.rows[entry.path, entry.seq] = entry
        if not alive:
            raise Crash

    def restart(self) -> None:
        """The process starts again; it does not die this time."""
        self.crash_at = None

    def finished(self) -> Counter[str]:
        """The calls whose outcome is journaled, by fingerprint."""
        return Counter(entry.fingerprint for entry in self.rows.values() if entry.kind != "intent")


async def context(
    endpoint: Endpoint,
    tools: FakeTools | None = None,
    *,
    journal: DictJournal | None = None,
    clock: Clock | None = None,
    defaults: ModelOptions | None = None,
    call: CallContext | None = None,
) -> TaskContext:
    """A task's context, as it is at the start of each session."""
    around = Surroundings(
        endpoint=endpoint, clock=clock or SystemClock(), tools=tools, defaults=defaults or {"model": "small"}
    )
    entries = [] if journal is None else await journal.entries("t")
    return TaskContext(around, call or CallContext(task="t"), Replay("t", journal, entries))


def tool_messages(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(call id, content) of all tool messages, in order."""
    return [(message["tool_call_id"], message["content"]) for message in messages if message["role"] == "tool"]
