"""Admission to one upstream: how many requests at once, how many requests and tokens a minute, and nobody before a
server-given wait ends.

What is allowed is decided in `pace/admission.py`, in one step without waiting, so a crowd of callers gets exactly that.
Here is the queue: by priority, then in turn among runs, then by when each first asked; a call that was refused and asks
again keeps its place.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Literal

import msgspec

from siafu.errors import CallTimeout, ConfigError, DeadlineReached, ModelError, Overloaded, RateLimited
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import End, Endpoint, Reply
from siafu.gateway.hints import limits_left
from siafu.gateway.meter import max_output, was_free
from siafu.gateway.sharing import Sharing
from siafu.gateway.wire import encode
from siafu.observe.calls import CallContext
from siafu.observe.events import Observer, Waited
from siafu.pace.admission import Admission, Permit
from siafu.pace.aimd import Aimd
from siafu.pace.clock import Clock
from siafu.pace.concurrency import Fixed, Outcome, Policy
from siafu.pace.fair import FairQueue
from siafu.pace.share import Whole
from siafu.pace.throttle import Throttle
from siafu.pace.tokens import Estimate, TokenBucket
from siafu.pace.vegas import Vegas
from siafu.pace.window import SlidingWindow

PolicyName = Literal["fixed", "aimd", "vegas", "window"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one upstream allows.

    concurrency: requests at once; policies other than `fixed` learn a limit up to it. ramp: seconds over which the
    fixed one is reached. interactive: the part of it that only calls of priority 1 may use. rpm, tpm: requests and
    tokens a minute, None = no limit. burst: requests that may leave at once, None = one second's worth. max_wait: the
    longest server-given wait in seconds that is waited out; a longer one is an error at once. processes: how many share
    these limits at least, when they are shared.
    """

    concurrency: int = 100
    policy: PolicyName = "fixed"
    ramp: float = 0.0
    interactive: float = 0.0
    rpm: float | None = None
    tpm: float | None = None
    burst: int | None = None
    max_wait: float = 60.0
    processes: int = 1

    def __post_init__(self) -> None:
        if self.concurrency < 1 or (self.burst is not None and self.burst < 1):
            raise ConfigError("concurrency and burst are at least 1")
        for name, value in (("rpm, the requests", self.rpm), ("tpm, the tokens", self.tpm)):
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} a minute, must be above 0; leave it away for no limit")
        if not 0 <= self.max_wait < math.inf or not 0 <= self.ramp < math.inf:
            raise ConfigError("max_wait and ramp are numbers of seconds")
        if not 0 <= self.interactive < 1:
            raise ConfigError("interactive is a part of the concurrency: at least 0 and below 1")

    @property
    def whole(self) -> Whole:
        """What all processes of the key may do together."""
        rpm, tpm = (None if each is None else each / 60 for each in (self.rpm, self.tpm))
        return Whole(concurrency=self.concurrency, requests=rpm, tokens=tpm, processes=self.processes)

    def policy_now(self) -> Policy:
        """The concurrency policy at its beginning."""
        if self.policy == "aimd":
            return Aimd(self.concurrency)
        if self.policy == "vegas":
            return Vegas(self.concurrency)
        if self.policy == "window":
            return SlidingWindow(self.concurrency, self.rpm)
        return Fixed(self.concurrency, self.ramp)


class _Waiter:
    __slots__ = ("context", "future", "permit", "request", "tokens")

    def __init__(self, request: ChatRequest, context: CallContext) -> None:
        self.request = request
        self.context = context
        self.future: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        self.permit: Permit | None = None
        self.tokens: int | None = None  # expected; None = not estimated yet

    def left(self) -> bool:
        return self.future.done()


