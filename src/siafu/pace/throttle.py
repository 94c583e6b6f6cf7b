"""When the next request to one upstream may leave: the configured rate, pauses the upstream asked for, and a pace
learned from its refusals.

After a refusal everybody waits until the hint is over (without a hint: exponential backoff with full jitter). Then
requests leave one by one, along one of three curves:

- where nothing is known, the pace begins at `START` and doubles each second (slow start, after Jacobson, "Congestion
  Avoidance and Control", 1988). An upstream that refuses all that comes is tried like this too, whatever is known; its
  first answer brings the former pace back.
- a limit that is lower than the pace is searched for: down to what came through of late, then up by a few percent a
  request until the next refusal. What came through since the one before is the limit: at both, all that the upstream
  had saved up was used.
- from there the pace goes on a little below the limit, rises ever more slowly up to it, rests, and then rises ever
  faster (after CUBIC, RFC 9438). So a limit that stays is touched about once in `PROBE` requests, and a higher one is
  found all the same. A first refusal below the limit may be chance; a second one soon after it is a lower limit.

Refusals that come as often at a slow pace as at one three times as fast do not depend on it: the pace then rises on.

At the configured rate, or a pace that is no limit any more, the learned pace is forgotten.
"""

from __future__ import annotations

import math
from collections import deque
from random import Random

from siafu.pace.backoff import full_jitter
from siafu.pace.bucket import EPSILON, Bucket

START = 10.0  # requests a second where nothing is known
FLOOR = 1 / 60
CEILING = 100_000.0  # a learned pace above it is no limit any more
SPREAD = 0.2  # seconds; processes that share a key do not all wake at the same instant
LONGEST = 2.0  # seconds; the longest pause without a hint, so that the end of an outage is seen soon
BELOW = 0.97  # of the limit: where the pace goes on after it was touched
REST = 10.0  # seconds from there to the limit, at least
PROBE = 125.0  # requests from there to the limit, at least
SEARCH = 0.2  # how much faster in a second while the limit is searched for, at most
STEP = 0.02  # the same in one request
IDLE = 1.0  # seconds without an answer after which a pace rises no more: it is not tried
SOON = 25  # requests
GAPS = 8  # refusals that are compared
APART = 3.0  # how far apart their paces are
ALIKE = 1.5  # how much rarer they are at the slow half of the paces, at most
SELDOM = 8  # requests a refusal, on average
ENOUGH = 5  # requests that pass before a refused one if the pace is about right

Grant = tuple[tuple[float, float] | None, tuple[float, float] | None]


