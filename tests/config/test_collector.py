"""What the collector's setting costs and keeps: rings of garbage go when memory grows, and not before."""

import subprocess
import sys

import pytest

from siafu.config.collector import outgrown

MB = 2**20

RINGS = """
import gc, sys, time, weakref
from siafu.config import collector

class Ring:
    def __init__(self):
        self.me, self.body = self, bytearray(2**20)

collector._LOOK = 0.01
if sys.argv[1] == "watched":
    collector.relieve_collector()
else:
    gc.set_threshold(*collector.THRESHOLDS)
first = weakref.ref(Ring())
deadline = time.monotonic() + 20
made = 0
while first() is not None and made < 400 and time.monotonic() < deadline:
    Ring()
    made += 1
    time.sleep(0.002)
print(first() is None)
"""


@pytest.mark.parametrize(("mode", "gone"), [("watched", "True"), ("thresholds only", "False")])
def test_garbage_in_rings_goes_when_memory_has_grown(mode: str, gone: str) -> None:
    done = subprocess.run([sys.executable, "-c", RINGS, mode], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == gone


def test_memory_has_outgrown_the_last_collection_by_a_share_and_some_room() -> None:
    assert not outgrown(100 * MB, 100 * MB)
    assert not outgrown(180 * MB, 100 * MB)
    assert outgrown(200 * MB, 100 * MB)
    assert not outgrown(1300 * MB, 1000 * MB)
    assert outgrown(1320 * MB, 1000 * MB)
