"""What people hear of upstreams, keys and tool servers that take no calls for now."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from siafu.observe.events import Event, LaneClosed, LaneOpened

QUIET_SECONDS = 60.0  # between two notes about one upstream that comes and goes
_OUT = {
    "budget_reached": "the budget of its key is used up for today (UTC), or too little for some calls",
    "access_refused": "its key is refused; left out until the key is changed",
    "tool_unavailable": "cannot be reached; calls wait until it is back, or their time is over",
    "quota_exhausted": "no credit or quota left; it is asked again now and then, until it goes on",
}


class Lanes:
    """An Observer that says once that an upstream, or one of its keys, takes no calls, and once that it does again.
    `clock`: monotonic seconds.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._told_at: dict[str, float] = {}  # lanes, and when people heard that one takes no calls
        self._out: set[str] = set()  # those of which they have not heard since

    def __call__(self, event: Event) -> None:
        if isinstance(event, LaneClosed):
            if self._clock() - self._told_at.get(event.lane, -math.inf) >= QUIET_SECONDS:
                self._told_at[event.lane] = self._clock()
                self._out.add(event.lane)
                why = _OUT.get(event.reason, f"{event.reason} again and again; tried now and then")
                self._say(f"{event.lane}: {why}")
        elif isinstance(event, LaneOpened) and event.lane in self._out:
            self._out.remove(event.lane)
            self._say(f"{event.lane} answers again")
