"""What an upstream says is left of a limit (`x-ratelimit-remaining-*` and its like), kept before it has to refuse.

An upstream may count in fixed windows, where the reset brings everything back at once, or in a bucket that fills all
the time, where the reset is when it is full. One rule is safe for both: until the reset, no more than what was left
leaves. While more than half of the limit is left nothing is held back; below, it is spread over the time until the
reset, which lets a bucket run at its full rate when half full.
"""

from __future__ import annotations

import msgspec

from siafu.pace.bucket import EPSILON

FREE = 0.5  # of the limit; nothing is held back while more is left


class Left(msgspec.Struct, frozen=True):
    """One limit as an answer told it, in requests or tokens. `reset`: seconds until it is whole again."""

    limit: float
    remaining: float
    reset: float


class Announced:
    """One limit that an upstream tells, in requests or tokens. `total`: what left in all, as the caller counts."""

    __slots__ = ("_last", "_left", "_mark", "_sent_at", "_until")

    def __init__(self) -> None:
        self._left = Left(0.0, 0.0, 0.0)
        self._mark = 0.0
        self._until = 0.0
        self._sent_at = 0.0
        self._last = 0.0

    def heard(self, left: Left, sent_at: float, mark: float) -> None:
        """The answer to a request that left at `sent_at` says what is left; `mark`: the total right after it left.

        The news counts from when the request left, as an upstream looks at its limits when a request comes. What left
        after it is not in it yet. An answer to an older request than the last one heard tells nothing new.
        """
        if sent_at < self._sent_at:
            return
        self._left, self._sent_at, self._mark = left, sent_at, mark
        self._until = sent_at + left.reset

    @property
    def tight(self) -> bool:
        """Whether so little was left that it is spread."""
        return self._left.remaining <= FREE * self._left.limit

    def ready(self, now: float, amount: float, total: float) -> float:
        """Seconds until `amount` may leave; 0.0 = now."""
        if now >= self._until:
            return 0.0
        left = self._left.remaining - (total - self._mark)
        if left < min(amount, self._left.limit):
            return self._until - now
        if left > FREE * self._left.limit:
            return 0.0
        since = max(self._last, self._sent_at)
        wait = since + (self._until - since) * amount / (left + amount) - now
        return wait if wait > EPSILON else 0.0

    def take(self, now: float) -> None:
        """Something leaves."""
        self._last = now
