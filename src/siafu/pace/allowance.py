"""A retry budget: how many repeats a crowd of callers may add to a failing upstream."""

from __future__ import annotations


class Allowance:
    """Repeats are paid from a purse that first tries fill: at most `ratio` * first tries + `purse` repeats, ever.

    The purse never holds more than it began with, so a long good time saves nothing up for a storm.
    """

    __slots__ = ("_left", "_purse", "_ratio")

    def __init__(self, *, ratio: float = 0.1, purse: float = 10.0) -> None:
        self._ratio = ratio
        self._purse = purse
        self._left = purse

    def earn(self) -> None:
        """A first try was made."""
        if self._left < self._purse:
            self._left = min(self._purse, self._left + self._ratio)

    def spend(self) -> bool:
        """Pay for one repeat; False = the purse is empty, do not repeat."""
        if self._left < 1.0 - 1e-9:
            return False
        self._left -= 1.0
        return True
