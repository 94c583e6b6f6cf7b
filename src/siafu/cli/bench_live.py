"""`siafu bench limits` on a real model server."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from siafu.bench.demo.real import Model
from siafu.bench.limits.live import POLICIES, PROMPTS, Load, Row, Server, compare, model_file
from siafu.cli.bench_output import print_report, progress
from siafu.cli.bench_tables import plain, table_of
from siafu.errors import ConfigError

LEGEND = (
    "limit, at once: calls that were allowed and under way, medians of the last third. p50, p95: seconds of a call "
    "from its sending on; token: to its first token, at p50. whole: mixed prompts, answered in one piece; the others "
    "are streamed. Fewer slots: the same siafu, after the server came back with half of them. Times are of this "
    "machine at this moment."
)


def on_real_server(model: Model, load: Load, *, json: bool) -> None:
    """Raises: ConfigError, DemoFailed, MeasurementInvalid."""
    for option, given, known in (("policies", load.policies, POLICIES), ("prompts", load.prompts, PROMPTS)):
        if not set(given) <= set(known):
            raise ConfigError(f"--{option} {','.join(given)}: there are {', '.join(known)}")
    if load.agents <= load.slots:
        raise ConfigError(f"--agents {load.agents} never reach a limit; ask for more than the {load.slots} slots")
    rows = asyncio.run(_rows(model, load))
    if json:
        print_report({"rows": rows})
    else:
        show(rows, restarted=model.path is not None)


async def _rows(model: Model, load: Load) -> list[Row]:
    if model.path is None:
        return await compare(Server(model.base_url or "", model.name or ""), load, progress)
    with tempfile.TemporaryDirectory(prefix="siafu-limits-") as folder:
        async with model_file(model.path, load.slots, Path(folder)) as server:
            return await compare(server, load, progress)


def show(rows: Sequence[Row], *, restarted: bool) -> None:
    console = Console(highlight=False, soft_wrap=False)
    table = table_of("prompts", "policy", "slots", "limit", "at once", "per s", "p50", "p95", "token", "failed")
    before = ""
    for row in rows:
        table.add_row(
            "" if row.prompts == before else row.prompts,
            row.policy,
            str(row.slots),
            f"{row.limit:g}",
            f"{row.at_once:g}",
            f"{row.answers_per_s:.2f}",
            f"{row.p50:.2f}",
            f"{row.p95:.2f}",
            plain(row.first_token, ".2f"),
            str(row.failed),
        )
        before = row.prompts
    console.print(table)
    if not restarted:
        console.print("Not measured: half the slots. A server behind --base-url cannot be told to; --model-path can.")
    console.print(LEGEND)
