"""`siafu workers`: who works on what was submitted."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from siafu.cli.showing import AsJson, Config, print_lines, print_table, time_text

if TYPE_CHECKING:
    from siafu.store.workers import Present

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    epilog="""\b
Examples:
  siafu workers
  siafu workers --json
  siafu workers --here           is one alive on this host? For health checks
\b
A worker says every 2 seconds that it is there. One that was not heard of for
10 seconds is stale: it was killed, hangs or cannot reach the database; its
tasks are others' once their leases are over, and it is forgotten in an hour.
worker: its host and pid, and a mark that tells it from others with the same.
slots: tasks it holds, of how many; behind them how many there may be, when
they follow the work. per minute: tasks it has ended in the last minute.
Exit code: 0, or with --here 1 when no worker of this host is alive.
"""
)
def workers(
    here: bool = typer.Option(False, "--here", help="Only this host's; exit code 1 when none is alive."),
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """List the workers of the database of tasks."""
    found = asyncio.run(_all(config))
    if here:
        found = [worker for worker in found if worker.host == socket.gethostname()]
    if json:
        print_lines(found)
    else:
        rows = [_row(worker) for worker in found]
        columns = ("worker", "state", "slots", "since", "per minute", "heard of", "version")
        print_table(columns, rows, nothing="no worker is there; to start one: siafu worker")
    if here and all(worker.state == "stale" for worker in found):
        raise typer.Exit(1)


async def _all(config: Path | None) -> list[Present]:
    from siafu.config.settings import load
    from siafu.config.tasks import task_workers

    async with task_workers(load(config=config)) as workers:
        return await workers.all()


def _row(worker: Present) -> tuple[str, ...]:
    bounds = "" if worker.least == worker.most else f" ({worker.least}-{worker.most})"
    slots = f"{worker.busy}/{worker.slots}{bounds}"
    heard = f"{worker.seen_ago:,.0f} s ago"
    since = time_text(worker.began_at)
    return worker.name, worker.state, slots, since, f"{worker.per_minute:,}", heard, worker.version
