"""Places where a test can end the process as `kill -9` does, to prove that nothing confirmed is lost there.

`SIAFU_CRASH_AT=after_commit` dies at the first pass of that point, `after_commit:7` at the seventh.
"""

from __future__ import annotations

import os
import signal

from siafu.errors import ConfigError


def _parse(wanted: str) -> tuple[str, int]:
    point, _, passes = wanted.partition(":")
    if passes and not (passes.isascii() and passes.isdigit() and int(passes)):
        raise ConfigError(f"SIAFU_CRASH_AT={wanted[:60]!r}: write a point, or point:n with n from 1")
    return point, int(passes or 1)


_point, _left = _parse(os.environ.get("SIAFU_CRASH_AT", ""))


def crash_point(name: str) -> None:
    """End this process with SIGKILL on the chosen pass of the point `name`; otherwise do nothing."""
    global _left
    if name == _point:
        _left -= 1
        if _left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
