"""A concurrency limit by latency: how many calls wait at the upstream (TCP Vegas: Brakmo and Peterson, 1995).

The signal is the time to the first token, or the seconds per token of an answer in one piece; the time of whole calls
depends on how long answers are. With L calls at once, a latency B when the upstream is idle and M now, about
L * (1 - B / M) of them wait there. The limit grows while fewer than `alpha` wait and shrinks while more than twice as
many do.

Refusals and timeouts are a second signal, and never enter the average, as a refusal that is quick looks like low
latency. B is learned anew now and then at half the limit, so that it may also rise: models and prompts change.
"""

from __future__ import annotations

import math
from statistics import median

from siafu.pace.concurrency import Learned, Sample

ENOUGH = 10  # samples; thinner windows go on until they have them
LEAST, PART = 0.7, 0.15  # calls that may wait, and the part of the limit: below it, latency is taken for noise
RELEARN = 60.0  # seconds between two looks at the upstream at half the limit


class Vegas(Learned):
    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._latencies: list[float] = []
        self._since = -math.inf  # when the limit last moved; calls that left before tell nothing of it
        self._base: float | None = None
        self._learned_at = 0.0
        self._former: float | None = None  # the limit to go back to after such a look

    def _answered(self, sample: Sample) -> None:
        if sample.latency is None or sample.sent_at < self._since:
            return
        self._latencies.append(sample.latency)
        if len(self._latencies) >= ENOUGH:
            latency = median(self._latencies)
            self._latencies.clear()
            self._judge(latency, sample)

    def _judge(self, latency: float, sample: Sample) -> None:
        if self._base is None or self._former is not None:
            self._base, self._learned_at = latency, sample.now
            self._move(self._former or self._aim, sample.now)
            self._former = None
            return
        self._base = min(self._base, latency)
        waiting = self._aim * (1.0 - self._base / latency) if latency > 0 else 0.0
        alpha = max(LEAST, PART * self._aim)
        step = max(1.0, math.log10(self._aim))
        if waiting > 2 * alpha:
            self._starting = False
            self._move(self._aim - step, sample.now)
        elif waiting < alpha and 2 * sample.in_flight >= self.limit:
            self._move(self._aim * 2 if self._starting else self._aim + step, sample.now)
        elif waiting >= alpha:
            self._starting = False
        if sample.now - self._learned_at > RELEARN:
            self._former = self._aim
            self._move(self._aim / 2, sample.now)

    def _move(self, aim: float, now: float) -> None:
        super()._move(aim, now)
        self._since = now
        self._latencies.clear()
