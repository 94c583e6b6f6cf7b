"""A measurement in a process of its own, so that its memory and CPU time are its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from siafu.border.text import preview
from siafu.errors import MeasurementInvalid

MOST_SECONDS = 900.0


def measured(command: Sequence[str], who: str) -> bytes:
    """What `command` prints. `who` names it in messages.

    Raises: MeasurementInvalid when it fails, or has not ended after 900 s.
    """
    try:
        ended = subprocess.run(
            command, capture_output=True, timeout=MOST_SECONDS, check=False, start_new_session=True, env=environ()
        )
    except subprocess.TimeoutExpired:
        raise MeasurementInvalid(f"{who} did not end within {MOST_SECONDS:.0f} s") from None
    if ended.returncode:
        said = ended.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
        raise MeasurementInvalid(f"{who} failed: {preview(said[-1])}")
    return ended.stdout


def environ() -> dict[str, str]:
    """The server is on this machine: no proxy may stand between."""
    return {**os.environ, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
