"""One crowd: an upstream, and the agents in a process of their own."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from siafu.bench.alone import measured
from siafu.bench.crowd import run
from siafu.bench.gateway.compare import describe, server
from siafu.errors import MeasurementInvalid

SPREAD = 0.5  # of the upstream's time: models do not answer in step


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """waiting: agents that wait in the limiter, beside those whose calls are under way. home: where the journal is put
    meanwhile.
    """

    waiting: int = 10_000
    in_flight: int = 1_000
    upstream_ms: float = 2_000.0
    home: Path = Path(".siafu")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a crowd took. agents_in_calls, in_flight: on average, the latter as the upstream saw it. rss_mb: the most,
    rss_before_mb without a crowd. Stalls: how late what wants to run every 10 ms was, in ms; p99.9 and p50 while all
    wait or are under way, the longest of all, beginning and end included. idle_*: before, with nothing to do.
    """

    agents: int
    calls: int
    errors: int
    first_error: str
    server_calls: int
    agents_in_calls: float
    in_flight: float
    calls_per_s: float
    cpu_ms_per_call: float
    rss_mb: float
    rss_before_mb: float
    stall_p99_9_ms: float
    stall_p50_ms: float
    stall_longest_ms: float
    idle_p99_9_ms: float
    idle_longest_ms: float

    def check(self, in_flight: int) -> None:
        """Raises: MeasurementInvalid when the upstream has seen other calls than were made, or too many at once."""
        if not self.errors and self.server_calls != self.calls:
            raise MeasurementInvalid(f"{self.calls:,} calls, but the upstream counted {self.server_calls:,}")
        if self.in_flight > 1.02 * in_flight:
            raise MeasurementInvalid(f"{self.in_flight:,.0f} calls were in flight where {in_flight:,} may be")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    row: Row
    machine: dict[str, Any]


def compare(options: Options) -> Report:
    """Measure one crowd; three calls an agent.

    Raises: MeasurementInvalid.
    """
    options.home.mkdir(parents=True, exist_ok=True)
    machine = describe("asyncio", options.home)
    agents = options.waiting + options.in_flight
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=options.home) as folder,
        server(options.upstream_ms, "asyncio", SPREAD) as port,
    ):
        order = {"port": port, "waiting": options.waiting, "in_flight": options.in_flight, "calls": 3 * agents}
        command = [sys.executable, "-P", "-m", run.__name__, json.dumps({**order, "folder": folder})]
        row = msgspec.json.decode(measured(command, "the crowd"), type=Row)
    row.check(options.in_flight)
    machine["load_after"] = round(os.getloadavg()[0], 2)
    return Report(row=row, machine=machine)
