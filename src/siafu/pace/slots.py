"""How many tasks a worker holds at once, when that follows the work: more while tasks wait for a slot and calls do not
wait for the endpoint, fewer when slots are of no use. Pure: the clock is an argument.

It doubles as long as all slots are used, and gives an eighth back after half a minute in which an eighth was of no use:
empty, or held by a task whose call waits for the endpoint's limit. Beyond the number at which calls queued up it feels
its way an eighth at a time, as TCP does beyond its threshold (Jacobson, SIGCOMM 1988), so it does not swing.
"""

from __future__ import annotations

import math

GROW = 2.0  # seconds between two steps up
PATIENCE = 30.0  # seconds for which slots are of no use before some are given back; between two careful steps
FORGET = 4 * PATIENCE  # seconds without a call that waits, after which the endpoint's limit may be another one
PART = 8  # a careful step is one part in so many


class Slots:
    """`count` is the number now; it begins at `start` (None = `least`) and stays within `least` and `most`, both at
    least 1.
    """

    def __init__(self, least: int, most: int, start: int | None = None) -> None:
        self.least, self.most = least, max(least, most)
        self.count = least if start is None else max(self.least, min(start, self.most))
        self._threshold = math.inf  # where calls have queued up
        self._changed_at = self._useful_at = self._waited_at = -math.inf

    def look(self, now: float, *, ready: int, busy: int, waiting: int) -> int:
        """The number from now on. ready: tasks that nobody has taken yet. busy: slots that hold one. waiting: calls
        that wait for a limit of the endpoint, or for the endpoint itself to come back.
        """
        if waiting:
            self._waited_at = now
        elif now - self._waited_at > FORGET:
            self._threshold = math.inf
        part = max(1, self.count // PART)
        if self._useful_at == -math.inf or busy - waiting > self.count - part:
            self._useful_at = now
        since = now - self._changed_at
        if min(since, now - self._useful_at) >= PATIENCE:
            self._change(now, self.count - part)
            if waiting:
                self._threshold = self.count
        elif ready and busy >= self.count and not waiting:
            if 2 * self.count <= self._threshold:
                self._change(now, 2 * self.count if since >= GROW else self.count)
            elif since >= PATIENCE:
                self._change(now, self.count + part)
        return self.count

    def _change(self, now: float, count: int) -> None:
        count = max(self.least, min(count, self.most))
        if count != self.count:
            self.count, self._changed_at = count, now
