"""Agents that always have a next call, behind the whole onion of one upstream, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from siafu.bench.simulator.limits import Gcra
from siafu.errors import ModelError, RateLimited
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import PlainReply, Reply
from siafu.gateway.guard import Guard, Guarded, Patience
from siafu.gateway.limits import Limited, Limits
from siafu.gateway.retry import Retrying, RetryRules
from siafu.gateway.scripted import say
from siafu.observe.calls import CallContext
from siafu.observe.events import Event
from siafu.pace.clock import VirtualClock

from .conftest import ASK

Fails = Callable[[float], ModelError | None]


class Request(NamedTuple):
    at: float
    attempts: int
    ended: float
    ok: bool


class World:
    """fails: by the time since the start, what a request fails with; None = it is answered after about `latency`
    seconds. rate: requests a second beyond which it refuses, with one second's worth at once. A failure takes
    `fault_seconds`.
    """

    def __init__(
        self,
        fails: Fails,
        *,
        latency: float = 0.2,
        fault_seconds: float = 0.01,
        rate: float | None = None,
        limits: Limits | None = None,
        patience: Patience | None = None,
        seed: int = 1,
    ) -> None:
        self.clock = VirtualClock()
        self.events: list[Event] = []
        self.requests: list[Request] = []
        self.lost: list[ModelError] = []
        self.steps: Counter[str] = Counter()  # faults
        self.done = 0
        self._fails, self._latency, self._fault_seconds = fails, latency, fault_seconds
        self._start = self.clock.now()
        self._rng = Random(seed)
        self._bucket = None if rate is None else Gcra(rate, rate)
        common: dict[str, Any] = {"clock": self.clock, "observer": self.events.append}
        own: dict[str, Any] = {"rng": Random(seed), "upstream": "u"}
        guard = Guard(patience or Patience(outage=600.0, quota=600.0), **common)
        guarded = Guarded(Limited(self, limits or Limits(), **common, **own), guard, upstream="u", lane="u")
        self.guarded = guarded
        self.retrying = Retrying(guarded, RetryRules(), **common, **own)

    @property
    def now(self) -> float:
        return self.clock.now() - self._start

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        """The upstream."""
        at, ok = self.now, False
        try:
            error = self._fails(at)
            if error is not None:
                self.steps[context.task] += not isinstance(error, RateLimited)
                await self.clock.sleep(self._fault_seconds)
                raise error
            if self._bucket is not None:
                if (wait := self._bucket.wait(at, 1.0)) > 0:
                    await self.clock.sleep(0.01)
                    raise RateLimited("slow", status=429, wait=wait)
                self._bucket.take(at, 1.0)
            await self.clock.sleep(self._latency * self._rng.uniform(0.8, 1.2))
            ok = True
            return PlainReply(say("ok"))
        finally:
            self.requests.append(Request(at, context.attempts, self.now, ok))

    async def ask(self, task: str = "", **context: Any) -> str:
        reply = await self.retrying.open(ASK, CallContext(run="r", task=task, **context))
        return (await reply.message()).text

    async def agents(self, count: int, until: float) -> None:
        async def agent(number: int) -> None:
            calls = 0
            while self.now < until:
                calls += 1
                try:
                    await self.ask(f"{number}-{calls}")
                    self.done += 1
                except ModelError as error:
                    self.lost.append(error)

        await asyncio.gather(*(agent(number) for number in range(count)))

    def sent(self, start: float, end: float) -> list[Request]:
        return [request for request in self.requests if start <= request.at < end]

    def goodput(self, start: float, end: float) -> float:
        """Answers a second."""
        return sum(request.ok and start <= request.ended < end for request in self.requests) / (end - start)
