"""One goes first: of those who come to the same place while it is cold, one leads and the others wait for it. When it
has made the place warm, all go; when it has failed, the next of them leads.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Lead:
    """The queue at one place. `warm_until`: on the caller's clock, in seconds. In one event loop."""

    def __init__(self) -> None:
        self.warm_until = -math.inf
        self._leader: int | None = None  # its priority; None = nobody leads
        self._waiting: dict[asyncio.Future[bool], int] = {}  # who waits, in order of arrival, with their priorities

    async def enter(self, now: float, priority: int, most: float | None) -> bool:
        """Whether the caller leads; it must then say `warm` or not, and `left`, whatever happens. False: it may go.

        Waits for the leader, but `most` seconds of the event loop at most (None = as long as it takes), and never for
        one of less priority (a higher number). Cancelling gives the place up, also one to lead.

        Raises: what `turn_away` says.
        """
        if now < self.warm_until or (self._leader is not None and priority < self._leader):
            return False
        if self._leader is None:
            self._leader = priority
            return True
        place: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[place] = priority
        try:
            await asyncio.wait({place}, timeout=most)
        except asyncio.CancelledError:
            if place.done() and place.exception() is None and place.result():
                self.left()
            raise
        finally:
            self._waiting.pop(place, None)
        return place.done() and place.result()

    def warm(self, until: float) -> int:
        """It is warm until then: let all go who wait. Returns how many they were."""
        self.warm_until = max(self.warm_until, until)
        waiting, self._waiting = self._waiting, {}
        return sum(_tell(place, leads=False) for place in waiting)

    def left(self) -> None:
        """The leader is done: the next who waits leads."""
        self._leader = None
        for place, priority in list(self._waiting.items()):
            del self._waiting[place]
            if _tell(place, leads=True):
                self._leader = priority
                return

    def turn_away(self, error: Callable[[], Exception]) -> None:
        """Let all who wait fail, each with an error of its own."""
        waiting, self._waiting = self._waiting, {}
        for place in waiting:
            if not place.done():
                place.set_exception(error())


def _tell(place: asyncio.Future[bool], *, leads: bool) -> bool:
    """Whether somebody still waits there."""
    if place.done():
        return False
    place.set_result(leads)
    return True
