"""A concurrency limit by additive increase and multiplicative decrease (Chiu and Jain, 1989, as TCP does it: Jacobson,
"Congestion Avoidance and Control", 1988).

Refusals and timeouts are the only signal. The limit doubles with each round of answers until the first of them, then
grows by one a round; each window with refusals takes a tenth off. It grows only while at least half of it is in use.
"""

from __future__ import annotations

import math

from siafu.pace.concurrency import Learned, Sample

CUT = 0.9


class Aimd(Learned):
    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._cut_at = -math.inf
        self._starting = True

    def ended(self, sample: Sample) -> None:
        if sample.outcome in ("refused", "timeout"):
            if sample.sent_at > self._cut_at:  # calls that left before the last cut tell of the limit before it
                self._cut_at, self._starting = sample.now, False
                self._set(self._aim * CUT)
        elif sample.outcome == "ok" and 2 * sample.in_flight >= self.limit:
            self._set(self._aim + (1.0 if self._starting else 1.0 / self._aim))
