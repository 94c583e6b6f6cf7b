"""The stages as an HTML page. Pure."""

from __future__ import annotations

from siafu.bench.goals import Judged
from siafu.bench.page import Bar, Section, page, table

COLUMNS = {
    "workers": "workers", "seconds": "seconds", "of_ideal": "x limit", "tasks_per_s": "tasks/s",
    "task_p50": "task p50 s", "task_p95": "p95", "task_p99": "p99", "call_p50": "call p50 s", "call_p95": "p95",
    "call_p99": "p99", "refused_share": "refused", "usd": "USD",
}  # fmt: skip


def stages_page(report: Judged, notes: list[str]) -> str:
    """notes: what stands below, such as the goals and the machine."""
    charts = [
        (
            title,
            [
                Bar(name=f"{row['workers']} workers", value=row[name], text=format(row[name], form), own=True)
                for row in report.rows
            ],
        )
        for name, title, form in (
            ("of_ideal", "Time without one latency, x of what the limit takes", ".3f"),
            ("refused_share", "Part of the requests that was refused", ".2%"),
            ("call_p99", "99th percentile of the work on a task, s", ".2f"),
        )
    ]
    tasks = report.rows[0]["tasks"]
    rows = [{**row, "usd": bytes(row["usd"]).decode()} for row in report.rows]
    section = Section(title=f"{tasks:,} tasks at once", charts=charts, table=table(rows, COLUMNS))
    return page("A burst of tasks and an endpoint's limit", [section], notes)
