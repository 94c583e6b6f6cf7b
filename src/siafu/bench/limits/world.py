"""Upstreams with limits that a crowd of agents meets, in virtual time: no sockets, no waiting, the same every time."""

from __future__ import annotations

import heapq
import math
from collections import deque
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from siafu.bench.simulator.limits import Gcra
from siafu.pace.admission import Admission, Permit
from siafu.pace.announced import Left

JITTER = 0.002  # seconds between leaving and arriving
REFUSAL = 0.01  # seconds until a refusal is back


class Verdict(NamedTuple):
    """What becomes of a request. `ends`: when its answer is complete; None = refused. `wait`: seconds that a refusal
    names. `left`: what the answer says is left.
    """

    ends: float | None
    first_token: float = 0.0
    wait: float | None = None
    left: Left | None = None


class Upstream(Protocol):
    def ask(self, now: float, rng: Random) -> Verdict: ...
    def halve(self) -> None:
        """Half the capacity, from now on."""
        ...

    def capacity(self) -> float:
        """Answers a second, at most."""
        ...


class RateLimited:
    """`rate` requests a second, those of `at_once` seconds at once (GCRA); answers take about `seconds`. `tells`:
    nothing, how long to wait (hints), or with every answer what is left (headers).
    """

    def __init__(self, rate: float, seconds: float, tells: str, at_once: float) -> None:
        self._bucket = Gcra(rate, max(1.0, rate * at_once))
        self._seconds, self._tells = seconds, tells

    def halve(self) -> None:
        self._bucket.rate /= 2
        self._bucket.burst /= 2

    def capacity(self) -> float:
        return self._bucket.rate

    def ask(self, now: float, rng: Random) -> Verdict:
        wait = self._bucket.wait(now, 1.0)
        if wait > 1e-9:
            return Verdict(None, wait=None if self._tells == "nothing" else wait)
        self._bucket.take(now, 1.0)
        left = None
        if self._tells == "headers":
            remaining = max(0, math.floor(self._bucket.left(now)))
            left = Left(limit=self._bucket.rate * 60, remaining=remaining, reset=self._bucket.reset(now))
        seconds = self._seconds * rng.uniform(0.8, 1.2)
        return Verdict(now + seconds, first_token=seconds * rng.uniform(0.1, 0.3), left=left)


class Slots:
    """A model server that works on `slots` requests at once, about `seconds` each, and keeps `room` waiting; it refuses
    the others without a hint. One tenth of the work is done before the first token.
    """

    def __init__(self, slots: int, seconds: float, room: int) -> None:
        self._free_at = [0.0] * slots
        self._seconds, self._room = seconds, room
        self._starts: deque[float] = deque()

    def halve(self) -> None:
        self._free_at = sorted(self._free_at)[len(self._free_at) // 2 :]
        heapq.heapify(self._free_at)

    def capacity(self) -> float:
        return len(self._free_at) / self._seconds

    def ask(self, now: float, rng: Random) -> Verdict:
        while self._starts and self._starts[0] <= now:
            self._starts.popleft()
        if len(self._starts) >= self._room:
            return Verdict(None)
        start = max(now, self._free_at[0])
        seconds = self._seconds * rng.uniform(0.8, 1.2)
        heapq.heapreplace(self._free_at, start + seconds)
        self._starts.append(start)
        return Verdict(start + seconds, first_token=start - now + seconds * rng.uniform(0.05, 0.15))


class Arrival(msgspec.Struct, frozen=True):
    """One request: when it came, when its answer was complete (None = refused) and how many were under way."""

    at: float
    ended: float | None
    in_flight: int


class Crowd:
    """Agents that always have a next call, let through by one `Admission`. `log`: every request, as it came."""

    def __init__(self, admission: Admission, upstream: Upstream, *, agents: int, seed: int) -> None:
        self.log: list[Arrival] = []
        self.now = 0.0
        self._admission, self._upstream, self._agents = admission, upstream, agents
        self._rng = Random(seed)
        self._events: list[tuple[float, int, Permit | None, float, Verdict | None]] = []
        self._count = 0
        self._looks_at = -1.0
        self._later(0.0)

    def _later(self, at: float, permit: Permit | None = None, sent_at: float = 0.0, got: Verdict | None = None) -> None:
        self._count += 1
        heapq.heappush(self._events, (at, self._count, permit, sent_at, got))

    def until(self, end: float) -> None:
        while self._events and self._events[0][0] < end:
            self.now, _, permit, sent_at, verdict = heapq.heappop(self._events)
            if permit is not None and verdict is None:
                self._arrive(permit)
            elif permit is not None and verdict is not None:
                self._ended(permit, sent_at, verdict)
            self._send()
        self.now = end

    def _arrive(self, permit: Permit) -> None:
        verdict = self._upstream.ask(self.now, self._rng)
        self.log.append(Arrival(self.now, verdict.ends, self._admission.in_flight))
        self._later(self.now + REFUSAL if verdict.ends is None else verdict.ends, permit, self.now, verdict)

    def _ended(self, permit: Permit, sent_at: float, verdict: Verdict) -> None:
        admission, refused = self._admission, verdict.ends is None
        admission.ended(permit, self.now)
        if admission.policy.moves:
            admission.learn(permit, self.now, "refused" if refused else "ok", None if refused else verdict.first_token)
        if refused:
            admission.throttle.refused(permit.at, self.now, verdict.wait, self._rng)
        else:
            admission.throttle.accepted(permit.at, self.now)
            if verdict.left is not None:
                admission.heard(permit, verdict.left, None)

    def _send(self) -> None:
        while self._admission.in_flight < self._agents:
            wait = self._admission.ready(self.now, 2, 0)
            if wait > 0.0:
                if wait < math.inf and not self.now < self._looks_at <= self.now + wait:
                    self._looks_at = self.now + wait + self._rng.uniform(0, JITTER)
                    self._later(self._looks_at)
                return
            permit = self._admission.take(self.now, 2, 0)
            self._later(self.now + self._rng.uniform(0, JITTER), permit)
