"""When which request is to leave: a calm beginning, a rise, a plateau, and the time after. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec


class Surge(msgspec.Struct, frozen=True, kw_only=True):
    """calm, peak: requests a second. Seconds: `before` at calm, `rise` evenly up to peak, `hold` there, `after` at calm
    again. interactive: the part of the requests that people wait for.
    """

    calm: float = 8.0
    peak: float = 800.0
    before: float = 5.0
    rise: float = 10.0
    hold: float = 10.0
    after: float = 20.0
    interactive: float = 0.1

    @property
    def over(self) -> float:
        """Seconds until the peak is over."""
        return self.before + self.rise + self.hold

    def times(self) -> Iterator[tuple[float, bool]]:
        """Seconds after the beginning, and whether it is an interactive one, of each request: the n-th leaves when the
        rates since the beginning add up to n.
        """
        calm, peak = self.calm, self.peak
        phases = [(self.before, calm, calm), (self.rise, calm, peak), (self.hold, peak, peak), (self.after, calm, calm)]
        number, passed, begun = 0, 0.0, 0.0
        for seconds, first, last in phases:
            whole = seconds * (first + last) / 2
            while number + 1 <= begun + whole:
                number += 1
                n = number - begun  # = first * t + (last - first) / seconds * t * t / 2
                at = 2 * n / (first + math.sqrt(first * first + 2 * n * (last - first) / seconds))
                yield passed + at, int(number * self.interactive) > int((number - 1) * self.interactive)
            passed, begun = passed + seconds, begun + whole
