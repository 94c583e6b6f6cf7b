"""What `siafu serve` stands on, built from the settings: the gateway with a durable ledger, client keys, swarms."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec

from siafu.apps.batches.desk import BatchDesk
from siafu.border.identity import identity_key
from siafu.border.secrets import Secret
from siafu.config.assembly import Front, notices, open_gateway
from siafu.config.batches import batch_desk
from siafu.config.budgets import open_accounts
from siafu.config.client_keys import LEDGER, RUN, client_keys
from siafu.config.settings import Settings
from siafu.config.swarms import SupportSwarm, support_swarm
from siafu.config.task_house import TaskHouse, task_house
from siafu.config.telemetry import telemetry
from siafu.config.upstreams import open_ways
from siafu.config.watching import scrape_of, scrape_token
from siafu.gateway.accounts import Accounts
from siafu.gateway.endpoint import Endpoint
from siafu.observe.scrape import Scrape
from siafu.pace.clock import Clock, SystemClock
from siafu.store.client_keys import ClientKeys
from siafu.store.commits import ledger_families
from siafu.store.key_spending import charged_now
from siafu.store.records import AttemptOpened, AttemptSettled, Ledger
from siafu.store.redis import RedisDoor
from siafu.store.sqlite import SqliteStore


class Departures:
    """The ledger, and who is told when a request leaves: the line of an attempt is written just before."""

    def __init__(self, inner: Ledger) -> None:
        self._inner = inner
        self.left: Callable[[str], None] = _nobody_waits

    async def open(self, line: AttemptOpened) -> None:
        await self._inner.open(line)
        self.left(line.task)

    def settle(self, line: AttemptSettled) -> None:
        self._inner.settle(line)

    async def spent_on(self, task: str) -> Mapping[str, int]:
        return await self._inner.spent_on(task)


def _nobody_looks() -> None:
    """Nothing follows the settings."""


def _nobody_waits(task: str) -> None:
    """Nobody is told."""


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """The built parts. spent: as in `service.budgets`. models: the upstream's list, as it is asked. support, tasks: or
    why there are none. identity_key: checks who a customer is. scrape, scrape_token: the metrics, and what who asks
    for them has to send (None = only this machine may ask). batches: works once it is opened; None = there are
    neither files nor batches. reload: has the settings read again. redis: where servers share the limits of client
    keys; None = nowhere.
    """

    clock: Clock
    endpoint: Endpoint
    accounts: Accounts
    departures: Departures
    keys: ClientKeys
    spent: Callable[[str, float], Awaitable[tuple[int, int]]]
    models: Callable[[], Awaitable[Sequence[str]]]
    support: SupportSwarm | str
    identity_key: Secret | None
    tasks: TaskHouse | str
    simulated: bool
    scrape: Scrape
    scrape_token: Secret | None = None
    batches: BatchDesk | None = None
    reload: Callable[[], None] = _nobody_looks
    redis: RedisDoor | None = None


@contextlib.asynccontextmanager
async def serving(settings: Settings, notice: Callable[[str], None]) -> AsyncIterator[Serving]:
    """Build everything, and close it again with the block. One process serves from a home folder at a time. notice:
    told what an operator should know, at the start and later.

    Raises: ConfigError, StoreError; StoreBusy when another one does.
    """
    clock = SystemClock()
    scrape, token = scrape_of(settings, clock), scrape_token()
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(telemetry())
        await stack.enter_async_context(scrape.lag.measured())
        ways = await stack.enter_async_context(open_ways(settings))
        for text in notices(settings):
            notice(text)
        accounts = await stack.enter_async_context(open_accounts(settings, settings.home / LEDGER, clock, clients=True))
        keys = await stack.enter_async_context(client_keys(settings))
        store = SqliteStore(settings.home / LEDGER)
        run = store.run(RUN)
        stack.push_async_callback(run.aclose)
        state = await run.begin("")
        scrape.add(partial(ledger_families, store))
        if state.in_flight:
            notice(f"{state.in_flight} calls were in flight when the last process ended: lost_in_crash in the ledger")
        departures = Departures(run.ledger)
        asked = asyncio.Event()
        front = Front(notice=notice, asked=asked, served=True, scrape=scrape)
        gateway = await stack.enter_async_context(open_gateway(settings, ways, departures, accounts, front))
        tasks = await stack.enter_async_context(task_house(settings))
        if isinstance(tasks, str):
            notice(f"{tasks} (no tasks are taken; all else is served)")
        support = await stack.enter_async_context(support_swarm(settings, gateway, scrape.counts))
        desk = await stack.enter_async_context(batch_desk(settings, gateway, clock))

        address = settings.redis()
        redis = None if address is None else await stack.enter_async_context(contextlib.aclosing(RedisDoor(address)))

        async def spent(key: str, since: float) -> tuple[int, int]:
            return await charged_now(store, run=run.id, key=key, since=since)

        yield Serving(
            clock=clock,
            endpoint=gateway,
            accounts=accounts,
            departures=departures,
            keys=keys,
            spent=spent,
            models=gateway.models,
            support=support,
            identity_key=identity_key(),
            tasks=tasks,
            simulated=settings.simulated,
            scrape=scrape,
            scrape_token=token,
            batches=desk,
            reload=asked.set,
            redis=redis,
        )
