"""A concurrency limit by how many calls wait at the upstream (after TCP Vegas: Brakmo and Peterson, 1995).

It is Little's law: of L calls at once, L * waited / seconds wait, where each of them waits so long of its seconds. The
limit grows while fewer than `alpha` wait and shrinks while more than twice as many do. How long a call waits shows in
its latency, less what it was when nobody waited:

- of a stream, in the time to its first token. A model server with slots works slower, the more of them are busy, which
  is a small part of a call before its first token; but calls without a slot wait all of their time there.
- of an answer in one piece, in its seconds per token, where waiting and slower work look alike.

Refusals and timeouts are another signal, and never enter a latency, as a refusal that is quick looks like a low one.
The latency without waiting is learned at half the limit, at first and then now and then, so that it may also rise:
models and prompts change.
"""

from __future__ import annotations

import math

from siafu.pace.concurrency import Learned, Sample

ENOUGH = 10  # calls of a window; thinner ones go on until they have them
LEAST, PART = 0.5, 0.1  # calls that may wait, and the part of the limit: below it, latency is taken for noise
STREAM, WHOLE = 1.0, 2.0  # times these; an answer in one piece tells less
RELEARN, WINDOWS = 60.0, 8  # seconds and windows between two looks at the upstream at half the limit
SHRINK = 0.35  # the most that one window takes off


class _Window:
    """Calls of one kind since the limit last moved. `base`: their latency when nobody waits. `slack`: as many times the
    usual number may seem to wait.
    """

    def __init__(self, slack: float) -> None:
        self.slack = slack
        self.base: float | None = None
        self.clear()

    def clear(self) -> None:
        self.calls, self.latency, self.seconds, self.units = 0, 0.0, 0.0, 0


class Vegas(Learned):
    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._streams, self._whole = _Window(STREAM), _Window(WHOLE)
        self._since = -math.inf  # when the limit last moved; calls that left before tell nothing of it
        self._learned_at, self._judged = 0.0, 0
        self._former: float | None = self._aim  # the limit to go back to after a look at half of it
        self._aim = max(1.0, self._aim / 2)

    def _answered(self, sample: Sample) -> None:
        seconds = sample.now - sample.sent_at
        if sample.first_token is not None:
            window, latency, units = self._streams, sample.first_token, 1
        else:
            window, latency, units = self._whole, seconds, sample.tokens or 0
        if not units or sample.sent_at < self._since:
            return
        window.calls += 1
        window.latency += latency
        window.seconds += seconds
        window.units += units
        if window.calls >= ENOUGH:
            self._judge(window, window.latency / window.units, window.seconds / window.units, sample)

    def _judge(self, window: _Window, latency: float, seconds: float, sample: Sample) -> None:
        """`latency`, and whole `seconds`, of a unit: a stream, or a token of an answer in one piece."""
        window.clear()
        if window.base is None or self._former is not None:
            window.base, self._learned_at, self._judged = latency, sample.now, 0
            self._move(self._former or self._aim, sample.now)
            self._former = None
            return
        self._judged += 1
        window.base = min(window.base, latency)
        waiting = self._aim * (latency - window.base) / seconds if seconds > 0 else 0.0
        alpha = window.slack * max(LEAST, PART * self._aim)
        step = max(1.0, math.log10(self._aim))
        if waiting > 2 * alpha:
            self._starting = False
            self._move(self._aim - max(step, min(waiting - alpha, SHRINK * self._aim)), sample.now)
        elif waiting < alpha and 2 * sample.in_flight >= self.limit:
            self._move(self._aim * 2 if self._starting else self._aim + step, sample.now)
        elif waiting >= alpha:
            self._starting = False
        if sample.now - self._learned_at > RELEARN and self._judged >= WINDOWS:
            self._former = self._aim
            self._move(self._aim / 2, sample.now)

    def _move(self, aim: float, now: float) -> None:
        super()._move(aim, now)
        self._since = now
        self._streams.clear()
        self._whole.clear()
