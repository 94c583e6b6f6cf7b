"""A rate limit as one number: the generic cell rate algorithm (ITU-T I.371, annex A, virtual scheduling)."""

from __future__ import annotations

EPSILON = 1e-6  # seconds; below it a wait is rounding, not time


class Bucket:
    """At most `burst` requests at once and `rate` a second: in any window of W seconds at most rate * W + burst.

    The caller takes in the same step in which it asked, without waiting in between; so it is exact under concurrency.
    """

    __slots__ = ("_next", "burst", "interval")

    def __init__(self, rate: float, burst: int = 1, *, start: float = 0.0) -> None:
        self.interval = 1.0 / rate
        self.burst = burst
        self._next = start

    def ready(self, now: float) -> float:
        """Seconds until the next request may leave; 0.0 = now."""
        wait = self._next - (self.burst - 1) * self.interval - now
        return wait if wait > EPSILON else 0.0

    def take(self, now: float) -> tuple[float, float]:
        """Note that a request leaves at `now`. Returns what `undo` needs."""
        before = self._next
        self._next = max(before, now) + self.interval
        return before, self._next

    def change(self, rate: float, burst: int, now: float) -> None:
        """Hold another rate from now on. What had left ahead of the old rate is as many requests ahead of the new."""
        ahead, before, self.interval = max(0.0, self._next - now), self.interval, 1.0 / rate
        self.burst = burst
        if ahead:
            self._next = now + ahead * self.interval / before

    def undo(self, grant: tuple[float, float]) -> None:
        """Give back a grant that was not used, unless a later one builds on it."""
        before, after = grant
        if self._next == after:
            self._next = before
