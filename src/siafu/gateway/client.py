"""How a model call is put together: every wrapper in one list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random

import msgspec

from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatRequest
from siafu.gateway.deadline import Deadlined
from siafu.gateway.dialect import Spelled
from siafu.gateway.endpoint import Endpoint, Reply
from siafu.gateway.limits import Limited, Limits
from siafu.gateway.meter import Books, Metered
from siafu.gateway.pricing import Prices
from siafu.gateway.retry import Retrying, RetryRules
from siafu.gateway.routed import Lane, Routed
from siafu.gateway.routing import Rule
from siafu.gateway.thrift import Thrift, Thrifty
from siafu.gateway.transport import Transport
from siafu.gateway.upstream import Upstream
from siafu.observe.calls import CallContext
from siafu.observe.events import Observer
from siafu.pace.clock import Clock
from siafu.store.records import Ledger

Wrap = Callable[[Endpoint], Endpoint]


class Gateway:
    """The Endpoint that agents call. `accounts`: the budgets of its runs. Use it in one event loop at a time."""

    def __init__(self, endpoint: Endpoint, accounts: Accounts, transports: Sequence[Transport]) -> None:
        self._endpoint = endpoint
        self._transports = transports
        self.accounts = accounts

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        return await self._endpoint.open(request, context)

    async def aclose(self) -> None:
        """Close the connections. Idempotent; the next call opens new ones."""
        for transport in self._transports:
            await transport.aclose()


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream with one of its keys. id: unique among the ways; empty = the upstream's name. models, tier, weight:
    as in `Lane`.
    """

    upstream: Upstream
    limits: Limits
    prices: Prices
    id: str = ""
    models: Mapping[str, str] | None = None
    tier: int = 1
    weight: float = 1.0


def assemble(  # noqa: PLR0913 (the one place where everything meets)
    ways: Sequence[Way],
    rules: Sequence[Rule] = (),
    *,
    ledger: Ledger,
    accounts: Accounts,
    clock: Clock,
    rng: Random,
    observer: Observer,
    thrift: Thrift | None = None,
) -> Gateway:
    """The gateway over all `ways`. A single way without models of its own leaves nothing to choose: no `Routed`."""
    transports = [Transport(way.upstream, clock) for way in ways]
    lanes = [
        _lane(way, transport, Books(prices=way.prices, ledger=ledger, accounts=accounts), clock, rng, observer)
        for way, transport in zip(ways, transports, strict=True)
    ]
    alone = len(ways) == 1 and not rules and ways[0].models is None
    patience = RetryRules(max_wait=max(way.limits.max_wait for way in ways))
    name = ways[0].upstream.name if len(ways) == 1 else ""
    outermost_first: list[Wrap] = [
        lambda inner: Deadlined(inner, clock),
        *([] if thrift is None else [lambda inner: Thrifty(inner, thrift, accounts, observer)]),
        lambda inner: Retrying(inner, patience, clock=clock, rng=rng, upstream=name, observer=observer),
    ]
    choice = lanes[0].endpoint if alone else Routed(lanes, rules, clock=clock, observer=observer)
    return Gateway(_wrapped(choice, outermost_first), accounts, transports)


def _lane(way: Way, transport: Transport, books: Books, clock: Clock, rng: Random, observer: Observer) -> Lane:
    """The part of the onion that each upstream and key has for itself."""
    name = way.upstream.name
    outermost_first: list[Wrap] = [
        lambda inner: Metered(inner, books, clock=clock, upstream=name, observer=observer),
        Spelled,
    ]
    limited = Limited(
        _wrapped(transport, outermost_first), way.limits, clock=clock, rng=rng, upstream=name, observer=observer
    )
    return Lane(limited, id=way.id or name, upstream=name, models=way.models, tier=way.tier, weight=way.weight)


def _wrapped(endpoint: Endpoint, outermost_first: Sequence[Wrap]) -> Endpoint:
    for wrap in reversed(outermost_first):
        endpoint = wrap(endpoint)
    return endpoint
