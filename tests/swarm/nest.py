"""What a map needs around it, without sockets or files: a store in dicts that outlives sessions, short spellings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable, Sequence
from typing import Any

import msgspec

from agents.ant_farm import DictJournal
from siafu.agents.task import Surroundings
from siafu.gateway.endpoint import Endpoint
from siafu.gateway.scripted import Scripted
from siafu.observe.events import Event
from siafu.pace.clock import Clock, SystemClock
from siafu.store.records import AttemptOpened, AttemptSettled, Claimed, ItemRecord, Journal, Ledger, RunState
from siafu.swarm.map import MapRun, map_items
from siafu.swarm.options import MapOptions
from siafu.swarm.results import MapResult
from siafu.tools.toolset import ToolSet


class _NoLedger:
    async def open(self, line: AttemptOpened) -> None: ...

    def settle(self, line: AttemptSettled) -> None: ...

    async def spent_on(self, task: str) -> dict[str, int]:
        return {}


class DictStore:
    """A RunStore whose rows are dicts. `next_session()` is the same disk, opened by another process."""

    def __init__(self) -> None:
        self.pages = DictJournal()
        self.journal: Journal = self.pages
        self.ledger: Ledger = _NoLedger()
        self.records: dict[str, ItemRecord] = {}
        self.written: list[str] = []
        self.sessions = 0
        self.in_flight = 0
        self.closed = False
        self.error: BaseException | None = None
        self._claimed: set[str] = set()

    def next_session(self) -> DictStore:
        self._claimed = set()
        self.closed = False
        return self

    async def begin(self, work_print: str) -> RunState:
        self.sessions += 1
        done = [r for r in self.records.values() if r.status == "ok"]
        other = [r for r in done if work_print and r.work_print not in ("", work_print)]
        return RunState(
            session=self.sessions,
            finished=len(done),
            failed=len(self.records) - len(done),
            changed=len(other),
            changed_pico=sum(r.usd_pico or 0 for r in other),
            in_flight=self.in_flight,
        )

    async def claim(self, items: Sequence[tuple[str, str]]) -> list[Claimed]:
        await asyncio.sleep(0)
        begun = {task for task, _, _ in self.pages.rows}
        found = []
        for key, _ in items:
            found.append(
                Claimed(key=key, record=self.records.get(key), duplicate=key in self._claimed, journaled=key in begun)
            )
            self._claimed.add(key)
        return found

    async def record(self, item: ItemRecord) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.records[item.key] = item
        self.written.append(item.key)

    async def aclose(self) -> None:
        self.closed = True


def start(
    work: Any,
    items: Iterable[Any] | AsyncIterable[Any],
    *,
    endpoint: Endpoint | None = None,
    store: DictStore | None = None,
    events: list[Event] | None = None,
    clock: Clock | None = None,
    tools: ToolSet | None = None,
    **options: Any,
) -> MapRun:
    """A map over a scripted endpoint that answers `ok`."""
    around = Surroundings(
        endpoint=endpoint or Scripted(lambda request, context: "ok"),
        clock=clock or SystemClock(),
        tools=tools,
        defaults={"model": "small"},
        observer=events.append if events is not None else lambda event: None,
    )
    return map_items(work, items, around=around, store=store, options=MapOptions(**{"grace": 0.2, **options}))


async def collect(run: MapRun) -> list[MapResult]:
    async with asyncio.timeout(20):
        return [result async for result in run]


async def results(work: Any, items: Any, **given: Any) -> list[MapResult]:
    return await collect(start(work, items, **given))


def brief(result: MapResult) -> dict[str, Any]:
    """What two runs have to agree on."""
    kept = {name: getattr(result, name) for name in ("key", "index", "status", "value", "usd_pico")}
    return kept | {"error": msgspec.to_builtins(result.error)}
