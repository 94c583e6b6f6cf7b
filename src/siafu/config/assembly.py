"""Puts a siafu together from settings: endpoint, gateway, store, tools. Nothing else builds these classes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from siafu.agents.task import ModelOptions, Surroundings, unaudited
from siafu.apps.support.routes import ROLES
from siafu.border.money import parse_usd
from siafu.config.budgets import open_accounts, thrift
from siafu.config.canary import following_canaries
from siafu.config.checking import risks, strange_roles
from siafu.config.reaching import explained
from siafu.config.reload import Following, following
from siafu.config.reuse import reuse_rules
from siafu.config.settings import Settings
from siafu.config.simulated import NOTICE
from siafu.config.telemetry import telemetry
from siafu.config.upstreams import configured_prices, open_ways, rules
from siafu.errors import UnpricedModel
from siafu.gateway.accounts import Accounts, Rules
from siafu.gateway.client import Gateway, Way, assemble
from siafu.gateway.endpoint import Endpoint
from siafu.gateway.gauges import gateway_families
from siafu.gateway.guard import Patience
from siafu.gateway.hedge import Hedge
from siafu.gateway.meter import MemoryLedger
from siafu.gateway.tally import Tally
from siafu.gateway.upstream import Upstream
from siafu.observe import spans
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, HeadsDiffer, LimitsShared, Observer, fan_out, nobody
from siafu.pace.clock import SystemClock
from siafu.store.commits import ledger_families
from siafu.store.records import Claimed, ItemRecord, Journal, Ledger, RunState, RunStore
from siafu.store.redis import RedisDoor
from siafu.store.sqlite import SqliteStore
from siafu.tools.functions import Functions
from siafu.tools.patience import ToolPatience
from siafu.tools.toolset import ToolSet
from siafu.tools.traced import TracedTools

if TYPE_CHECKING:
    from siafu.observe.scrape import Scrape  # prometheus_client, 50 ms

SERVED = 5.0  # seconds that who asks a server waits for an upstream that fails, at most


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one run needs beside the settings.

    run: its name. journal: the database file, None = nothing is kept. budget_pico: None = no budget.
    per_item_pico: what one item may cost, None = as the settings say. allow_unpriced: models without a price may run
    under a budget. tools: Python functions or one ToolSet, which
    stays the caller's to close. endpoint: an Endpoint to use as it is (tests), None = as the settings say. notice: told
    when the simulated endpoint stands in. models: that will be asked, when they are others than those of the settings.
    roles: as for `notices`.
    denied: as in `Surroundings`. served, scrape: as in `Front`.
    """

    run: str = "map"
    journal: Path | None = None
    budget_pico: int | None = None
    per_item_pico: int | None = None
    allow_unpriced: bool = False
    tools: ToolSet | Sequence[Callable[..., Any]] | None = None
    endpoint: Endpoint | None = None
    defaults: ModelOptions = {}
    observer: Observer = nobody
    notice: Callable[[str], None] | None = None
    models: Collection[str] = ()
    roles: Collection[str] = ()
    denied: Callable[[CallContext, str], Awaitable[None]] = unaudited
    served: bool = False
    scrape: Scrape | None = None


class Front(NamedTuple):
    """For whom a gateway is opened. observer: told every event. notice: told what people should know. asked: set to
    have the settings read again at once. served: for somebody who waits for one answer, and wants to know soon when
    there is none. scrape: who tells metrics, also of this gateway.
    """

    observer: Observer = nobody
    notice: Callable[[str], None] | None = None
    asked: asyncio.Event | None = None
    served: bool = False
    scrape: Scrape | None = None


class House(msgspec.Struct, frozen=True, kw_only=True):
    """The built parts of one run. `upstream`: where models are called first, None for a given endpoint. explain: asks
    the endpoints what keeps them from answering, and says what to do.
    """

    around: Surroundings
    store: RunStore | None
    upstream: Upstream | None
    explain: Callable[[], Awaitable[list[str]]]


