"""A second request for a call that is slow; the answer that comes first is taken, the other request is given up.

It leaves when the first one has been under way for longer than 95 of 100 calls of that model, at once or not at all:
it waits for no limit, no budget and no upstream that rests. There is one a call at most, it is one of the attempts of
the step, and it never follows a failure, after which the call is asked again anyway. What it costs is bounded, at the
largest possible cost of what is given up, and stands in the ledger as `hedge_lost`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from decimal import Decimal

import msgspec

from siafu.errors import ModelError, Overloaded, SiafuError
from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import Endpoint, Reply
from siafu.observe.calls import CallContext, Heat
from siafu.observe.events import Hedged, Observer
from siafu.pace.clock import Clock

ENOUGH = 20  # calls of a kind, before anything is called slow
KEPT = 200
MOST_KINDS = 1000
GLANCE = 0.05  # seconds; how often is looked whether a request has left that waits for its turn, at most


class Hedge(msgspec.Struct, frozen=True, kw_only=True):
    """share: of the calls of a kind, and of the money of a run, that second requests may add. soft: the share of a
    budget from which on there are none.
    """

    share: Decimal
    soft: Decimal = Decimal("0.8")


class Times:
    """How long calls of one kind have taken of late, and how many there were. Pure."""

    def __init__(self) -> None:
        self.calls = self.hedged = 0
        self._seconds: deque[float] = deque(maxlen=KEPT)
        self._p95: float | None = None

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self._p95 = None

    @property
    def slow(self) -> float | None:
        """Seconds that 95 of 100 do not exceed (nearest rank); None = too few are known."""
        if len(self._seconds) < ENOUGH:
            return None
        if self._p95 is None:
            self._p95 = sorted(self._seconds)[math.ceil(0.95 * len(self._seconds)) - 1]
        return self._p95


class Hedging:
    """The wrapper that asks twice. worst: the largest possible cost of a request in pico-dollars, None = no price."""

    def __init__(
        self,
        inner: Endpoint,
        hedge: Hedge,
        *,
        worst: Callable[[ChatRequest], int | None],
        accounts: Accounts,
        clock: Clock,
        observer: Observer,
    ) -> None:
        self.inner = inner  # may be replaced, as that of `Retrying`
        self._hedge = hedge
        self._worst = worst
        self._accounts = accounts
        self._clock = clock
        self._observer = observer
        self._times: dict[tuple[str, bool], Times] = {}
        self._at_stake = 0  # what the second requests under way may cost

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        times = self._of(request)
        times.calls += 1
        heat, slow = Heat(), times.slow
        context = msgspec.structs.replace(context, heat=heat)
        if slow is None or context.attempts or context.since is not None:
            reply = await self.inner.open(request, context)
        else:
            reply = await self._race(request, context, heat, times, slow)
        if heat.left_at is not None:
            times.add(self._clock.now() - heat.left_at)  # also of one that was given up: it took at least that long
        return reply

    async def _race(self, request: ChatRequest, context: CallContext, heat: Heat, times: Times, slow: float) -> Reply:
        first = asyncio.create_task(self.inner.open(request, context))
        heats, stake, winner = {first: heat}, 0, None
        try:
            await self._until_slow(first, heat, slow)
            amount = None if first.done() else self._affordable(request, context, times)
            if amount is not None:
                stake = amount
                self._at_stake += stake
                times.hedged += 1
                self._observer(Hedged(run=context.run, task=context.task, model=request.model, seconds=slow))
                spare = Heat(spare=True)
                tried = context.tried if heat.tried is None else (*context.tried, heat.tried)
                again = msgspec.structs.replace(context, heat=spare, attempts=context.attempts + 1, tried=tried)
                heats[asyncio.create_task(self._second(request, again, amount))] = spare
            winner = await _winner(heats)
            return winner.result()
        finally:
            for task in heats:
                task.cancel()
            try:
                await asyncio.wait(heats)
            except asyncio.CancelledError:
                winner = None  # nobody takes its answer any more
                await asyncio.wait(heats)
                raise
            finally:
                self._at_stake -= stake
                for task in heats:
                    if task is not winner and not task.cancelled() and task.exception() is None:
                        await task.result().aclose()  # it came in the same moment

    async def _second(self, request: ChatRequest, context: CallContext, amount: int) -> Reply:
        """Ask now or not at all. From here to the reservation nothing is awaited that waits, so the room stays."""
        if not self._accounts.room(context.run, amount, task=context.task, agent=context.agent, role=context.role):
            raise Overloaded("there is no room in a budget for a second request", attempts=0)
        return await self.inner.open(request, context)

    async def _until_slow(self, first: asyncio.Task[Reply], heat: Heat, slow: float) -> None:
        """Wait until `first` is done, or has been under way for `slow` seconds."""
        while not first.done():
            wait = max(slow, GLANCE) if heat.left_at is None else heat.left_at + slow - self._clock.now()
            if wait <= 0:
                return
            alarm = asyncio.create_task(self._clock.sleep(wait))
            try:
                await asyncio.wait({first, alarm}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                alarm.cancel()

    def _affordable(self, request: ChatRequest, context: CallContext, times: Times) -> int | None:
        """What a second request may cost, 0 when it has no price; None = it would be one too many."""
        share, run = self._hedge.share, context.run
        if times.hedged + 1 > share * times.calls:
            return None
        if self._accounts.pressed(run, self._hedge.soft, task=context.task, agent=context.agent, role=context.role):
            return None
        amount, account = self._worst(request), self._accounts.of(run)
        if amount is not None and account.hedged + self._at_stake + amount > share * account.spent:
            return None
        return amount or 0

    def _of(self, request: ChatRequest) -> Times:
        kind = (request.model, request.stream)
        if kind not in self._times and len(self._times) >= MOST_KINDS:
            del self._times[next(iter(self._times))]
        return self._times.setdefault(kind, Times())


async def _winner(heats: dict[asyncio.Task[Reply], Heat]) -> asyncio.Task[Reply]:
    """The request whose reply comes first; the others are marked as lost.

    Raises: when all fail, the error of the first one.
    """
    pending, failed = set(heats), 0
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in [task for task in heats if task in done]:
            error = task.exception()
            if error is None:
                for other in heats:
                    heats[other].lost = other is not task
                return task
            if isinstance(error, ModelError):
                failed += error.attempts
            elif not (heats[task].spare and isinstance(error, SiafuError)):
                raise error
    error = next(iter(heats)).exception()
    if isinstance(error, ModelError):
        error.attempts = failed
    assert error is not None  # noqa: S101
    raise error
