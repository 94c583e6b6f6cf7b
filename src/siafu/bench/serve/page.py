"""The comparison of servers as an HTML page. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from siafu.bench.page import Bar, Section, page
from siafu.bench.serve.figures import SIAFU

if TYPE_CHECKING:
    from siafu.bench.serve.compare import Report

_CHARTS = {
    "requests_per_s": "Requests a second (more is better)",
    "cpu_ms_per_request": "CPU a request, ms (less is better)",
    "p50_ms": "Median of an answer, ms (less is better)",
    "p99_ms": "99th percentile of an answer, ms (less is better)",
}


def serve_page(report: Report, notes: list[str]) -> str:
    """One section a kind of answer. notes: what stands below, such as the machine."""
    sections = []
    for mode in report.ratios:
        rows = [row for row in report.rows if row["mode"] == mode]
        charts = [(title, _bars(rows, name)) for name, title in _CHARTS.items()]
        sections.append(Section(title=f"{mode.capitalize()} answers, {rows[0]['clients']:,} clients", charts=charts))
    return page("siafu serve beside a bare pass-through", sections, notes)


def _bars(rows: list[dict[str, Any]], name: str) -> list[Bar]:
    return [
        Bar(name=row["server"], value=row[name], text=f"{row[name]:,.2f}", own=row["server"] == SIAFU)
        for row in rows
        if row[name] is not None
    ]
