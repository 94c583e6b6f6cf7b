"""Python's cyclic garbage collector, set for a process that runs many agents.

Each call in flight holds some hundred objects for as long as its upstream thinks, and reference counts free nearly all
of them. As Python starts, the collector looks through the young ones after every 700, finds nothing, and now and then
walks through everything that was ever imported: with 100 agents that is a sixth of all CPU time.
"""

from __future__ import annotations

import gc

THRESHOLDS = (20_000, 10, 10)


def relieve_collector() -> None:
    """Let the collector run seldom, and never through what is there now. For programs of our own: it is the setting of
    the whole process, so a library must not do this to its host.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
