"""siafu as its users have it: `ctx.model` of one task a call, through the gateway that `config` builds, under the
limits that `siafu.map` has by default.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from siafu.agents.replay import Replay
from siafu.agents.task import TaskContext
from siafu.config.assembly import Plan, opened
from siafu.config.settings import Settings
from siafu.observe.calls import CallContext

RUN = "bench"

Call = Callable[[int], Awaitable[str]]


@asynccontextmanager
async def with_store(base_url: str, body: Mapping[str, Any], agents: int, folder: Path) -> AsyncIterator[Call]:
    """Ledger and journal in SQLite: a line is committed before a call, its answer before it is handed on."""
    async with _opened(base_url, body, agents, folder / "journal.db") as call:
        yield call


@asynccontextmanager
async def without_store(base_url: str, body: Mapping[str, Any], agents: int, folder: Path) -> AsyncIterator[Call]:
    """The same with the ledger in memory and no journal."""
    async with _opened(base_url, body, agents, None) as call:
        yield call


@asynccontextmanager
async def _opened(base_url: str, body: Mapping[str, Any], agents: int, journal: Path | None) -> AsyncIterator[Call]:
    settings = Settings.model_validate(
        {"endpoint": {"base_url": base_url, "api_key": "sk-bench"}, "limits": {"concurrency": agents}}
    )
    async with opened(settings, Plan(run=RUN, journal=journal)) as house:
        kept = None
        if house.store is not None:
            await house.store.begin(RUN)
            kept = house.store.journal
        prompt = body["messages"]
        options: Any = {name: value for name, value in body.items() if name != "messages"}

        async def call(number: int) -> str:
            task = str(number)
            ctx = TaskContext(house.around, CallContext(run=RUN, task=task), Replay(task, kept, ()))
            answer = await ctx.model(prompt, **options)
            return answer.text

        yield call
