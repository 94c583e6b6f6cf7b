"""What a process has left behind: children, open files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import births


def children(pid: int | None = None) -> set[int]:
    """Process ids of the living children of `pid` (None = this process) but for who bears them; those not yet collected
    are not living.
    """
    parent = os.getpid() if pid is None else pid
    return {child for child, (state, of) in _processes().items() if of == parent and state != "Z"}


def alive(pid: int) -> bool:
    """True while a process runs, also as somebody else's; False once it has ended, collected or not."""
    return _processes().get(pid, ("Z", 0))[0] != "Z"


def descriptors() -> set[str]:
    """What this process has open, by number and target."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{entry.name} {entry.readlink()}")
        except OSError:  # the one that lists
            continue
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """True as soon as `condition` holds, False when it does not within `seconds`. Blocks."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _processes() -> dict[int, tuple[str, int]]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().rpartition(")")
            except OSError:  # it has ended meanwhile
                continue
            if name.endswith(f"({births.NAME}"):
                continue
            state, parent, *_ = rest.split()
            found[int(entry.name)] = (state, int(parent))
    return found
