"""`siafu bench queue`, and what else is measured of tasks and load. Each has goals: 1 is the exit code when one is
missed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import typer

from siafu.bench.goals import Judged, lines
from siafu.cli.bench_output import Home, Html, Json, numbers, print_report, progress, writable, write
from siafu.errors import ConfigError

R = TypeVar("R", bound=Judged)

QUEUE_EPILOG = """\b
Examples:
  siafu bench queue
      with servers of its own, beside queues of others; several minutes
  siafu bench queue --no-peers --repeats 1
      siafu and Redis Streams alone; about a minute
  siafu bench queue --peer arq --peer dbos
      beside these only
  siafu bench queue --postgres postgresql://u:p@host/db --redis redis://host
      on servers that are there; tasks in the database are removed, in Redis
      keys with bench- in their names are left
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
        notes = [*lines(report.goals), machine_line(report.machine), QUEUE_LEGEND, *missing]
        write(html, queue_page(report, notes))
    _tell(report, show_queue, json)


STAGES_EPILOG = """\b
Examples:
  siafu bench stages
      1,200 tasks on 10, 20, 50 and 100 workers; about three minutes
  siafu bench stages --workers 50
      one stage; less than a minute
  siafu bench stages --json > stages.json
      for machines; --html stages.html writes charts too
\b
Exit code: 0 all goals met, 1 one was missed, 2 wrong use.
"""


def stages(
    workers: str = typer.Option("10,20,50,100", metavar="N,N", help="Tasks worked on at once; one stage each."),
    tasks: int = typer.Option(1200, min=1, max=100_000, help="Of a burst; one model call each."),
    rpm: float = typer.Option(1800.0, min=1.0, help="Requests a minute that the endpoint takes, and siafu is told."),
    burst: float = typer.Option(1.0, min=0.01, max=3600.0, help="Seconds' worth that the endpoint takes at once."),
    latency_ms: float = typer.Option(200.0, min=1.0, help="How long an answer takes."),
    scale: float = typer.Option(
        1.0,
        min=0.1,
        max=1000.0,
        help="How many times as fast all of it goes; for a try: what "
        "siafu needs itself weighs as many times as much against the goals.",
    ),
    home: Path = Home,
    html: Path | None = Html,
    json: bool = Json,
) -> None:
    """Let a burst of tasks run into an endpoint's limit.

    Durable tasks in SQLite, one model call each with limits, ledger and journal, against the simulated endpoint: how
    near its limit they come, how much it refuses, what it costs.
    """
    from siafu.bench.stages.compare import Options, compare
    from siafu.bench.stages.page import stages_page
    from siafu.cli.bench_tables import machine_line
    from siafu.cli.bench_work_tables import STAGES_LEGEND, show_stages

    writable(html)
    report = compare(
        Options(
            workers=numbers("--workers", workers), tasks=tasks, rpm=rpm, burst=burst, latency_ms=latency_ms,
            scale=scale, home=home,
        ),
        progress,
    )  # fmt: skip
    if html is not None:
        write(html, stages_page(report, [*lines(report.goals), machine_line(report.machine), STAGES_LEGEND]))
    _tell(report, show_stages, json)


SURGE_EPILOG = """\b
Examples:
  siafu bench surge
      8 to 800 requests a second in 10 s; about a minute
  siafu bench surge --peak 200 --capacity 50 --after 20
      less, for a machine with other work
  siafu bench surge --json > surge.json
      for machines, with what became of each second
\b
One in ten requests is interactive (x-siafu-priority: 1), the others are not
(3). Nothing is sent again.
Exit code: 0 all goals met, 1 one was missed, 2 wrong use.
"""


