"""The policy "window": requests counted in a sliding minute, slowed by refusals in a row.

It begins at 55 requests in any 60 seconds. Three refusals in a row take a fifth off, down to 20. Each success gives
one back, at most one a second, up to what the provider allows. So many calls may be under way as 80 % of the
provider's requests a minute. A request is counted when it leaves, in the step in which it was asked for.
"""

from __future__ import annotations

import math
from collections import deque

from siafu.pace.bucket import EPSILON
from siafu.pace.concurrency import Sample

WINDOW = 60.0
START_RPM, FLOOR_RPM = 55, 20
IN_A_ROW, CUT = 3, 0.8
HEADROOM = 0.8


class SlidingWindow:
    """`rpm`: what the provider allows a minute; None = unknown, the start is never passed."""

    moves = True

    def __init__(self, most: int, rpm: float | None = None) -> None:
        self.rpm = START_RPM
        self.resize(most, rpm)
        self._left_at: deque[float] = deque()
        self._refused = 0
        self._grown_at = -math.inf

    def resize(self, most: int, rpm: float | None) -> None:
        self._most_rpm = START_RPM if rpm is None else max(1, int(rpm))
        self.rpm = min(self.rpm, self._most_rpm)
        self.limit = min(most, max(1, int(HEADROOM * self._most_rpm)))

    def ready(self, now: float, in_flight: int) -> float:
        if in_flight >= self.limit:
            return math.inf
        while self._left_at and self._left_at[0] <= now - WINDOW:
            self._left_at.popleft()
        if len(self._left_at) < self.rpm:
            return 0.0
        wait = self._left_at[len(self._left_at) - self.rpm] + WINDOW - now
        return max(wait, 2 * EPSILON)

    def take(self, now: float) -> None:
        self._left_at.append(now)

    def undo(self, now: float) -> None:
        if self._left_at and self._left_at[-1] >= now:
            self._left_at.pop()

    def ended(self, sample: Sample) -> None:
        if sample.outcome == "refused":
            self._refused += 1
            if self._refused >= IN_A_ROW:
                self._refused = 0
                self.rpm = max(min(FLOOR_RPM, self._most_rpm), int(self.rpm * CUT))
        elif sample.outcome == "ok":
            self._refused = 0
            if self.rpm < self._most_rpm and sample.now - self._grown_at >= 1.0:
                self._grown_at = sample.now
                self.rpm += 1
