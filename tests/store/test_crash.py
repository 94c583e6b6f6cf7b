"""Crash points: which pass of which point ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

SCRIPT = """
from siafu.store.crash import crash_point
for n in range(1, 6):
    print(n, flush=True)
    crash_point("here")
"""


def run(wanted: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SIAFU_CRASH_AT": wanted}
    return subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("wanted", "passes"), [("here", 1), ("here:1", 1), ("here:3", 3)])
def test_the_chosen_pass_ends_the_process(wanted: str, passes: int) -> None:
    done = run(wanted)
    assert done.returncode == -signal.SIGKILL
    assert len(done.stdout.split()) == passes


@pytest.mark.parametrize("wanted", ["", "there", "here:6"])
def test_any_other_does_nothing(wanted: str) -> None:
    done = run(wanted)
    assert (done.returncode, len(done.stdout.split())) == (0, 5)


@pytest.mark.parametrize("wanted", ["here:", "here:0", "here:x", "here:-1"])
def test_a_wrong_count_is_refused(wanted: str) -> None:
    done = run(wanted)
    if wanted == "here:":
        assert done.returncode == -signal.SIGKILL
    else:
        assert done.returncode == 1 and "ConfigError: SIAFU_CRASH_AT=" in done.stderr
