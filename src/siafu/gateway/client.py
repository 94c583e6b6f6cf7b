"""How a model call is put together. Outermost first:

[Traced] > Deadlined > Reusing > Thrifty > Retrying > Hedging > Routed > [for each upstream and key:
    Guarded > Warmed > Limited > DayBudgeted > Metered > Spelled > Transport]
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

import msgspec

from siafu.errors import ModelError
from siafu.gateway.accounts import Accounts
from siafu.gateway.canary import Split
from siafu.gateway.chat import ChatRequest
from siafu.gateway.day_budgets import DayBudgeted
from siafu.gateway.deadline import Deadlined
from siafu.gateway.dialect import Spelled
from siafu.gateway.endpoint import Endpoint, Reply
from siafu.gateway.guard import Guard, Guarded, Patience
from siafu.gateway.hedge import Hedge, Hedging
from siafu.gateway.limits import Limited, Limits
from siafu.gateway.meter import DEFAULT_MAX_OUTPUT, Books, Metered, max_output
from siafu.gateway.prefix import PromptCache
from siafu.gateway.pricing import Prices
from siafu.gateway.retry import Retrying, RetryRules, again
from siafu.gateway.reuse import ReuseRule, Reusing
from siafu.gateway.routed import Lane, Routed
from siafu.gateway.routing import Rule
from siafu.gateway.sharing import Sharing
from siafu.gateway.thrift import Thrift, Thrifty
from siafu.gateway.traced import Traced
from siafu.gateway.transport import Transport
from siafu.gateway.upstream import Upstream
from siafu.gateway.warmed import Warmed
from siafu.gateway.wire import encode
from siafu.observe import spans
from siafu.observe.calls import CallContext
from siafu.observe.events import Observer
from siafu.pace.clock import Clock
from siafu.store.records import Ledger
from siafu.store.redis import RedisDoor

Wrap = Callable[[Endpoint], Endpoint]
_NO_PATIENCE = Patience()


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream with one of its keys. id: unique among the ways; empty = the upstream's name. models, tier, weight:
    as in `Lane`. prompt_cache: None = nothing is done for it.
    """

    upstream: Upstream
    limits: Limits
    prices: Prices
    id: str = ""
    models: Mapping[str, str] | None = None
    tier: int = 1
    weight: float = 1.0
    prompt_cache: PromptCache | None = None

    @property
    def name(self) -> str:
        return self.id or self.upstream.name


class _Post(NamedTuple):
    """A way, and what was built for it. warmed: what calls enter, by the way's prompt cache."""

    way: Way
    lane: Lane
    warmed: Callable[[PromptCache | None], Limited | Warmed]
    transport: Transport
    books: Books
    sharing: Sharing | None

    async def aclose(self) -> None:
        if self.sharing is not None:
            await self.sharing.aclose()
        await self.transport.aclose()


class _Choice(NamedTuple):
    """Which model and lane a call goes to. split: how canaries divide calls; None = there are none."""

    rules: Sequence[Rule]
    thrift: Thrift | None
    split: Split | None = None


