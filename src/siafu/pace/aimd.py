"""A concurrency limit by additive increase and multiplicative decrease (Chiu and Jain, 1989, as TCP does it: Jacobson,
"Congestion Avoidance and Control", 1988).

Refusals and timeouts are the only signal. The limit doubles with each round of answers until the first of them, then
grows by one a round; each window with refusals takes a tenth off. It grows only while at least half of it is in use.
"""

from __future__ import annotations

from siafu.pace.concurrency import Learned, Sample


class Aimd(Learned):
    def _answered(self, sample: Sample) -> None:
        if 2 * sample.in_flight >= self.limit:
            self._move(self._aim + (1.0 if self._starting else 1.0 / self._aim), sample.now)
