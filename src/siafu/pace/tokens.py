"""A limit of tokens a minute: reserve what a call will probably use, settle what it used.

The bucket is the generic cell rate algorithm with a cost for each call (ITU-T I.371, annex A, virtual scheduling).
What a call did not use comes back only as far as the bucket would not have run over meanwhile, had the call cost that
little from the start. So what calls used in the end keeps the limit too, in every window.
"""

from __future__ import annotations

from siafu.pace.bucket import EPSILON

GAIN = 1 / 8  # of a new value in a running mean; twice that in the mean deviation (Jacobson, 1988, appendix A)
UNKNOWN_OUTPUT = 500  # tokens that an answer is taken for before any was seen, when the request sets no limit
SECONDS_AT_ONCE = 5.0  # of the limit that may be used at once after a pause


class Reserved:
    """What one call has set aside: tokens, and where the bucket stood then."""

    __slots__ = ("full_at", "returned", "tokens")

    def __init__(self, tokens: float, full_at: float, returned: float) -> None:
        self.tokens = tokens
        self.full_at = full_at
        self.returned = returned


class TokenBucket:
    """At most `rate` * W + `burst` tokens in any window of W seconds. `rate`: tokens a second. `burst`: None = what
    `SECONDS_AT_ONCE` seconds allow.

    A call of more than the burst waits until the bucket is full and then owes the rest. A call that used more than it
    reserved owes the difference. Nothing is awaited between `ready` and `take`, so it is exact under concurrency.
    """

    __slots__ = ("_full_at", "_interval", "_returned", "burst")

    def __init__(self, rate: float, burst: float | None = None, *, start: float = 0.0) -> None:
        self._interval = 1.0 / rate
        self.burst = rate * SECONDS_AT_ONCE if burst is None else burst
        self._full_at = start  # when nothing will be missing any more
        self._returned = 0.0  # seconds given back so far

    def ready(self, now: float, tokens: float) -> float:
        """Seconds until a call of `tokens` may leave; 0.0 = now."""
        wait = self._full_at + (min(tokens, self.burst) - self.burst) * self._interval - now
        return wait if wait > EPSILON else 0.0

    def take(self, now: float, tokens: float) -> Reserved:
        self._full_at = max(self._full_at, now) + tokens * self._interval
        return Reserved(tokens, self._full_at, self._returned)

    def change(self, rate: float, now: float) -> None:
        """Hold another rate from now on. Tokens that are missing stay missing."""
        missing = max(0.0, self._full_at - now) / self._interval
        self._interval, self.burst = 1.0 / rate, rate * SECONDS_AT_ONCE
        self._full_at = now + missing * self._interval

    def settle(self, reserved: Reserved, used: float, now: float) -> None:
        """Replace a reservation by what was used; 0 = nothing was sent. Once for each reservation."""
        over = (used - reserved.tokens) * self._interval
        if over > 0:
            self._full_at = max(self._full_at, now) + over
            return
        # Since the call left, the bucket was never nearer to full than this; more would have run over.
        missing = reserved.full_at - (self._returned - reserved.returned) - now
        back = min(-over, max(0.0, min(missing, self._full_at - now)))  # the latter is less after a change of the rate
        self._full_at -= back
        self._returned += back


class Estimate:
    """How many tokens calls of one model will use, learned from those that ended.

    Input: bytes of the request times a ratio; before the first answer 1.0, as a token is at least a byte. Output: what
    answers of late had, and at most what the request allows. Both lie two mean deviations above the mean.
    """

    __slots__ = ("_output", "_ratio")

    def __init__(self) -> None:
        self._ratio = _Running()
        self._output = _Running()

    def tokens(self, size: int, most: int | None) -> int:
        """Tokens of a request of `size` bytes. `most`: tokens of output that it allows, None = no limit."""
        ratio = min(1.0, self._ratio.high(1.0))
        output = self._output.high(UNKNOWN_OUTPUT if most is None else most)
        return 1 + int(size * ratio + (output if most is None else min(most, output)))

    def learn(self, size: int, input: int, output: int) -> None:
        """A request of `size` bytes was answered; tokens as the upstream counted them."""
        self._ratio.add(input / max(1, size))
        self._output.add(output)


class _Running:
    __slots__ = ("_deviation", "_mean")

    def __init__(self) -> None:
        self._mean: float | None = None
        self._deviation = 0.0

    def add(self, value: float) -> None:
        if self._mean is None:
            self._mean, self._deviation = value, value / 2
            return
        error = value - self._mean
        self._mean += GAIN * error
        self._deviation += 2 * GAIN * (abs(error) - self._deviation)

    def high(self, otherwise: float) -> float:
        return otherwise if self._mean is None else self._mean + 2 * self._deviation