class Gateway:
    """The Endpoint that agents call. `accounts`: the budgets of its runs. Use it in one event loop at a time.

    build: the lane of a way. around: the whole onion around lanes, chosen among in this way. redis: the door that the
    lanes share, closed with the gateway.
    """

    def __init__(
        self,
        posts: Sequence[_Post],
        endpoint: Endpoint,
        accounts: Accounts,
        build: Callable[[Way], _Post],
        choice: _Choice,
        around: Callable[[Sequence[_Post], _Choice], Endpoint],
        redis: RedisDoor | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._build = build
        self._around = around
        self._redis = redis
        self._posts = posts
        self._choice = choice
        self._retired: list[_Post] = []  # with calls under way
        self._closing: set[asyncio.Task[None]] = set()
        self.accounts = accounts

    def open(self, request: ChatRequest, context: CallContext) -> Coroutine[Any, Any, Reply]:
        return self._endpoint.open(request, context)

    @property
    def lanes(self) -> list[Lane]:
        """Its upstreams and keys, as they are now."""
        return [post.lane for post in self._posts]

    @property
    def waiting(self) -> int:
        """Calls that wait for a limit of an upstream, or for one that fails to come back."""
        lanes = [post.lane.endpoint for post in self._posts]
        gates = {gate for lane in lanes for gate in lane.gates}
        return sum(lane.waiting for lane in lanes) + sum(gate.waiting for gate in gates)

    async def models(self) -> list[str]:
        """The models that all upstreams offer: those that the ways name, else what the upstream itself lists; one of
        its keys is enough to ask.

        Raises: ModelError, when there is nothing to tell because an upstream does not say.
        """
        found = dict.fromkeys(name for post in self._posts for name in post.way.models or ())
        asked: dict[str, Transport] = {}
        for post in self._posts:
            if post.way.models is None:
                asked.setdefault(post.way.upstream.name, post.transport)
        failed: ModelError | None = None
        for transport in asked.values():
            try:
                found |= dict.fromkeys((await transport.models()).models)
            except ModelError as error:
                failed = error
        if failed is not None and not found:
            raise failed
        return list(found)

    async def change(self, ways: Sequence[Way], rules: Sequence[Rule] = (), thrift: Thrift | None = None) -> None:
        """Use these ways and rules from now on. A way to the same upstream, be it with another key, goes on with what
        it has learned and with its queue. Of one that is gone, calls under way end, and those that wait go elsewhere.

        Raises: ConfigError, and then nothing has changed.
        """
        before = {_slot(post.way): post for post in self._posts}
        kept = {slot: before.pop(slot) for way in ways if _alike(before.get(slot := _slot(way)), way)}
        new = {slot: self._build(way) for way in ways if (slot := _slot(way)) not in kept}
        self._posts = [new.get(_slot(way)) or _changed(kept[_slot(way)], way) for way in ways]
        self._choose(self._choice._replace(rules=rules, thrift=thrift))
        for post in before.values():
            post.lane.endpoint.turn_away(partial(again, f"{post.lane.id} is not used any more"))
            self._retired.append(post)
            post.lane.endpoint.when_idle(partial(self._close, post))

    def _close(self, post: _Post) -> None:
        """The last call of a way that is used no more has ended."""
        self._retired.remove(post)
        closing = asyncio.create_task(post.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def divide(self, split: Split | None) -> None:
        """Let canaries divide calls so from now on; None = there are none."""
        self._choose(self._choice._replace(split=split))

    def _choose(self, choice: _Choice) -> None:
        self._choice = choice
        self._endpoint = self._around(self._posts, choice)

    async def aclose(self) -> None:
        """Close the connections. Idempotent; the next call opens new ones."""
        await asyncio.gather(*self._closing)
        for post in (*self._posts, *self._retired):
            await post.aclose()
        if self._redis is not None:
            await self._redis.aclose()


def _slot(way: Way) -> str:
    """Which key of which upstream it is; a first key is called by its upstream's name while it is the only one."""
    return way.name if "#" in way.name else f"{way.name}#1"


def _alike(post: _Post | None, way: Way) -> bool:
    """Whether what was built serves `way` too: it is the same upstream, but for the key."""
    if post is None:
        return False
    return msgspec.structs.replace(post.way.upstream, key=way.upstream.key) == way.upstream


def _changed(post: _Post, way: Way) -> _Post:
    """What was built for a way, serving `way` from now on. Cannot fail."""
    lane, before = post.lane, post.way
    if before.upstream.key != way.upstream.key:
        post.transport.rekey(way.upstream.key)
        lane.shut = False
        lane.endpoint.renew()
    lane.endpoint.lane = way.name
    lane.id, lane.models, lane.tier, lane.weight = way.name, way.models, way.tier, way.weight
    post.books.prices = way.prices
    if before.limits != way.limits:
        lane.endpoint.change(way.limits)
    if before.prompt_cache != way.prompt_cache:
        lane.endpoint.enter_by(post.warmed(way.prompt_cache))
    return post._replace(way=way)


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
    patience: Patience = _NO_PATIENCE,
    hedge: Hedge | None = None,
    reuse: Sequence[ReuseRule] = (),
    redis: RedisDoor | None = None,
) -> Gateway:
    """The gateway over all `ways`. A single way without models of its own leaves nothing to choose: no `Routed`.
    patience: how long calls wait for what fails. hedge: second requests for slow calls; None = none. redis: where the
    ways' limits are shared with other processes; None = they are this process's own.
    """

    def build(way: Way) -> _Post:
        transport = Transport(way.upstream, clock)
        books = Books(prices=way.prices, ledger=ledger, accounts=accounts)
        sharing = None
        if redis is not None:
            sharing = Sharing(redis, way.limits.whole, way.upstream, clock=clock, observer=observer)
        return _lane(way, transport, books, guard, rng, sharing)

    def around(posts: Sequence[_Post], choice: _Choice) -> Endpoint:
        lanes, thrift = [post.lane for post in posts], choice.thrift
        if (routed.rules, routed.split) != (choice.rules, choice.split):  # others may answer now
            reusing.forget()
        routed.lanes, routed.rules, routed.split = lanes, choice.rules, choice.split
        alone = len(lanes) == 1 and not choice.rules and lanes[0].models is None and choice.split is None
        (hedging or retrying).inner = lanes[0].endpoint if alone else routed
        in_use[:] = [post.way for post in posts]
        longest = max((post.way.limits.max_wait for post in posts), default=0.0)
        retrying.rules = RetryRules(max_wait=longest, leaves=patience.ends_run)
        outermost_first: list[Wrap] = [
            lambda inner: Deadlined(inner, clock),
            *([around_again] if reuse else []),
            *([] if thrift is None else [lambda inner: Thrifty(inner, thrift, accounts, observer)]),
        ]
        return _traced(_wrapped(retrying, outermost_first), posts)

    def around_again(inner: Endpoint) -> Endpoint:  # with the answers that it has
        reusing.inner = inner
        return reusing

    guard = Guard(patience, clock=clock, observer=observer)
    routed = Routed((), rules, clock=clock, observer=observer)
    name = ways[0].upstream.name if len(ways) == 1 else ""
    in_use, hedging = list[Way](), None
    if hedge is not None:
        worst = partial(_worst, in_use, clock)
        hedging = Hedging(routed, hedge, worst=worst, accounts=accounts, clock=clock, observer=observer)
    retrying = Retrying(hedging or routed, RetryRules(), clock=clock, rng=rng, upstream=name, observer=observer)
    reusing = Reusing(retrying, reuse, clock=clock, observer=observer)
    posts, choice = [build(way) for way in ways], _Choice(rules, thrift)
    return Gateway(posts, around(posts, choice), accounts, build, choice, around, redis)


def _lane(way: Way, transport: Transport, books: Books, guard: Guard, rng: Random, sharing: Sharing | None) -> _Post:
    """The part of the onion that each upstream and key has for itself."""
    name, clock, observer, accounts = way.upstream.name, guard.clock, guard.observer, books.accounts
    outermost_first: list[Wrap] = [
        *([lambda inner: DayBudgeted(inner, books, clock, _slot(way))] if accounts.roles or accounts.keys else []),
        lambda inner: Metered(inner, books, clock=clock, upstream=name, observer=observer, key=_slot(way)),
        Spelled,
    ]
    within = _wrapped(transport, outermost_first)
    limited = Limited(
        within,
        way.limits,
        clock=clock,
        rng=rng,
        upstream=name,
        observer=observer,
        sharing=sharing,
    )

    def warmed(wanted: PromptCache | None) -> Limited | Warmed:
        return limited if wanted is None else Warmed(limited, wanted, clock=clock, upstream=name, observer=observer)

    place = msgspec.structs.replace(way.upstream, key=None)
    guarded = Guarded(warmed(way.prompt_cache), guard, upstream=name, lane=way.name, place=place)
    lane = Lane(guarded, id=way.name, upstream=name, models=way.models, tier=way.tier, weight=way.weight)
    if isinstance(within, DayBudgeted):
        lane.lacks = within.lacks
    return _Post(way, lane, warmed, transport, books, sharing)


def _worst(ways: Sequence[Way], clock: Clock, request: ChatRequest) -> int | None:
    """The largest possible cost of a request, wherever it goes; None = it has no price anywhere."""
    output, size, now = max_output(request) or DEFAULT_MAX_OUTPUT, len(encode(request)), clock.wall()
    rates = [way.prices.rates((way.models or {}).get(request.model, request.model), now) for way in ways]
    return max((each.ceiling(size, output) for each in rates if each is not None), default=None)


def _traced(endpoint: Endpoint, posts: Sequence[_Post]) -> Endpoint:
    """With a span around each call, when somebody traces."""
    tracer = spans.tracer()
    return endpoint if tracer is None else Traced(endpoint, tracer, [post.way.upstream for post in posts])


def _wrapped(endpoint: Endpoint, outermost_first: Sequence[Wrap]) -> Endpoint:
    for wrap in reversed(outermost_first):
        endpoint = wrap(endpoint)
    return endpoint
