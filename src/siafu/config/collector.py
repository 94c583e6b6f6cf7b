"""Python's cyclic garbage collector, set for a process that runs many agents.

Each call in flight holds some hundred objects for as long as its upstream thinks, and reference counts free nearly all
of them. As Python starts, the collector looks through the young ones after every 700 that are more than before, finds
nothing, and now and then walks through everything that was ever imported: with 100 agents that is a sixth of all CPU
time. The young ones are not few either: where as many objects go as come, their number says "none since the last time",
and with 10,000 agents waiting one look at them took half a second, in which the event loop stood still.

So the collector runs when there may be something to find: when the process holds more memory than before.
"""

from __future__ import annotations

import gc
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

# Net growth in objects until the young, the middle and the old are looked at; what is left to Python's own counting.
THRESHOLDS = (500_000, 4, 4)
_AT_ONCE = (1, 0, 0)
_GROWTH, _ROOM = 1.25, 64 * 2**20  # bytes; memory against what it was when a collection was last asked for
_LOOK = 1.0  # seconds


def relieve_collector() -> None:
    """Let the collector run seldom, and never through what is there now. For programs of our own: it is the setting of
    the whole process, so a library must not do this to its host.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(_done)
    threading.Thread(target=_watch, name="siafu-collector", daemon=True).start()


def _watch() -> None:
    """Ask for a collection whenever memory has outgrown the last one: of the oldest objects whose turn it is, the
    first time of all that came after the start. It is not made here: what it finds is to end in the thread that made
    it, which is nearly always the one that makes the next object.
    """
    seen = _held()
    while True:
        time.sleep(_LOOK)
        if outgrown(now := _held(), seen):
            seen = now
            gc.set_threshold(*_AT_ONCE)


def outgrown(now: int, then: int) -> bool:
    """Whether `now` bytes of memory are much more than `then`."""
    return now > then * _GROWTH + _ROOM


def _held() -> int:
    """Bytes of memory that this process holds; the most it ever held where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * resource.getpagesize()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _done(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop":
        gc.set_threshold(*THRESHOLDS)
