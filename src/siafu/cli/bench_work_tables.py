"""What `siafu bench queue` and its neighbours found, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from siafu.bench.goals import lines
from siafu.cli.bench_tables import machine_line, plain, table_of

if TYPE_CHECKING:
    from siafu.bench.goals import Judged
    from siafu.bench.queue.compare import Report as QueueReport
    from siafu.bench.soak.compare import Report as SoakReport
    from siafu.bench.stages.compare import Report as StagesReport
    from siafu.bench.surge.compare import Report as SurgeReport

QUEUE_LEGEND = (
    "seconds: from the first submission until the last end is recorded, median of the runs. x ideal: over the time "
    "that the work alone takes with all slots busy. CPU: of the processes that submit and work, a task; servers are"
    " not in it. accepted: seconds until all were accepted. twice: tasks that were begun again."
)

STAGES_LEGEND = (
    "All tasks are submitted at once, so a task's time counts from then (p50, p95, p99 in seconds, nearest rank); "
    "call: of the work on it, its wait for the limit in it. x limit: the time without one latency, over what the "
    "endpoint's limit alone takes. refused: of the requests sent, as the endpoint counted. USD: by the ledger, the "
    "same as the endpoint's tokens times the price."
)
SURGE_LEGEND = (
    "Requests leave when they are planned, whatever becomes of those before, and their times count from then; "
    "percentiles (nearest rank) are of those that were answered. Others: refused with 429 or 503, which say when to"
    " ask again."
)
SOAK_LEGEND = (
    "Medians of the middle and of the last third of the time; flat: the last is not above the middle one by more "
    "than 2 % and a slack (4 MB of memory, 4 descriptors, 200 rows, 1 MB of a file). The ledger keeps a line a "
    "call, so it grows."
)


def show_queue(report: QueueReport) -> None:
    console = Console(highlight=False, soft_wrap=False)
    for ms in dict.fromkeys(row["ms"] for row in report.rows):
        rows = [row for row in report.rows if row["ms"] == ms]
        console.print(f"\n[bold]{rows[0]['tasks']:,} tasks of {ms:g} ms, {rows[0]['slots']} slots[/bold]")
        table = table_of("queue", "seconds", "x ideal", "tasks/s", "CPU\nms", "accepted\ns", "twice")
        for row in rows:
            table.add_row(
                row["queue"],
                f"{row['seconds']:.2f}",
                plain(row["of_ideal"], ".2f"),
                f"{row['tasks_per_s']:,.0f}",
                f"{row['cpu_ms_per_task']:.2f}",
                f"{row['accepted_s']:.2f}",
                f"{row['twice']:,}",
            )
        console.print(table)
    console.print()
    for name, kept in {row["queue"]: row["durability"] for row in report.rows}.items():
        console.print(f"{name}: {kept}", markup=False)
    _judged(console, report, QUEUE_LEGEND)
    for name, reason in report.skipped.items():
        console.print(f"Not measured: {name}. {reason}", markup=False)


def show_stages(report: StagesReport) -> None:
    console = Console(highlight=False, soft_wrap=False)
    table = table_of(
        "workers",
        "seconds",
        "x limit",
        "tasks/s",
        "task\np50",
        "p95",
        "p99",
        "call\np50",
        "p95",
        "p99",
        "re-\nfused",
        "USD",
    )
    for row in report.rows:
        table.add_row(
            str(row["workers"]),
            f"{row['seconds']:.1f}",
            f"{row['of_ideal']:.3f}",
            f"{row['tasks_per_s']:.1f}",
            *(f"{row[f'task_p{rank}']:.1f}" for rank in (50, 95, 99)),
            *(f"{row[f'call_p{rank}']:.2f}" for rank in (50, 95, 99)),
            f"{row['refused_share']:.1%}",
            bytes(row["usd"]).decode(),
        )
    console.print(table)
    _judged(console, report, STAGES_LEGEND)


def show_surge(report: SurgeReport) -> None:
    console = Console(highlight=False, soft_wrap=False)
    table = table_of("requests", "planned", "answered", "kept", "p50\nms", "p95\nms", "p99\nms")
    for row in report.rows:
        table.add_row(
            row["requests"],
            f"{row['planned']:,}",
            f"{row['answered']:,}",
            plain(row["kept"], ".2%"),
            *(plain(row[f"p{rank}_ms"], ",.0f") for rank in (50, 95, 99)),
        )
    console.print(table)
    for row in report.rows:
        told = ", ".join(f"{number:,} x {status}" for status, number in row["by_status"].items())
        console.print(f"{row['requests']}: {told}")
    server = report.server
    console.print(
        f"siafu serve: {plain(server['rss_before_mb'], '.0f')} MB before, {plain(server['rss_most_mb'], '.0f')} MB and "
        f"{plain(server['descriptors_most'], ',')} descriptors at most, {plain(server['cpu_seconds'], '.1f')} s of CPU"
    )
    _judged(console, report, SURGE_LEGEND)


def show_soak(report: SoakReport) -> None:
    console = Console(highlight=False, soft_wrap=False)
    table = table_of("what", "at first", "middle", "last", "most", "growth\nan hour", "flat")
    for row in report.rows:
        figures = (plain(row[name], ",.1f") for name in ("first", "middle", "last", "most", "an_hour"))
        table.add_row(row["what"], *figures, {True: "yes", False: "NO", None: "-"}[row["flat"]])
    console.print(table)
    totals = report.totals
    console.print(f"{totals.submitted:,} tasks submitted, {totals.succeeded:,} succeeded, {totals.other:,} not")
    _judged(console, report, SOAK_LEGEND)


def _judged(console: Console, report: Judged, legend: str) -> None:
    for line in lines(report.goals):
        console.print(line, markup=False)
    console.print(f"\n{machine_line(report.machine)}")
    console.print(legend)
