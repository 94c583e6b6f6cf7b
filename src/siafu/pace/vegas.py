"""A concurrency limit by how many calls wait at the upstream (after TCP Vegas: Brakmo and Peterson, 1995).

It is Little's law: of L calls at once, L * waited / seconds wait, where each of them waits so long of its seconds. The
limit grows while fewer than `alpha` wait and shrinks while more than twice as many do. How long a call waits shows in
the time until it speaks, less what that was when nobody waited. A model server with slots works slower, the more of
them are busy, which is a small part of a call before its first token; but calls without a slot wait all of their time
there. The time until a call speaks is

- of a stream, that to its first token;
- of answers in one piece, where the line of least squares through tokens and seconds begins. Slower work makes that
  line steeper, waiting lifts it. Where all answers are as long, nothing tells these apart, and all of the time counts.

Refusals and timeouts are another signal, and never enter a latency, as a refusal that is quick looks like a low one.
The latency without waiting is learned at half the limit, at first and then now and then, so that it may also rise:
models and prompts change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from siafu.pace.concurrency import Learned, Sample

LEAST, PART = 0.5, 0.1  # calls that may wait, and the part of the limit: below it, latency is taken for noise
SPREAD = 0.02  # at such a variance of lengths, in squares of their mean, half of the slope is believed
RELEARN, WINDOWS = 60.0, 8  # seconds and windows between two looks at the upstream at half the limit
SHRINK = 0.35  # the most that one window takes off

Call = tuple[float, float]  # its seconds to the first token, or the tokens of an answer in one piece; its seconds


def _first_token(calls: Sequence[Call]) -> float:
    """Mean seconds until a stream speaks."""
    return fmean(first for first, _ in calls)


def _intercept(calls: Sequence[Call]) -> float:
    """The same of answers in one piece, by a ridge regression (Hoerl and Kennard, 1970): the less their lengths differ,
    the less of the slope is believed.
    """
    tokens, seconds = fmean(tokens for tokens, _ in calls), fmean(seconds for _, seconds in calls)
    varied = sum((each - tokens) ** 2 for each, _ in calls) + SPREAD * len(calls) * tokens**2
    together = sum((each - tokens) * (took - seconds) for each, took in calls)
    return min(max(0.0, seconds - tokens * together / varied), seconds)


class _Window:
    """Calls of one kind since the limit last moved, judged once they are `enough`. `slack`: as many times the usual
    number may seem to wait. `base`: their latency when nobody waits. `fall`: the part of the way that `base` goes to a
    lower one, which may be chance.
    """

    def __init__(self, latency: Callable[[Sequence[Call]], float], *, enough: int, slack: float, fall: float) -> None:
        self.latency, self.enough, self.slack, self.fall = latency, enough, slack, fall
        self.base: float | None = None
        self.calls: list[Call] = []


class Vegas(Learned):
    def __init__(self, most: int) -> None:
        super().__init__(most)
        self._streams = _Window(_first_token, enough=10, slack=1.0, fall=1.0)
        self._whole = _Window(_intercept, enough=20, slack=1.25, fall=0.5)  # they tell less
        self._since = -math.inf  # when the limit last moved; calls that left before tell nothing of it
        self._learned_at, self._judged = 0.0, 0
        self._former: float | None = self._aim  # the limit to go back to after a look at half of it
        self._aim = max(1.0, self._aim / 2)

    def _answered(self, sample: Sample) -> None:
        if sample.first_token is not None:
            window, known = self._streams, sample.first_token
        elif sample.tokens:
            window, known = self._whole, float(sample.tokens)
        else:
            return
        if sample.sent_at < self._since:
            return
        window.calls.append((known, sample.now - sample.sent_at))
        if len(window.calls) >= window.enough:
            self._judge(window, sample)

    def _judge(self, window: _Window, sample: Sample) -> None:
        latency, seconds = window.latency(window.calls), fmean(seconds for _, seconds in window.calls)
        window.calls.clear()
        if window.base is None or self._former is not None:
            window.base, self._learned_at, self._judged = latency, sample.now, 0
            self._move(self._former or self._aim, sample.now)
            self._former = None
            return
        self._judged += 1
        window.base += window.fall * min(0.0, latency - window.base)
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
        self._streams.calls.clear()
        self._whole.calls.clear()