@contextlib.asynccontextmanager
async def opened(settings: Settings, plan: Plan) -> AsyncIterator[House]:
    """Build everything, and close it again with the block, in reverse order.

    Raises: ConfigError, StoreError.
    """
    clock = SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(telemetry())
        accounts = await stack.enter_async_context(open_accounts(settings, plan.journal, clock))
        rules = _rules(settings, plan)
        store: RunStore | None = None
        if plan.journal is not None:
            file = SqliteStore(plan.journal)
            store = _Budgeted(file.run(plan.run), accounts, plan, rules)
            if plan.scrape is not None:
                plan.scrape.add(partial(ledger_families, file))
            stack.push_async_callback(store.aclose)
        else:
            _set_budget(accounts, plan, rules, spent=0)
        upstream: Upstream | None = None
        endpoint = plan.endpoint
        if endpoint is None:
            if plan.notice is not None:
                for text in notices(settings, plan.roles):
                    plan.notice(text)
            ways = await stack.enter_async_context(open_ways(settings))
            upstream = ways[0].upstream
            ledger = MemoryLedger() if store is None else store.ledger
            front = Front(plan.observer, plan.notice, served=plan.served, scrape=plan.scrape)
            endpoint = await stack.enter_async_context(open_gateway(settings, ways, ledger, accounts, front))
        tools = plan.tools
        if tools is not None and isinstance(tools, Sequence):
            tools = Functions(*tools)
        if tools is not None and (tracer := spans.tracer()) is not None:
            tools = TracedTools(tools, tracer)
        observer = plan.observer if plan.scrape is None else fan_out(plan.observer, plan.scrape.counts)
        around = Surroundings(
            endpoint=endpoint,
            clock=clock,
            tools=tools,
            defaults=plan.defaults,
            observer=observer,
            denied=plan.denied,
            patience=tool_patience(settings, observer, served=plan.served),
        )
        yield House(around=around, store=store, upstream=upstream, explain=partial(explained, settings, plan.models))


def notices(settings: Settings, roles: Collection[str] = ROLES) -> list[str]:
    """What people should know before anything is sent. roles: all that agents have; empty = nobody knows.

    Raises: ConfigError.
    """
    return [NOTICE] * settings.simulated + risks(settings) + (strange_roles(settings, roles) if roles else [])


def check_prices(settings: Settings, plan: Plan, models: Collection[str]) -> None:
    """See, before anything is sent under a budget, that each of `models` has a price, and what the soft limit takes
    instead of it too. Several upstreams have names of their own for models: there each call is looked at by itself.

    Raises: UnpricedModel.
    """
    if settings.upstreams:
        return
    own, budgets = settings.budgets, (plan.budget_pico, plan.per_item_pico)
    limits = (*budgets, own.day, own.per_item, own.per_agent, *own.roles.values(), *own.keys.values())
    if plan.allow_unpriced or all(each is None for each in limits):
        return
    prices, now = configured_prices(settings), SystemClock().wall()
    wanted = sorted({*models, *(own.cheaper[model] for model in models if model in own.cheaper)})
    missing = [model for model in wanted if prices.rates(model, now) is None]
    if missing:
        raise UnpricedModel(
            f"there is a budget, but no price for exactly {', '.join(missing[:5])}: nothing was sent; check the "
            "spelling, set a price ([prices] in siafu.toml), or allow unpriced models (--allow-unpriced)",
            attempts=0,
        )


def told(observer: Observer, notice: Callable[[str], None] | None) -> Observer:
    """`observer`; that limits are not shared, and prompts not cached, is said once as a notice too."""
    said = set[str]()

    def tell(event: Event) -> None:
        if notice is None:
            return
        if isinstance(event, HeadsDiffer) and (text := _differing(event)) not in said:
            said.add(text)
            notice(text)
        elif isinstance(event, LimitsShared) and event.alone and "alone" not in said:
            said.add("alone")
            part = "all of" if event.processes == 1 else f"one in {event.processes} of"
            notice(f"Redis does not share the limits now: this process uses {part} them. {event.why}")

    return observer if notice is None else fan_out(observer, tell)


def _differing(event: HeadsDiffer) -> str:
    changes = {
        "tools": "the tools or their order change",
        "format": "the form of the answer changes",
        "system": f"the system text changes after {event.at:,} characters",
    }
    kind = f"{event.role} calls" if event.role else "calls"
    return (
        f"the prompt cache cannot help {kind} to {event.model}: {changes[event.part]} from call to call. What is of "
        "one call only (the time, an id, the item itself) belongs into the user's message"
    )


