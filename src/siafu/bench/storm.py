"""A storm of refusals: a crowd asks all at once an endpoint that takes far less and says so with 429 only.

    python -m siafu.bench.storm '{"agents":1000,"seconds":20}'

measures one crowd in this process, so that its memory is its own, against `siafu sim`, and prints a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from siafu.bench.alone import measured
from siafu.bench.gateway.clients.siafu_path import with_store
from siafu.bench.gateway.drive import BODY, raise_file_limit, server_stats
from siafu.border.text import preview
from siafu.config.simulated import simulated

AT_ONCE = 1000  # calls under way at most; the others wait in the limiter
ANSWER_MS = 200


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One crowd. `rate`: requests a second that the endpoint takes. `sent`, `refused`, `completed`: as it counted them.
    `answered`: agents that have their answer. `ideal`: seconds that the rate alone takes. `rss_mb`: at most.
    """

    agents: int
    rate: float
    sent: int
    refused: int
    completed: int
    answered: int
    seconds: float
    ideal: float
    rss_mb: int
    first_error: str = ""


def storms(crowds: Sequence[int], seconds: float, say: Callable[[str], None]) -> Iterator[Row]:
    """One row for each crowd, each in a process of its own. seconds: how long the endpoint needs for a crowd at best.

    Raises: MeasurementInvalid.
    """
    for agents in crowds:
        say(f"{agents:,} agents, {agents / seconds:g} requests a second")
        order = json.dumps({"agents": agents, "seconds": seconds})
        command = [sys.executable, "-P", "-m", "siafu.bench.storm", order]
        yield msgspec.json.decode(measured(command, f"a storm of {agents:,}"), type=Row)


async def storm(agents: int, seconds: float) -> Row:
    """Measure one crowd in this process."""
    rate = agents / seconds
    limits = ("--rpm", str(rate * 60), "--burst", "1", "--latency", f"fixed:{ANSWER_MS}ms")
    with tempfile.TemporaryDirectory(prefix="siafu-storm-") as folder:
        async with (
            simulated(*limits) as url,
            with_store(url, BODY, min(agents, AT_ONCE), Path(folder)) as call,
        ):
            began = time.perf_counter()
            answers = await asyncio.gather(*map(call, range(agents)), return_exceptions=True)
            took = time.perf_counter() - began
            stats = await asyncio.to_thread(server_stats, urlsplit(url).port or 80, "/_sim/stats")
    failed = [each for each in answers if isinstance(each, BaseException)]
    return Row(
        agents=agents,
        rate=rate,
        sent=stats["requests"],
        refused=stats["by_status"].get("429", 0),
        completed=stats["completed"],
        answered=agents - len(failed),
        seconds=round(took, 2),
        ideal=seconds,
        rss_mb=round(
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        ),
        first_error=preview(f"{type(failed[0]).__name__}: {failed[0]}") if failed else "",
    )


if __name__ == "__main__":
    raise_file_limit()
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(storm(**json.loads(sys.argv[1])))))
