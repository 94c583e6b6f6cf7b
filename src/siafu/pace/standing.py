"""Whether one of several upstreams is worth a call: one that fails again and again rests, and is tried now and then."""

from __future__ import annotations

import math

FAILURES = 3  # in a row, until it rests
FIRST_REST = 2.0  # seconds; doubled when the try after it fails
LONGEST_REST = 30.0


class Standing:
    """How often one model of one upstream has failed since its last answer; with an answer it is thrown away.

    Times are monotonic seconds.
    """

    __slots__ = ("_failures", "_rest", "_since", "_until")

    def __init__(self) -> None:
        self._failures, self._rest = 0, FIRST_REST
        self._since = self._until = -math.inf  # when the rest began, and when it ends

    @property
    def rested(self) -> bool:
        """Whether it failed so often that it had to rest."""
        return self._failures >= FAILURES

    def rests(self, now: float) -> float:
        """Seconds until it is tried again; 0.0 = it takes calls."""
        return max(0.0, self._until - now)

    def sending(self, now: float) -> None:
        """A call goes there. The first after a rest is the only one for as long again. So nothing is to be given back
        when it is cancelled.
        """
        if self.rested and now >= self._until:
            self._until = now + self._rest

    def failed(self, sent_at: float, now: float) -> bool:
        """A call that left at `sent_at` was lost to a fault. Returns whether it rests from now on, after it did not.

        What left before the rest began tells nothing new, and does not lengthen it.
        """
        if self.rested:
            if sent_at > self._since:
                self._rest = min(2 * self._rest, LONGEST_REST)
                self._since, self._until = now, now + self._rest
            return False
        self._failures += 1
        if self._failures < FAILURES:
            return False
        self._since, self._until = now, now + self._rest
        return True