@contextlib.asynccontextmanager
async def open_gateway(
    settings: Settings,
    ways: Sequence[Way],
    ledger: Ledger,
    accounts: Accounts,
    front: Front,
) -> AsyncIterator[Gateway]:
    """The gateway over `ways`, under the settings' routes. While the block runs it follows settings, keys and canaries
    as they are changed.

    Raises: ConfigError, StoreError.
    """
    redis = None if settings.simulated else settings.redis()
    observer, notice = front.observer, front.notice
    tally = Tally()
    told_too: list[Observer] = [] if spans.tracer() is None else [spans.note]
    if front.scrape is not None:
        observer = fan_out(observer, front.scrape.counts)
    gateway = assemble(
        ways,
        rules(settings),
        ledger=ledger,
        accounts=accounts,
        clock=SystemClock(),
        rng=Random(),
        observer=fan_out(told(observer, notice), tally, *told_too),
        thrift=thrift(settings),
        patience=_patience(settings, served=front.served),
        hedge=_hedge(settings),
        reuse=reuse_rules(settings.reuse),
        redis=None if redis is None else RedisDoor(redis),
    )
    async with (
        contextlib.aclosing(gateway),
        following(Following(settings, gateway, ways, observer, front.asked), notice),
        following_canaries(settings, gateway, tally, observer, notice),
    ):
        if front.scrape is not None:
            front.scrape.add(partial(gateway_families, gateway, SystemClock()))
        yield gateway


def _patience(settings: Settings, *, served: bool) -> Patience:
    own = settings.patience
    if served:
        return Patience(outage=min(SERVED, own.outage_seconds), probe=own.quota_probe_seconds)
    return Patience(
        outage=own.outage_seconds,
        ends_run=own.outage_seconds > 0,
        quota=own.quota_seconds,
        probe=own.quota_probe_seconds,
    )


def tool_patience(settings: Settings, observer: Observer, *, served: bool) -> ToolPatience:
    """The same for tool servers. served: as in `Front`."""
    seconds = settings.patience.outage_seconds
    return ToolPatience(
        min(SERVED, seconds) if served else seconds, clock=SystemClock(), rng=Random(), observer=observer
    )


def _hedge(settings: Settings) -> Hedge | None:
    own, soft = settings.hedging, settings.budgets.soft
    if not own.enabled:
        return None
    return Hedge(share=own.share) if soft is None else Hedge(share=own.share, soft=soft)


def _rules(settings: Settings, plan: Plan) -> Rules:
    """The budgets within the run."""
    own = settings.budgets
    item = plan.per_item_pico if plan.per_item_pico is not None or own.per_item is None else parse_usd(own.per_item)
    return Rules(per_item=item, per_agent=None if own.per_agent is None else parse_usd(own.per_agent))


def _set_budget(accounts: Accounts, plan: Plan, rules: Rules, *, spent: int) -> None:
    accounts.set(plan.run, limit=plan.budget_pico, spent=spent, allow_unpriced=plan.allow_unpriced, rules=rules)


class _Budgeted:
    """A RunStore that tells the account, when the run begins, what its earlier sessions have spent."""

    def __init__(self, inner: RunStore, accounts: Accounts, plan: Plan, rules: Rules) -> None:
        self._inner = inner
        self._accounts = accounts
        self._plan = plan
        self._rules = msgspec.structs.replace(rules, earlier=inner.ledger.spent_on)
        self.journal: Journal = inner.journal
        self.ledger: Ledger = inner.ledger

    async def begin(self, work_print: str) -> RunState:
        state = await self._inner.begin(work_print)
        _set_budget(self._accounts, self._plan, self._rules, spent=state.spent_pico)
        return state

    async def claim(self, items: Sequence[tuple[str, str]]) -> list[Claimed]:
        return await self._inner.claim(items)

    def record(self, item: ItemRecord) -> Awaitable[None]:
        return self._inner.record(item)

    async def aclose(self) -> None:
        await self._inner.aclose()
