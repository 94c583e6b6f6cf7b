"""`siafu bench queue`, and what else is measured of tasks and load. Each has goals: 1 is the exit code when one is
missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from siafu.cli.bench_output import Home, Html, Json, print_report, progress, writable, write
from siafu.errors import ConfigError

if TYPE_CHECKING:
    from siafu.bench.goals import Goal

QUEUE_EPILOG = """\b
Examples:
  siafu bench queue
      with servers of its own, beside queues of others; several minutes
  siafu bench queue --no-peers --repeats 1
      siafu and Redis Streams alone; about a minute
  siafu bench queue --peer arq --peer dbos
      beside these only
  siafu bench queue --postgres postgresql://u:p@host/db --redis redis://host
      on servers that are there; what it puts into the database it removes
  siafu bench queue --json > queue.json
      for machines; --html queue.html writes charts too
\b
Exit code: 0 all goals met, 1 one was missed, 2 wrong use.
"""


def queue(
    tasks: int = typer.Option(1200, min=0, max=100_000, help="Tasks of --ms each; 0 = none."),
    ms: float = typer.Option(200.0, min=1.0, max=60_000, help="How long the work of one takes."),
    empty: int = typer.Option(3000, min=0, max=100_000, help="Tasks without work; 0 = none."),
    slots: int = typer.Option(50, min=1, max=1000, help="Tasks that are worked on at once."),
    submitters: int = typer.Option(100, min=1, max=1000, help="Each waits for one acceptance before the next."),
    repeats: int = typer.Option(3, min=1, help="Runs of siafu and of Redis Streams alone; the median counts."),
    peers: bool = typer.Option(True, "--peers/--no-peers", help="Queues of others too (pip installs them); one run."),
    peer: list[str] = typer.Option(
        [], metavar="NAME", help="Only this: streaq, taskiq, arq, celery, dbos. May be repeated."
    ),
    postgres: str | None = typer.Option(None, metavar="URL", help="A PostgreSQL to use. Default: one of its own"),
    redis: str | None = typer.Option(None, metavar="URL", help="A Redis to use. Default: one of its own"),
    home: Path = Home,
    html: Path | None = Html,
    json: bool = Json,
) -> None:
    """Measure what a durable task costs.

    siafu on SQLite in one process and on PostgreSQL in two, Redis Streams alone, and queues of others: tasks of 200 ms,
    and empty ones from many submitters. Each row says what outlives a crash.
    """
    from siafu.bench.queue.compare import PEERS, Options, compare
    from siafu.bench.queue.page import queue_page
    from siafu.cli.bench_tables import machine_line
    from siafu.cli.bench_work_tables import QUEUE_LEGEND, show_queue

    if not tasks and not empty:
        raise ConfigError("--tasks 0 --empty 0 leaves nothing to measure")
    if unknown := [name for name in peer if name not in PEERS]:
        raise ConfigError(f"--peer {unknown[0]}: there are {', '.join(PEERS)}")
    writable(html)
    report = compare(
        Options(
            tasks=tasks, ms=ms, empty=empty, slots=slots, submitters=submitters, repeats=repeats,
            peers=tuple(peer or PEERS) if peers else (), postgres=postgres, redis=redis, home=home,
        ),
        progress,
    )  # fmt: skip
    if html is not None:
        missing = [f"Not measured: {name}. {reason}" for name, reason in report.skipped.items()]
        write(html, queue_page(report, [machine_line(report.machine), QUEUE_LEGEND, *missing]))
    if json:
        print_report({**_fields(report), "goals": [goal.told() for goal in report.goals]})
    else:
        show_queue(report)
    _judge(report.goals)


def _fields(report: object) -> dict[str, object]:
    import msgspec

    return msgspec.structs.asdict(report)  # type: ignore[arg-type]


def _judge(goals: Sequence[Goal]) -> None:
    if not all(goal.met for goal in goals):
        raise typer.Exit(1)