def surge(
    calm: float = typer.Option(8.0, min=0.1, max=10_000, help="Requests a second before and after."),
    peak: float = typer.Option(800.0, min=0.1, max=10_000, help="Requests a second at the height of it."),
    before: float = typer.Option(5.0, min=1.0, max=600, help="Seconds before it rises."),
    rise: float = typer.Option(10.0, min=0.1, max=600, help="Seconds until the peak is reached."),
    hold: float = typer.Option(10.0, min=0.0, max=3600, help="Seconds that the peak lasts."),
    after: float = typer.Option(20.0, min=1.0, max=3600, help="Seconds to watch the recovery."),
    interactive: float = typer.Option(0.1, min=0.0, max=1.0, help="The part of the requests that people wait for."),
    capacity: float = typer.Option(200.0, min=1.0, help="Requests a second that the endpoint behind takes."),
    latency_ms: float = typer.Option(200.0, min=1.0, help="How long its answers take."),
    concurrency: int = typer.Option(100, min=1, max=10_000, help="Of siafu serve; four times as many may wait."),
    home: Path = Home,
    html: Path | None = Html,
    json: bool = Json,
) -> None:
    """Send siafu serve a hundred times as many requests within seconds.

    In front of the simulated endpoint, which has a limit: interactive requests shall be answered, the others wait or
    are told when to ask again, memory stays bounded, and everything is as before soon after.
    """
    from siafu.bench.surge.compare import Options, compare
    from siafu.bench.surge.page import surge_page
    from siafu.bench.surge.plan import Surge
    from siafu.cli.bench_tables import machine_line
    from siafu.cli.bench_work_tables import SURGE_LEGEND, show_surge

    writable(html)
    plan = Surge(calm=calm, peak=peak, before=before, rise=rise, hold=hold, after=after, interactive=interactive)
    options = Options(surge=plan, capacity=capacity, latency_ms=latency_ms, concurrency=concurrency, home=home)
    report = compare(options, progress)
    if html is not None:
        write(html, surge_page(report, [*lines(report.goals), machine_line(report.machine), SURGE_LEGEND]))
    _tell(report, show_surge, json)


SOAK_EPILOG = """\b
Examples:
  siafu bench soak
      an hour
  siafu bench soak --hours 24 --rate 50
      a day
  siafu bench soak --hours 0.2 --servers
      twelve minutes, with a PostgreSQL and a Redis of its own
  siafu bench soak --postgres postgresql://u:p@host/db
      with one that is there; what it puts into it it removes
  siafu bench soak --json > soak.json
      for machines, with every look
\b
Exit code: 0 all is flat and nothing is lost, 1 something is not, 2 wrong use.
"""


def soak(
    hours: float = typer.Option(1.0, min=0.001, max=1000, help="How long."),
    rate: float = typer.Option(20.0, min=0.1, max=1000, help="Tasks a second, one model call each."),
    keep: float | None = typer.Option(
        None, min=1.0, help="Seconds until a task that has ended is removed. Default: a tenth of the time, at most 600"
    ),
    servers: bool = typer.Option(False, "--servers", help="With a PostgreSQL and a Redis of its own."),
    postgres: str | None = typer.Option(
        None, metavar="URL", help="A PostgreSQL to use, without other tasks. Default: a SQLite file"
    ),
    redis: str | None = typer.Option(None, metavar="URL", help="A Redis to use, so that workers hear through it."),
    home: Path = Home,
    html: Path | None = Html,
    json: bool = Json,
) -> None:
    """Run the same load for hours: does anything grow?

    A worker does durable tasks whose model calls go through siafu serve to the simulated endpoint. Flat is what is not
    higher in the last third of the time than in the middle one, but for 2 % and a small slack.
    """
    from siafu.bench.soak.compare import Options, compare
    from siafu.bench.soak.page import soak_page
    from siafu.cli.bench_tables import machine_line
    from siafu.cli.bench_work_tables import SOAK_LEGEND, show_soak

    writable(html)
    if servers and (postgres or redis):
        raise ConfigError("--servers starts a PostgreSQL and a Redis; leave it away to use --postgres and --redis")
    options = Options(
        hours=hours, rate=rate, keep=keep, servers=servers, postgres=postgres, redis=redis, home=home
    )  # fmt: skip
    report = compare(options, progress)
    if html is not None:
        write(html, soak_page(report, [*lines(report.goals), machine_line(report.machine), SOAK_LEGEND]))
    _tell(report, show_soak, json)


def _tell(report: R, show: Callable[[R], None], json: bool) -> None:
    """Print it, and end with what its goals say."""
    if json:
        print_report({**msgspec.structs.asdict(report), "goals": [goal.told() for goal in report.goals]})
    else:
        show(report)
    if not all(goal.met for goal in report.goals):
        raise typer.Exit(1)
