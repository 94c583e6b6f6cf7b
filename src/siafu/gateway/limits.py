"""Admission to one upstream: how many requests at once, how many a minute, and nobody before a server-given wait ends.

A permit is reserved before anything is awaited, so a crowd of callers gets exactly what is allowed. Waiters go by
priority and, within it, by when they first asked; a call that was refused and asks again keeps its place.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable
from random import Random

import msgspec

from siafu.errors import ConfigError, DeadlineReached, ModelError, Overloaded, RateLimited
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import End, Endpoint, Reply
from siafu.observe.calls import CallContext
from siafu.observe.events import Observer, Waited
from siafu.pace.clock import Clock
from siafu.pace.throttle import Grant, Throttle


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one upstream allows. `concurrency`: requests at once. `rpm`: requests a minute, None = no limit. `burst`:
    requests that may leave at once, None = one second's worth. `max_wait`: the longest server-given wait in seconds
    that is waited out; a longer one is an error at once.
    """

    concurrency: int = 100
    rpm: float | None = None
    burst: int | None = None
    max_wait: float = 60.0

    def __post_init__(self) -> None:
        if self.concurrency < 1 or (self.burst is not None and self.burst < 1):
            raise ConfigError("concurrency and burst are at least 1")
        if self.rpm is not None and not 0 < self.rpm < math.inf:
            raise ConfigError("rpm, the requests a minute, must be above 0; leave it away for no limit")
        if not 0 <= self.max_wait < math.inf:
            raise ConfigError("max_wait is a number of seconds")


class _Waiter:
    __slots__ = ("context", "future", "grant")

    def __init__(self, context: CallContext) -> None:
        self.context = context
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.grant: Grant | None = None


class Limited:
    """The wrapper that admits. Its waits are not part of any timeout of the request, only of the call's deadline."""

    def __init__(
        self, inner: Endpoint, limits: Limits, *, clock: Clock, rng: Random, upstream: str, observer: Observer
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._clock = clock
        self._rng = rng
        self._upstream = upstream
        self._observer = observer
        rate = None if limits.rpm is None else limits.rpm / 60
        self._throttle = Throttle(rate=rate, burst=limits.burst or max(1, int(rate or 1)))
        self._reason = "rate_limited"
        self._order = itertools.count()
        self._queue: list[tuple[int, float, bool, int, _Waiter]] = []
        self._waiting: dict[int, int] = {}  # priority -> waiters
        self._driver: asyncio.Task[None] | None = None
        self._wake_at = math.inf
        self.in_flight = 0

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        sent_at = self._clock.now()
        if self._queue or not self._free(sent_at):
            sent_at = await self._wait(context, sent_at)
        else:
            self._throttle.take(sent_at)
            self.in_flight += 1
        try:
            reply = await self._inner.open(request, context)
        except BaseException as error:
            self._give_back(error, sent_at)
            raise
        self._throttle.accepted(sent_at, self._clock.now())
        reply.on_end(lambda end: self._ended(end, sent_at))
        return reply

    def pause(self, now: float) -> float:
        """Seconds until the wait that the upstream asked for is over."""
        return max(0.0, self._throttle.paused_until - now)

    def _free(self, now: float) -> bool:
        return self.in_flight < self._limits.concurrency and self._throttle.ready(now) == 0.0

    async def _wait(self, context: CallContext, now: float) -> float:
        """Queue for a permit; returns when it was given."""
        self._refuse_hopeless(context, now)
        pause = self._throttle.paused_until - now
        if pause > 0:
            self._observer(
                Waited(run=context.run, task=context.task, upstream=self._upstream, reason=self._reason, seconds=pause)
            )
        waiter = _Waiter(context)
        priority = context.priority
        fresh = context.since is None
        since = now if context.since is None else context.since
        heapq.heappush(self._queue, (priority, since, fresh, next(self._order), waiter))
        self._waiting[priority] = self._waiting.get(priority, 0) + 1
        self._dispatch()
        try:
            await waiter.future
        except asyncio.CancelledError:
            if waiter.grant is not None:  # admitted and cancelled in the same moment: nothing was sent
                self._throttle.undo(waiter.grant)
                self._give_back(None, now)
            if len(self._queue) > 2 * sum(self._waiting.values()) + 64:  # mostly waiters that were cancelled
                self._queue = [entry for entry in self._queue if not entry[-1].future.done()]
                heapq.heapify(self._queue)
            raise
        finally:
            self._waiting[priority] -= 1
            if self._driver is not None and not any(self._waiting.values()):
                self._driver.cancel()  # nobody is left to admit
                self._driver = None
        return self._clock.now()

    def _refuse_hopeless(self, context: CallContext, now: float) -> None:
        """Raise at once for a call that could not be admitted in time."""
        pause = self._throttle.paused_until - now
        if pause > self._limits.max_wait:
            raise self._too_long(pause)
        if context.deadline is None:
            return
        ahead = sum(count for priority, count in self._waiting.items() if priority <= context.priority)
        rate = self._throttle.rate
        wait = max(pause, self._throttle.ready(now), ahead / rate if rate else 0.0)
        if now + wait > context.deadline:
            raise DeadlineReached(f"the rate limit of {self._upstream} admits this call only after its deadline")

    def _too_long(self, pause: float) -> RateLimited:
        return RateLimited(
            f"{self._upstream} asks to wait {pause:,.0f} s, longer than the {self._limits.max_wait:,.0f} s we wait at "
            "most; run again later, or raise max_wait",
            wait=pause,
            attempts=0,
        )

    def _dispatch(self) -> None:
        """Admit waiters, best first, as far as permits and pace allow; see that somebody looks again in time."""
        now = self._clock.now()
        while self._queue and self.in_flight < self._limits.concurrency:
            waiter = self._queue[0][-1]
            if waiter.future.done():  # cancelled
                heapq.heappop(self._queue)
                continue
            wait = self._throttle.ready(now)
            if wait > 0.0:
                self._look_again(now, wait)
                return
            heapq.heappop(self._queue)
            deadline = waiter.context.deadline
            if deadline is not None and deadline <= now:
                waiter.future.set_exception(DeadlineReached("the time for this call was over before it was admitted"))
                continue
            waiter.grant = self._throttle.take(now)
            self.in_flight += 1
            waiter.future.set_result(None)

    def _look_again(self, now: float, wait: float) -> None:
        if self._driver is not None and not self._driver.done():
            if self._wake_at <= now + wait + 1e-6:
                return
            self._driver.cancel()
        self._wake_at = now + wait
        self._driver = asyncio.get_running_loop().create_task(self._drive(wait))

    async def _drive(self, wait: float) -> None:
        await self._clock.sleep(wait)
        self._driver = None
        self._dispatch()

    def _ended(self, end: End, sent_at: float) -> None:
        self._give_back(end.error, sent_at)

    def _give_back(self, error: BaseException | None, sent_at: float) -> None:
        self.in_flight -= 1
        if isinstance(error, RateLimited | Overloaded):
            now = self._clock.now()
            self._reason = error.code
            self._throttle.refused(sent_at, now, error.wait, self._rng)
            pause = self._throttle.paused_until - now
            if pause > self._limits.max_wait:
                self.turn_away(lambda: self._too_long(pause))
        self._dispatch()

    def turn_away(self, error: Callable[[], ModelError]) -> None:
        """Let all who wait here fail with an error of their own each; what is under way goes on."""
        for *_, waiter in self._queue:
            if not waiter.future.done():
                waiter.future.set_exception(error())
        self._queue.clear()
