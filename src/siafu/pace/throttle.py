"""When the next request to one upstream may leave: the configured rate, pauses the upstream asked for, and a pace
learned from its refusals.

After a refusal everybody waits until the hint is over (without a hint: exponential backoff with full jitter). Then
requests leave one by one, at 90 % of the highest rate that the upstream was seen to accept lately; from there the pace
grows by 5 % a second until the configured rate, or no limit, is reached again. An upstream that was not seen to accept
anything is tried slowly, doubling each second until it refuses. One that goes on refusing is tried at half the pace
each time, but doubles again up to nearly the rate it once accepted: a storm of refusals says little about that rate
(slow start and congestion avoidance, after Jacobson, "Congestion Avoidance and Control", 1988).
"""

from __future__ import annotations

import math
from collections import deque
from random import Random

from siafu.pace.backoff import full_jitter
from siafu.pace.bucket import EPSILON, Bucket

START = 10.0  # requests a second after a refusal by an upstream that was not seen to accept anything
FLOOR = 1 / 60
CEILING = 1000.0  # a learned pace above it is no limit any more
SPREAD = 0.2  # seconds; processes that share a key do not all wake at the same instant
ENOUGH = 5  # successes within a second that tell what an upstream accepts
MEMORY = 10  # seconds for which they do: in a pause nothing is accepted, which says nothing

Grant = tuple[tuple[float, float] | None, tuple[float, float] | None]


class Throttle:
    """`rate`: requests a second, None = no limit. `burst`: requests that may leave at once at the configured rate."""

    def __init__(self, *, rate: float | None = None, burst: int = 1) -> None:
        self.rate = rate
        self.paused_until = -math.inf
        self._bucket = Bucket(rate, burst) if rate is not None else None
        self._pace: Bucket | None = None
        self._learned = 0.0
        self._knee = math.inf
        self._grown_at = 0.0
        self._event_at = -math.inf
        self._streak = 0
        self._accepted: deque[tuple[int, int]] = deque(maxlen=MEMORY)  # (second, successes in it)

    def ready(self, now: float) -> float:
        """Seconds until the next request may leave; 0.0 = now."""
        wait = self.paused_until - now
        if self._bucket is not None:
            wait = max(wait, self._bucket.ready(now))
        if self._pace is not None:
            self._grow(now)
        if self._pace is not None:
            wait = max(wait, self._pace.ready(now))
        return wait if wait > EPSILON else 0.0

    def take(self, now: float) -> Grant:
        """Note that a request leaves at `now`. Returns what `undo` needs."""
        return (
            None if self._bucket is None else self._bucket.take(now),
            None if self._pace is None else self._pace.take(now),
        )

    def undo(self, grant: Grant) -> None:
        """Give back a grant that was not used."""
        for bucket, taken in zip((self._bucket, self._pace), grant, strict=True):
            if bucket is not None and taken is not None:
                bucket.undo(taken)

    def accepted(self, now: float) -> None:
        """A request was answered."""
        second, before = int(now), 0
        if self._accepted and self._accepted[-1][0] == second:
            before = self._accepted.pop()[1]
        self._accepted.append((second, before + 1))
        self._streak = 0

    def refused(self, sent_at: float, now: float, wait: float | None, rng: Random) -> None:
        """A request that left at `sent_at` was refused for now. `wait`: seconds the upstream asked for, None = it did
        not say. Refusals of requests that left before the last refusal arrived are the same event: they may lengthen
        the pause but do not slow the pace again.
        """
        if wait is not None:
            self._pause(now + wait + rng.uniform(0.0, SPREAD))
        if sent_at <= self._event_at:
            return
        self._event_at = now
        self._streak += 1
        if wait is None:
            self._pause(now + full_jitter(self._streak, rng))
        seen = max((count for second, count in self._accepted if now - second < MEMORY), default=0)
        start = START
        if seen >= ENOUGH:
            self._knee = start = 0.9 * seen
        elif self._pace is not None:
            self._knee, start = 0.9 * self._knee, self._learned / 2
        self._learned = max(FLOOR, min(start, self.rate or math.inf))
        self._pace = Bucket(self._learned, start=self.paused_until)
        self._grown_at = self.paused_until

    def _pause(self, until: float) -> None:
        self.paused_until = self._grown_at = max(self.paused_until, until)

    def _grow(self, now: float) -> None:
        passed = min(now - self._grown_at, 60.0)
        if passed <= 0 or self._pace is None:
            return
        self._grown_at = now
        if self._learned < self._knee:
            self._learned = min(self._learned * 2**passed, self._knee)
        else:
            self._learned *= 1.05**passed
        if self._learned >= min(self.rate or CEILING, CEILING):
            self._pace, self._knee = None, math.inf
        else:
            self._pace.interval = 1.0 / self._learned
