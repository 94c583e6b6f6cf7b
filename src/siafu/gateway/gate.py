"""The queue in front of a breaker: calls that wait until the place behind it is worth one."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

from siafu.errors import DeadlineReached, ModelError, Outage, SiafuError
from siafu.observe.calls import CallContext
from siafu.observe.events import Observer, Waited
from siafu.pace.breaker import Breaker, Pattern
from siafu.pace.clock import Clock


class Sign(NamedTuple):
    """What events call a place: `lane` and `model` as in `LaneClosed`, `reason` as in `Waited`."""

    lane: str
    model: str
    reason: str


class Gate:
    """One breaker and who waits for it. sent_at: when the call left that failed first. `patience`: seconds from now
    after which nobody waits any more. `ends_run`: then they fail with an Outage. `error`: the last failure;
    `failed_at`: when it was counted. `common`: calls of several tasks have failed.
    """

    def __init__(
        self, pattern: Pattern, sent_at: float, patience: float, sign: Sign, *, clock: Clock, observer: Observer
    ) -> None:
        now = clock.now()
        self.breaker = Breaker(pattern, now, sent_at)
        self.sign = sign
        self.error = ModelError("")
        self.failed_at = -math.inf
        self.patience = patience
        self.ends_run = self.common = False
        self._first: tuple[str, str] | None = None  # the task that failed first
        self._longest = pattern.longest
        self._clock = clock
        self._observer = observer
        self._waiting: list[tuple[tuple[float, ...], CallContext, asyncio.Future[float]]] = []
        self._count = itertools.count()
        self._held = 0  # of those that wait, who was not cancelled
        self._driver: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Calls that wait for it."""
        return self._held

    def failed(self, error: ModelError, now: float, context: CallContext) -> None:
        """Remember a failure."""
        task = context.run, context.task
        self.error, self.failed_at, self._first = error, now, self._first or task
        self.common = self.common or task != self._first

    def holds(self, now: float, deadline: float = math.inf) -> bool:
        """Whether a call had better wait for it: it is not closed, and somebody will try it in time."""
        tried_at = now + self.breaker.ready(now)
        return self.breaker.state != "closed" and tried_at < min(self.breaker.began + self.patience, deadline)

    async def enter(self, context: CallContext) -> float:
        """Returns when a call may leave; what the breaker's `ended` needs.

        Raises, when it had better not wait: DeadlineReached, when its own time is too short; else Outage, or ModelError
        as the last call did.
        """
        now = self._clock.now()
        if not self._held and now - self.failed_at > max(self.patience, self._longest):
            self.breaker.unheard(now)
        if self.breaker.state == "closed" or (not self._held and self.breaker.ready(now) == 0.0):
            return self.breaker.take(now)
        if not self.holds(now, _end(context)):
            raise self._unsent(now)
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        since = now if context.since is None else context.since
        # A probe may well fail, so it is one that has most attempts left.
        order = (float(context.attempts), float(context.priority), since, float(next(self._count)))
        heapq.heappush(self._waiting, (order, context, future))
        self._held += 1
        if self._driver is None:
            self._look_again(now)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:  # let through that moment
                self.breaker.ended(future.result())
            raise
        finally:
            self._held -= 1
            if not self._held and self._driver is not None:
                self._driver.cancel()
                self._driver = None

    def look(self) -> None:
        """Let leave who may; see that somebody looks again in time."""
        now = self._clock.now()
        while self._waiting and (self._waiting[0][2].done() or self.breaker.ready(now) == 0.0):
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(self.breaker.take(now, self._next()))
        self._look_again(now)

    def review(self, run: str) -> None:
        """It is left alone once more. Tells the observer how long calls wait for the next probe."""
        now = self._clock.now()
        self._drop_hopeless(now)
        if self.holds(now):
            seconds = self.breaker.ready(now)
            self._observer(Waited(run=run, upstream=self.sign.lane, reason=self.sign.reason, seconds=seconds))

    def release(self, error: Callable[[], ModelError]) -> None:
        """Let all who wait fail with an error of their own each."""
        self._turn_away(lambda context: error())

    def _next(self) -> int | None:
        return self._waiting[0][1].attempts if self._waiting else None

    def _look_again(self, now: float) -> None:
        if self._driver is not None:
            self._driver.cancel()
            self._driver = None
        if self._waiting:
            self._driver = asyncio.get_running_loop().create_task(self._drive(self.breaker.ready(now)))

    async def _drive(self, wait: float) -> None:
        await self._clock.sleep(wait)
        self._driver = None
        self.look()
        self._drop_hopeless(self._clock.now())

    def _drop_hopeless(self, now: float) -> None:
        """Let those fail that had better not wait any longer."""
        self._turn_away(lambda context: None if self.holds(now, _end(context)) else self._unsent(now))

    def _turn_away(self, error: Callable[[CallContext], SiafuError | None]) -> None:
        """Let those fail for whom there is an error."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if each[2].done():
                continue
            if (found := error(each[1])) is None:
                heapq.heappush(self._waiting, each)
            else:
                each[2].set_exception(found)

    def _unsent(self, now: float) -> SiafuError:
        """The error of a call that is not sent, in the words of the last one that was."""
        last, failing = self.error, now - self.breaker.began
        why = f"{self.sign.lane} has failed for {failing:,.0f} s: {last.message}"
        if self.holds(now):
            return DeadlineReached(f"not sent, as its deadline comes before the next try: {why}")
        if self.ends_run:
            never = f"{self.sign.lane} has not answered since this run began: {last.message}"
            outage = Outage(why if self.patience else never, status=last.status, attempts=0)
            outage.lasts = True
            return outage
        error = type(last).__new__(type(last))
        vars(error).update(
            vars(last),
            attempts=0,
            wait=self.breaker.ready(now) or None,
            tried=None,
            held=False,
            late=False,
            common=False,
            sent_at=None,
        )
        error.args = (f"not sent, as {why}",)
        return error


def _end(context: CallContext) -> float:
    return math.inf if context.deadline is None else context.deadline
