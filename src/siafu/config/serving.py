"""What `siafu serve` stands on, built from the settings: the gateway with a durable ledger, client keys, swarms."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec

from siafu.border.secrets import Secret
from siafu.config.assembly import build_gateway
from siafu.config.client_keys import LEDGER, RUN, client_keys, customer_key
from siafu.config.settings import Settings
from siafu.config.simulated import NOTICE, simulated
from siafu.config.swarms import SupportSwarm, support_swarm
from siafu.config.upstreams import following_keys, usable_ways, way_to
from siafu.errors import ModelError
from siafu.gateway.accounts import Accounts
from siafu.gateway.client import Way
from siafu.gateway.endpoint import Endpoint
from siafu.gateway.transport import Transport
from siafu.gateway.upstream import Upstream
from siafu.observe.events import nobody
from siafu.pace.clock import Clock, SystemClock
from siafu.store.client_keys import ClientKeys
from siafu.store.key_spending import charged
from siafu.store.records import AttemptOpened, AttemptSettled, Ledger
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


class Listing:
    """The models that all upstreams offer: those that the settings name, else what the upstream itself lists."""

    def __init__(self, ways: Sequence[Way], clock: Clock) -> None:
        self._named: dict[str, None] = {}
        self._asked: dict[str, Transport] = {}  # one of an upstream's keys is enough
        for each in ways:
            if each.models is not None:
                self._named |= dict.fromkeys(each.models)
            elif each.upstream.name not in self._asked:
                self._asked[each.upstream.name] = Transport(each.upstream, clock)

    def rekey(self, ways: Sequence[Way]) -> None:
        """Ask with the keys of these ways from now on."""
        for each in reversed(ways):
            if each.upstream.name in self._asked:
                self._asked[each.upstream.name].rekey(each.upstream.key)

    async def models(self) -> Sequence[str]:
        """Raises: ModelError, when there is nothing to tell because an upstream does not say."""
        found, failed = dict(self._named), None
        for transport in self._asked.values():
            try:
                found |= dict.fromkeys((await transport.models()).models)
            except ModelError as error:
                failed = error
        if failed is not None and not found:
            raise failed
        return list(found)

    async def aclose(self) -> None:
        for transport in self._asked.values():
            await transport.aclose()


def _nobody_waits(task: str) -> None:
    """Nobody is told."""


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """The built parts. spent: as in `service.budgets`. models: the upstream's list, as it is asked. support: the swarm,
    or why there is none. identity_key: checks who a customer is. remarks: what an operator should know at the start.
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
    simulated: bool
    remarks: Sequence[str]


@contextlib.asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Serving]:
    """Build everything, and close it again with the block. One process serves from a home folder at a time.

    Raises: ConfigError, StoreError; StoreBusy when another one does.
    """
    clock, accounts, remarks = SystemClock(), Accounts(), []
    async with contextlib.AsyncExitStack() as stack:
        ways = await _ways(settings, stack)
        if settings.simulated:
            remarks.append(NOTICE)
        keys = await stack.enter_async_context(client_keys(settings))
        store = SqliteStore(settings.home / LEDGER)
        run = store.run(RUN)
        stack.push_async_callback(run.aclose)
        state = await run.begin("")
        if state.in_flight:
            remarks.append(
                f"{state.in_flight} calls were in flight when the last process ended: lost_in_crash in the ledger"
            )
        departures = Departures(run.ledger)
        gateway = build_gateway(settings, ways, departures, accounts, nobody)
        stack.push_async_callback(gateway.aclose)
        listing = Listing(ways, clock)
        stack.push_async_callback(listing.aclose)
        await stack.enter_async_context(following_keys(settings, gateway, changed=listing.rekey))
        support = await stack.enter_async_context(support_swarm(settings, gateway))

        async def spent(key: str, since: float) -> tuple[int, int]:
            return await store.read(partial(charged, run=run.id, key=key, since=since))

        yield Serving(
            clock=clock,
            endpoint=gateway,
            accounts=accounts,
            departures=departures,
            keys=keys,
            spent=spent,
            models=listing.models,
            support=support,
            identity_key=customer_key(),
            simulated=settings.simulated,
            remarks=remarks,
        )


async def _ways(settings: Settings, stack: contextlib.AsyncExitStack) -> list[Way]:
    if not settings.simulated:
        return usable_ways(settings)
    base_url = await stack.enter_async_context(simulated())
    return [way_to(settings, Upstream(name="simulated", base_url=base_url))]
