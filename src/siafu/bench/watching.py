"""What a process holds, looked at from outside: memory and descriptors, where the system has `/proc`."""

from __future__ import annotations

from pathlib import Path

import msgspec

_MEMORY = "VmRSS:"


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """rss_mb: memory. descriptors: open files and sockets."""

    rss_mb: float
    descriptors: int


def held(pid: int) -> Held | None:
    """Of a process now; None where the system does not tell, or it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        line = next(line for line in status.splitlines() if line.startswith(_MEMORY))
    except (OSError, StopIteration):
        return None
    return Held(rss_mb=int(line.split()[1]) / 1024, descriptors=descriptors)
