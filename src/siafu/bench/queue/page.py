"""The comparison of queues as an HTML page. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from siafu.bench.page import Section, bars, page, table

if TYPE_CHECKING:
    from siafu.bench.queue.compare import Report

_COLUMNS = {
    "queue": "queue", "seconds": "seconds", "of_ideal": "x ideal", "tasks_per_s": "tasks/s",
    "cpu_ms_per_task": "CPU ms", "accepted_s": "accepted s", "twice": "twice", "runs": "runs",
    "durability": "durability",
}  # fmt: skip


def queue_page(report: Report, notes: list[str]) -> str:
    """One section a length of tasks. notes: what stands below, such as the machine."""
    sections = []
    for ms in dict.fromkeys(row["ms"] for row in report.rows):
        rows = [row for row in report.rows if row["ms"] == ms]
        figure, form = ("of_ideal", ".2f") if ms else ("tasks_per_s", ",.0f")
        title = "Time, x of the work alone (less is better)" if ms else "Tasks a second (more is better)"
        sections.append(
            Section(
                title=f"{rows[0]['tasks']:,} tasks of {ms:g} ms, {rows[0]['slots']} slots",
                charts=[
                    (title, bars(rows, "queue", figure, form)),
                    ("CPU a task, ms (less is better)", bars(rows, "queue", "cpu_ms_per_task", ".2f")),
                ],
                table=table(rows, _COLUMNS),
            )
        )
    return page("What a durable task costs: siafu beside other queues", sections, notes)
