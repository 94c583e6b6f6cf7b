"""What `siafu bench queue` and its neighbours found, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from siafu.bench.goals import lines
from siafu.cli.bench_tables import machine_line, plain, table_of

if TYPE_CHECKING:
    from siafu.bench.queue.compare import Report as QueueReport

QUEUE_LEGEND = (
    "seconds: from the first submission until the last end is recorded, median of the runs. x ideal: over the time "
    "that the work alone takes with all slots busy. CPU: of the processes that submit and work, a task; that of servers "
    "is not in it. accepted: seconds until all were accepted. twice: tasks that were begun again."
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
    for line in lines(report.goals):
        console.print(line, markup=False)
    console.print(f"\n{machine_line(report.machine)}")
    console.print(QUEUE_LEGEND)
    for name, reason in report.skipped.items():
        console.print(f"Not measured: {name}. {reason}", markup=False)
