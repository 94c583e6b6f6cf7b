"""How a model call is put together: every wrapper in one list."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatRequest
from siafu.gateway.deadline import Deadlined
from siafu.gateway.dialect import Spelled
from siafu.gateway.endpoint import Endpoint, Reply
from siafu.gateway.limits import Limited, Limits
from siafu.gateway.meter import Books, Metered
from siafu.gateway.pricing import Prices
from siafu.gateway.retry import Retrying, RetryRules
from siafu.gateway.sharing import Sharing
from siafu.gateway.transport import Transport, Upstream
from siafu.observe.calls import CallContext
from siafu.observe.events import Observer
from siafu.pace.clock import Clock
from siafu.store.records import Ledger
from siafu.store.redis import RedisDoor


class Gateway:
    """The Endpoint that agents call. `accounts`: the budgets of its runs. Use it in one event loop at a time."""

    def __init__(
        self, endpoint: Endpoint, accounts: Accounts, transport: Transport, sharing: Sharing | None = None
    ) -> None:
        self._endpoint = endpoint
        self._transport = transport
        self._sharing = sharing
        self.accounts = accounts

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        return await self._endpoint.open(request, context)

    async def aclose(self) -> None:
        """Close the connections. Idempotent; the next call opens new ones."""
        if self._sharing is not None:
            await self._sharing.aclose()
        await self._transport.aclose()


def assemble(  # noqa: PLR0913 (the one place where everything meets)
    upstream: Upstream,
    *,
    limits: Limits,
    prices: Prices,
    ledger: Ledger,
    accounts: Accounts,
    clock: Clock,
    rng: Random,
    observer: Observer,
    redis: RedisDoor | None = None,
) -> Gateway:
    """The gateway for one upstream. `redis`: where its limits are shared with other processes."""
    name = upstream.name
    sharing = None if redis is None else Sharing(redis, limits.whole, upstream, clock=clock, observer=observer)
    transport = Transport(upstream, clock)
    rules = RetryRules(max_wait=limits.max_wait)
    books = Books(prices=prices, ledger=ledger, accounts=accounts)
    outermost_first: list[Callable[[Endpoint], Endpoint]] = [
        lambda inner: Deadlined(inner, clock),
        lambda inner: Retrying(inner, rules, clock=clock, rng=rng, upstream=name, observer=observer),
        lambda inner: Limited(inner, limits, clock=clock, rng=rng, upstream=name, observer=observer, sharing=sharing),
        lambda inner: Metered(inner, books, clock=clock, upstream=name, observer=observer),
        Spelled,
    ]
    endpoint: Endpoint = transport
    for wrap in reversed(outermost_first):
        endpoint = wrap(endpoint)
    return Gateway(endpoint, accounts, transport, sharing)