class Throttle:
    """`rate`: requests a second, None = no limit. `burst`: requests that may leave at once at the configured rate."""

    def __init__(self, *, rate: float | None = None, burst: int = 1) -> None:
        self.rate = rate
        self.paused_until = -math.inf
        self._bucket = Bucket(rate, burst) if rate is not None else None
        self._pace: Bucket | None = None
        self._learned = math.inf  # requests a second now
        self._limit = math.inf  # where the curve rests; infinite = not known
        self._touched = FLOOR  # what came through before the last refusal, while the limit is searched for
        self._rest = REST
        self._doubling, self._former = False, math.inf  # doubling each second, up to the former pace
        self._curve_from = 0.0  # when the curve began
        self._grown_at = 0.0
        self._heard = 0.0  # when the last answer came
        self._event_at = -math.inf
        self._streak = 0
        self._doubted = False  # there was a refusal of late that may have been chance
        self._gaps = deque[tuple[float, int]](maxlen=GAPS)  # the pace at refusals, and requests since the one before
        self._sent, self._first = 0, list[float]()  # requests since the last refusal, and when the first of them left

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

    def change(self, rate: float | None, burst: int, now: float) -> None:
        """Hold another configured rate from now on; pauses, and what was learned, stay. A rate where there was none
        begins without a burst, as nobody knows what has left of late.
        """
        self.rate = rate
        if rate is None:
            self._bucket = None
        elif self._bucket is None:
            self._bucket = Bucket(rate, burst, start=now + (burst - 1) / rate)
        else:
            self._bucket.change(rate, burst, now)

    def take(self, now: float) -> Grant:
        """Note that a request leaves at `now`. Returns what `undo` needs."""
        self._sent += 1
        if self._sent > SOON:
            self._doubted = False
        if len(self._first) <= ENOUGH:
            self._first.append(now)
        return (
            None if self._bucket is None else self._bucket.take(now),
            None if self._pace is None else self._pace.take(now),
        )

    def undo(self, grant: Grant) -> None:
        """Give back a grant that was not used."""
        for bucket, taken in zip((self._bucket, self._pace), grant, strict=True):
            if bucket is not None and taken is not None:
                bucket.undo(taken)

    def accepted(self, sent_at: float, now: float) -> None:
        """A request that left at `sent_at` was answered."""
        self._heard = now
        if sent_at < self._event_at:
            return
        self._streak = 0
        if self._doubling and self._former < math.inf and now > self.paused_until:
            self._learned, self._doubling = self._former, False
            self._grown_at = self._curve_from = now

    def refused(self, sent_at: float, now: float, wait: float | None, rng: Random) -> None:
        """A request that left at `sent_at` was refused for now. `wait`: seconds the upstream asked for, None = it did
        not say. Refusals of requests that left before the last refusal arrived are the same event: they may lengthen
        the pause but do not slow the pace again.
        """
        if wait is not None:
            self._pause(now + wait + rng.uniform(0.0, SPREAD))
        if sent_at <= self._event_at:
            return
        passed = max(0, sum(left <= sent_at for left in self._first) - 1)
        through = (self._sent - 1) / max(now - self._event_at, EPSILON)
        if self._pace is not None:
            self._gaps.append((self._learned, self._sent))
        self._event_at, self._sent = now, 0
        self._first.clear()
        self._streak = 1 if passed else self._streak + 1
        if wait is None:
            self._pause(now + full_jitter(self._streak, rng, cap=LONGEST))
        self._slow_down(passed, through)

    def _slow_down(self, passed: int, through: float) -> None:
        """Begin a new curve after a refusal. `passed`: requests that left before the refused one and after the refusal
        before, and were not refused, counted up to `ENOUGH`. `through`: requests a second in the same time.
        """
        known, enough = math.isfinite(self._limit), passed >= ENOUGH
        early = known and self._learned < 0.99 * self._limit
        if self._pace is None:
            self._limit, self._doubling, self._former, self._learned = math.inf, True, math.inf, START
        elif passed and self._by_chance():
            self._limit, self._doubling = math.inf, False
            return
        elif not passed:  # nothing is accepted at all, which tells nothing of the limit
            if not self._doubling:
                self._former, self._doubling = self._learned, True
            self._learned = min(START, self._learned)
        elif enough and early and not self._doubted:
            self._doubted = True
            return
        elif enough and not early and not self._doubling and (known or 0.9 <= through / self._touched <= 1.1):
            self._limit = self._learned if known else min(self._learned, through)
            self._rest, self._learned = max(REST, PROBE / self._limit), BELOW * self._limit
        else:
            self._limit, self._doubling, self._touched = math.inf, False, max(through, FLOOR)
            least = 0.85 if enough and through >= 0.3 * self._learned else 0.5
            self._learned = max(least * self._learned, min(through, 0.85 * self._learned))
        self._doubted = False
        self._learned = max(FLOOR, min(self._learned, self.rate or math.inf))
        self._pace = Bucket(self._learned, start=self.paused_until)
        self._grown_at = self._curve_from = self.paused_until

    def _by_chance(self) -> bool:
        """Whether the last refusals came as seldom at the fastest paces as at the slowest: then it is not the pace that
        is refused.
        """
        if len(self._gaps) < GAPS:
            return False
        ordered = sorted(self._gaps)
        slow, fast = (sum(sent for _, sent in half) for half in (ordered[: GAPS // 2], ordered[GAPS // 2 :]))
        apart = ordered[-1][0] >= APART * ordered[0][0]
        return apart and slow + fast >= SELDOM * GAPS and slow <= ALIKE * fast

    def _pause(self, until: float) -> None:
        if until > self.paused_until:
            self.paused_until = self._grown_at = self._curve_from = until

    def _grow(self, now: float) -> None:
        passed = now - self._grown_at
        if passed <= 0 or self._pace is None:
            return
        self._grown_at = now
        if self._doubling:
            self._learned = min(self._learned * 2 ** min(passed, 60.0), self._former)
            self._doubling, self._curve_from = self._learned < self._former, now
        else:
            idle = min(passed, max(0.0, now - self._heard - max(IDLE, 2 / self._learned)))
            passed, self._curve_from = passed - idle, self._curve_from + idle
            if math.isfinite(self._limit):
                way = (now - self._curve_from) / self._rest - 1.0
                self._learned = max(self._learned, self._limit * (1.0 + (1.0 - BELOW) * way**3))
            else:
                growth = min(SEARCH, STEP * self._learned)
                self._learned *= math.exp(growth * min(passed, 60.0))
        if self._learned >= min(self.rate or CEILING, CEILING):
            self._pace, self._limit = None, math.inf
        else:
            self._pace.interval = 1.0 / self._learned
