"""Where items wait until they can go on: out of every slot, and looked at again now and then. Pure."""

from __future__ import annotations

from siafu.swarm.intake import Entry
from siafu.swarm.results import MapResult

FIRST, MOST = 1.0, 20.0  # seconds between two looks: the first, and the most


class Parking:
    """Waiting items of one run. seconds: how long they are looked at again once nothing else is left to do; None = not
    at all, then nothing is kept here.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._parked: dict[int, tuple[Entry, MapResult]] = {}
        self._until: float | None = None
        self._pause = FIRST

    def put(self, entry: Entry, result: MapResult) -> None:
        """`entry` waits; `result` says so."""
        if self._seconds is not None:
            entry.journaled = True  # it has been begun, in this session too
            self._parked[entry.index] = (entry, result)

    def take(self, index: int) -> MapResult | None:
        """What was told of an item that has ended its wait, or has been asked about; None when it was not here."""
        _, told = self._parked.pop(index, (None, None))
        return told

    @property
    def entries(self) -> list[Entry]:
        return [entry for entry, _ in self._parked.values()]

    def news(self) -> None:
        """One has gone on: more may follow soon."""
        self._pause = FIRST

    def pause(self, now: float) -> float | None:
        """Seconds until the next look; None when nothing waits or the time is over. The last look is at its end."""
        if self._seconds is None or not self._parked:
            return None
        self._until = now + self._seconds if self._until is None else self._until
        left = self._until - now
        if left <= 0:
            return None
        pause, self._pause = min(self._pause, left), min(self._pause * 1.5, MOST)
        return pause
