"""Puts a siafu together from settings: endpoint, gateway, store, tools. Nothing else builds these classes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from siafu.agents.task import ModelOptions, Surroundings, unaudited
from siafu.config.settings import Settings, resolved
from siafu.config.simulated import NOTICE, simulated
from siafu.gateway.accounts import Accounts
from siafu.gateway.client import Gateway, assemble
from siafu.gateway.endpoint import Endpoint
from siafu.gateway.limits import Limits
from siafu.gateway.meter import MemoryLedger
from siafu.gateway.pricing import Price, Prices
from siafu.gateway.transport import Timeouts, Upstream
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, LimitsShared, Observer, fan_out, nobody
from siafu.pace.clock import SystemClock
from siafu.store.records import Claimed, ItemRecord, Journal, Ledger, RunState, RunStore
from siafu.store.redis import RedisDoor
from siafu.store.sqlite import SqliteStore
from siafu.tools.functions import Functions
from siafu.tools.toolset import ToolSet


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one run needs beside the settings.

    run: its name. journal: the database file, None = nothing is kept. budget_pico: None = no budget.
    allow_unpriced: models without a price may run under a budget. tools: Python functions or one ToolSet, which
    stays the caller's to close. endpoint: an Endpoint to use as it is (tests), None = as the settings say. notice: told
    when the simulated endpoint stands in. denied: as in `Surroundings`.
    """

    run: str = "map"
    journal: Path | None = None
    budget_pico: int | None = None
    allow_unpriced: bool = False
    tools: ToolSet | Sequence[Callable[..., Any]] | None = None
    endpoint: Endpoint | None = None
    defaults: ModelOptions = {}
    observer: Observer = nobody
    notice: Callable[[str], None] | None = None
    denied: Callable[[CallContext, str], Awaitable[None]] = unaudited


class House(msgspec.Struct, frozen=True, kw_only=True):
    """The built parts of one run. `base_url`: where models are called, None for a given endpoint."""

    around: Surroundings
    store: RunStore | None
    base_url: str | None


@contextlib.asynccontextmanager
async def opened(settings: Settings, plan: Plan) -> AsyncIterator[House]:
    """Build everything, and close it again with the block, in reverse order.

    Raises: ConfigError, StoreError.
    """
    clock = SystemClock()
    accounts = Accounts()
    async with contextlib.AsyncExitStack() as stack:
        store: RunStore | None = None
        if plan.journal is not None:
            store = _Budgeted(SqliteStore(plan.journal).run(plan.run), accounts, plan)
            stack.push_async_callback(store.aclose)
        else:
            _set_budget(accounts, plan, spent=0)
        base_url: str | None = None
        endpoint = plan.endpoint
        if endpoint is None:
            upstream = await _upstream(settings, plan, stack)
            base_url = upstream.base_url
            gateway = build_gateway(
                settings, upstream, MemoryLedger() if store is None else store.ledger, accounts, _told(plan)
            )
            stack.push_async_callback(gateway.aclose)
            endpoint = gateway
        tools = plan.tools
        if tools is not None and isinstance(tools, Sequence):
            tools = Functions(*tools)
        around = Surroundings(
            endpoint=endpoint,
            clock=clock,
            tools=tools,
            defaults=plan.defaults,
            observer=plan.observer,
            denied=plan.denied,
        )
        yield House(around=around, store=store, base_url=base_url)


async def _upstream(settings: Settings, plan: Plan, stack: contextlib.AsyncExitStack) -> Upstream:
    if not settings.simulated:
        return configured_upstream(settings)
    if plan.notice is not None:
        plan.notice(NOTICE)
    base_url = await stack.enter_async_context(simulated())
    return Upstream(name="simulated", base_url=base_url, timeouts=_timeouts(settings))


def configured_upstream(settings: Settings) -> Upstream:
    """The upstream that the settings name. Raises: ConfigError when address, key or headers cannot be used."""
    return Upstream(
        name="default",
        base_url=settings.base_url(),
        key=settings.key(),
        headers=resolved(settings.endpoint.headers, "endpoint.headers"),
        timeouts=_timeouts(settings),
    )


def _told(plan: Plan) -> Observer:
    """The plan's observer; that limits are not shared is said once as a notice too."""
    notice, said = plan.notice, set[str]()

    def tell(event: Event) -> None:
        if isinstance(event, LimitsShared) and event.alone and notice is not None and not said:
            said.add(event.upstream)
            part = "all of" if event.processes == 1 else f"one in {event.processes} of"
            notice(f"Redis does not share the limits now: this process uses {part} them. {event.why}")

    return plan.observer if notice is None else fan_out(plan.observer, tell)


def _timeouts(settings: Settings) -> Timeouts:
    ends = settings.endpoint
    return Timeouts(connect=ends.connect_seconds, idle=ends.idle_seconds, total=ends.total_seconds)


def build_gateway(
    settings: Settings, upstream: Upstream, ledger: Ledger, accounts: Accounts, observer: Observer
) -> Gateway:
    """The gateway to one upstream under the settings' limits and prices."""
    own, redis = settings.limits, settings.redis()
    overrides = [
        Price(
            model=model,
            input=price.input,
            output=price.output,
            cached=price.cached,
            cache_write=price.cache_write,
            date=price.date.isoformat(),
            source="siafu.toml",
        )
        for model, price in settings.prices.items()
    ]
    return assemble(
        upstream,
        limits=Limits(
            concurrency=own.concurrency,
            policy=own.policy,
            ramp=own.ramp_seconds,
            interactive=own.interactive,
            rpm=own.rpm,
            tpm=own.tpm,
            max_wait=own.max_wait_seconds,
            processes=own.processes,
        ),
        prices=Prices(overrides, base_url=upstream.base_url),
        ledger=ledger,
        accounts=accounts,
        clock=SystemClock(),
        rng=Random(),
        observer=observer,
        redis=None if redis is None or settings.simulated else RedisDoor(redis),
    )


def _set_budget(accounts: Accounts, plan: Plan, *, spent: int) -> None:
    accounts.set(plan.run, limit=plan.budget_pico, spent=spent, allow_unpriced=plan.allow_unpriced)


class _Budgeted:
    """A RunStore that tells the account, when the run begins, what its earlier sessions have spent."""

    def __init__(self, inner: RunStore, accounts: Accounts, plan: Plan) -> None:
        self._inner = inner
        self._accounts = accounts
        self._plan = plan
        self.journal: Journal = inner.journal
        self.ledger: Ledger = inner.ledger

    async def begin(self, work_print: str) -> RunState:
        state = await self._inner.begin(work_print)
        _set_budget(self._accounts, self._plan, spent=state.spent_pico)
        return state

    async def claim(self, items: Sequence[tuple[str, str]]) -> list[Claimed]:
        return await self._inner.claim(items)

    def record(self, item: ItemRecord) -> Awaitable[None]:
        return self._inner.record(item)

    async def aclose(self) -> None:
        await self._inner.aclose()
