"""Whether a place is worth a call: one that fails again and again is left alone, and used again step by step.

| state     | a call leaves                     | an answer                        | a failure            |
|-----------|-----------------------------------|----------------------------------|----------------------|
| closed    | yes                               | the failures are forgotten       | enough in a row:     |
|           |                                   |                                  | open                 |
| open      | one after each rest, as a probe   | returning                        | stays open           |
| returning | while fewer than `window` are out | window + 1; at half of the calls | enough in a row:     |
|           |                                   | under way before: closed         | open                 |

A call that left before the state changed, or before the failures began, says nothing new. A rest doubles with each
probe, when it leaves: so nothing is to be given back for one that hangs or is cancelled. Pure: times are arguments, in
monotonic seconds.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

State = Literal["closed", "open", "returning"]
SHARE = 0.1  # of the calls under way that have to fail in a row, when this is more than `failures`
ROUND = 0.25  # seconds in which the window doubles at least, as answers may take long


class Pattern(msgspec.Struct, frozen=True, kw_only=True):
    """failures: in a row that open it. first: seconds of the first rest; doubled up to `longest`. hurried: while calls
    wait for it, it is tried more often, see `Breaker.take`.
    """

    failures: int = 3
    first: float = 2.0
    longest: float = 30.0
    hurried: bool = True


class Breaker:
    """What is known of a place that has failed since its last answer. `began`: when that was; `failures`: in a row.
    When `answered` says that it is closed, it may be thrown away.
    """

    __slots__ = ("_former", "_grown", "_out", "_pattern", "_rest", "_since", "_until", "began", "failures", "state")

    def __init__(self, pattern: Pattern, now: float, sent_at: float) -> None:
        """`now`: when it failed for the first time, at a call that had left at `sent_at`."""
        self.state: State = "closed"
        self.began = now
        self.failures = 0
        self._pattern = pattern
        self._since = sent_at  # what left before tells nothing
        self._until = -math.inf  # when the next probe may leave
        self._rest = 0.0  # 0 = it has not been open
        self._former = 0  # calls under way when it opened
        self._grown, self._out = 0, 0  # since it returns: answers, and calls that are out

    @property
    def opened(self) -> bool:
        """Whether it has been open."""
        return self._rest > 0.0

    def unheard(self, now: float) -> None:
        """Nobody has called for so long that what is known is old: it is as if it began to fail now."""
        self.began = now
        self.failures = 0
        self._rest = min(self._rest, self._pattern.first)

    def ready(self, now: float) -> float:
        """Seconds until a call may leave, as far as is known; 0.0 = now."""
        if self.state == "open":
            return max(0.0, self._until - now)
        return ROUND if self.state == "returning" and self._out >= self._window(now) else 0.0

    def take(self, now: float, waiting: int | None = None) -> float:
        """A call leaves for which `ready` was 0.0 in this step. Returns what `ended` needs.

        waiting: attempts that the next call in the queue has used up; None = nobody waits. While calls wait, a hurried
        one rests for no longer than a twentieth of the time since it began to fail, so that they soon see its end. But
        probes that are repeats are no more in a minute than a retry budget would pay for: a tenth of the calls that
        were under way, and ten.
        """
        if self.state == "returning":
            self._out += 1
        elif self.state == "open":
            most = self._pattern.longest
            if waiting is not None and self._pattern.hurried:
                paid = 60 / (10 + 0.1 * self._former) if waiting else 0.0
                most = min(most, max(paid, (now - self.began) / 20))
            self._rest = max(self._pattern.first, min(2 * self._rest, most))
            self._until = now + self._rest
        return self._since

    def ended(self, taken: float) -> None:
        """A call that was taken has ended, in whatever way."""
        if self.state == "returning" and taken == self._since:
            self._out -= 1

    def answered(self, sent_at: float, now: float) -> bool:
        """A call that left at `sent_at` was answered. Returns whether it is closed."""
        if sent_at < self._since or (self.state == "open" and sent_at == self._since):
            return False
        self.failures = 0
        if self.state == "open":
            self.state, self._since, self._grown, self._out = "returning", now, 0, 0
        if self.state == "returning":
            self._grown += 1
            if self._window(now) < self._former / 2:
                return False
        self.state = "closed"
        return True

    def failed(self, sent_at: float, now: float, *, under_way: int, certain: bool = False, least: float = 0.0) -> bool:
        """A call that left at `sent_at` failed. Returns whether it opens, or stays open as this was a probe.

        under_way: other calls there. certain: this one is enough. least: seconds for which the place asked to be left
        alone.
        """
        if self.state == "open":
            self._until = max(self._until, now + least)
            return sent_at > self._since
        if sent_at < self._since:
            return False
        self.failures += 1
        if not certain and self.failures < max(self._pattern.failures, SHARE * under_way):
            return False
        if not self.opened:
            self._former, self._rest = self.failures + under_way, self._pattern.first
        self.state, self._since, self._until = "open", now, now + max(self._rest, least)
        return True

    def _window(self, now: float) -> float:
        """Calls that may be out while it returns."""
        return self._grown + math.exp2(min((now - self._since) / ROUND, 60.0))