class Limited:
    """The wrapper that admits. Its waits are not part of any timeout of the request, only of the call's deadline.

    `sharing`: with the other processes of the same key; None = the limits are this process's own.
    """

    def __init__(
        self,
        inner: Endpoint,
        limits: Limits,
        *,
        clock: Clock,
        rng: Random,
        upstream: str,
        observer: Observer,
        sharing: Sharing | None = None,
    ) -> None:
        self._inner = inner
        self._limits = limits
        self._clock = clock
        self._rng = rng
        self._upstream = upstream
        self._observer = observer
        self._sharing = sharing
        rate, burst = self._rate(limits)
        tpm = None if sharing else limits.tpm
        self._throttle = Throttle(rate=rate, burst=burst)
        self._admission = Admission(
            self._throttle,
            limits.policy_now(),
            tokens=None if tpm is None else TokenBucket(tpm / 60),
            interactive=limits.interactive,
            share=None if sharing is None else sharing.share,
        )
        self._estimates: dict[str, Estimate] = {}
        self._reason = "rate_limited"
        self._queue: FairQueue[_Waiter] = FairQueue(_Waiter.left)
        self._waiting: dict[int, int] = {}  # priority -> waiters
        self._driver: asyncio.Task[None] | None = None
        self._wake_at = math.inf
        self._when_idle: Callable[[], None] | None = None

    @property
    def in_flight(self) -> int:
        return self._admission.in_flight

    def when_idle(self, told: Callable[[], None]) -> None:
        """Call `told` once, as soon as no call is under way, and now when none is."""
        self._when_idle = told
        self._see_idle()

    def _see_idle(self) -> None:
        if self._when_idle is not None and not self.in_flight:
            told, self._when_idle = self._when_idle, None
            told()

    @property
    def waiting(self) -> int:
        """Calls that wait for a permit."""
        return sum(self._waiting.values())

    @property
    def limit(self) -> int:
        """Calls at once, as they are allowed now."""
        return self._admission.policy.limit

    def change(self, limits: Limits) -> None:
        """Hold these limits from now on; calls under way count in them. Of `policy`, `ramp` and `interactive` those of
        the start stay.
        """
        self._limits, now = limits, self._clock.now()
        alone = self._sharing is None
        if self._sharing is not None:
            self._sharing.share.change(limits.whole, now)
        rate, burst = self._rate(limits)
        self._throttle.change(rate, burst, now)
        self._admission.change(now, most=limits.concurrency, rpm=limits.rpm, tpm=limits.tpm if alone else None)
        self._dispatch()

    def _rate(self, limits: Limits) -> tuple[float | None, int]:
        """Requests a second and at once; no rate while others share it."""
        rate = None if limits.rpm is None or self._sharing else limits.rpm / 60
        return rate, limits.burst or max(1, int(rate or 1))

    def pause(self, now: float) -> float:
        """Seconds until the wait that the upstream asked for is over."""
        return max(0.0, self._throttle.paused_until - now)

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        now, admission = self._clock.now(), self._admission
        size = len(encode(request)) if admission.counts_tokens else 0
        tokens = self._tokens(request, size) if size else 0
        if self._queue.held or admission.ready(now, context.priority, tokens) > 0.0:
            permit = await self._wait(request, context, now)
        else:
            permit = admission.take(now, context.priority, tokens)
            if self._sharing is not None:
                self._dispatch()
        try:
            reply = await self._inner.open(request, context)
        except BaseException as error:
            if isinstance(error, ModelError) and error.attempts:
                error.sent_at = permit.at
            self._ended(permit, request, size, End(outcome="failed", error=error))
            raise
        self._throttle.accepted(permit.at, self._clock.now())
        headers = reply.head.headers
        if "x-ratelimit-remaining-requests" in headers or "x-ratelimit-remaining-tokens" in headers:
            admission.heard(permit, limits_left(headers, "requests"), limits_left(headers, "tokens"))
        reply.on_end(partial(self._ended, permit, request, size))
        return reply

    def _tokens(self, request: ChatRequest, size: int) -> int:
        """How many tokens a request of `size` bytes will probably use."""
        estimate = self._estimates.get(request.model) or Estimate()
        return estimate.tokens(size, max_output(request))

    async def _wait(self, request: ChatRequest, context: CallContext, now: float) -> Permit:
        """Queue for a permit; returns when it was given."""
        if context.heat is not None and context.heat.spare:
            raise Overloaded("there is no room for a second request", attempts=0)
        self._refuse_hopeless(context, now)
        pause = self._throttle.paused_until - now
        if pause > 0:
            self._observer(
                Waited(run=context.run, task=context.task, upstream=self._upstream, reason=self._reason, seconds=pause)
            )
        waiter = _Waiter(request, context)
        priority = context.priority
        self._queue.push(
            waiter,
            priority=priority,
            who=context.tenant or context.run,
            since=now if context.since is None else context.since,
            fresh=context.since is None,
        )
        self._waiting[priority] = self._waiting.get(priority, 0) + 1
        self._dispatch()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            if waiter.permit is not None:  # admitted and cancelled in the same moment: nothing was sent
                self._admission.undo(waiter.permit, self._clock.now())
                self._dispatch()
                self._see_idle()
            if self._queue.held > 2 * sum(self._waiting.values()) + 64:  # mostly waiters that were cancelled
                self._queue.prune()
            raise
        finally:
            self._waiting[priority] -= 1
            if self._driver is not None and not any(self._waiting.values()):
                self._driver.cancel()  # nobody is left to admit
                self._driver = None

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
        """Admit waiters, the next first, as far as the limits allow; see that somebody looks again in time."""
        now, admission, queue = self._clock.now(), self._admission, self._queue
        waiter: _Waiter | None = None
        while not admission.full and (waiter := queue.peek()) is not None:
            priority = waiter.context.priority
            if waiter.tokens is None and (admission.counts_tokens or queue.contended(priority)):
                waiter.tokens = self._tokens(waiter.request, len(encode(waiter.request)))
            tokens = waiter.tokens or 0
            deadline = waiter.context.deadline
            if deadline is not None and deadline <= now:
                queue.pop(priority, 0)
                waiter.future.set_exception(DeadlineReached("the time for this call was over before it was admitted"))
                continue
            wait = admission.ready(now, priority, tokens)
            if wait > 0.0:
                if wait < math.inf:
                    self._look_again(now, wait)
                break
            queue.pop(priority, tokens)
            waiter.permit = admission.take(now, priority, tokens)
            waiter.future.set_result(waiter.permit)
        if self._sharing is not None:
            self._sharing.keep(self.in_flight, self.waiting, (waiter and waiter.tokens) or 0, self._dispatch)

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

    def _ended(self, permit: Permit, request: ChatRequest, size: int, end: End) -> None:
        """`size`: of the request in bytes; 0 = nobody has looked."""
        now, error = self._clock.now(), end.error
        used = self._used(request, size, end) if permit.tokens else None
        self._admission.ended(permit, now, used=used)
        if self._limits.policy != "fixed":
            self._admission.learn(permit, now, _outcome(error), _first_token(end), _tokens(end))
        if error is not None and isinstance(error, RateLimited | Overloaded):
            self._reason = error.code
            self._throttle.refused(permit.at, now, error.wait, self._rng)
            pause = self._throttle.paused_until - now
            if pause > self._limits.max_wait:
                self.turn_away(lambda: self._too_long(pause))
        if self._queue.held or self._sharing is not None:
            self._dispatch()
        self._see_idle()

    def _used(self, request: ChatRequest, size: int, end: End) -> int | None:
        """The tokens of a call that ended, None = unknown. Learns from it what such calls use."""
        if end.answer is None:
            return 0 if end.first_token is None and was_free(end.error) else None
        usage = end.answer.usage
        if usage is None:
            return None
        estimate = self._estimates.get(request.model)
        if estimate is None:
            estimate = self._estimates[request.model] = Estimate()
        estimate.learn(size or len(encode(request)), usage.input, usage.output)
        return usage.input + usage.output

    def turn_away(self, error: Callable[[], ModelError]) -> None:
        """Let all who wait here fail with an error of their own each; what is under way goes on."""
        for waiter in self._queue:
            if not waiter.future.done():
                waiter.future.set_exception(error())
        self._queue.clear()


def _outcome(error: BaseException | None) -> Outcome:
    if error is None:
        return "ok"
    if isinstance(error, RateLimited | Overloaded):
        return "refused"
    return "timeout" if isinstance(error, CallTimeout) else "other"


def _first_token(end: End) -> float | None:
    """Seconds to the first token of an answer that was streamed to its end."""
    return None if end.answer is None else end.first_token


def _tokens(end: End) -> int | None:
    """Tokens of output of a whole answer; 1 when it does not say, so that all of its time counts."""
    if end.answer is None:
        return None
    return 1 if end.answer.usage is None else end.answer.usage.output
