"""The soak as an HTML page. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from siafu.bench.page import Bar, Section, page, table

if TYPE_CHECKING:
    from siafu.bench.soak.compare import Report

COLUMNS = {
    "what": "what", "first": "at first", "middle": "middle third", "last": "last third", "most": "most",
    "an_hour": "growth an hour", "flat": "flat",
}  # fmt: skip
MOST_BARS = 24


def soak_page(report: Report, notes: list[str]) -> str:
    """notes: what stands below, such as the goals and the machine."""
    chosen = report.samples[:: max(1, len(report.samples) // MOST_BARS)]
    charts = []
    for name in (row["what"] for row in report.rows):
        seen = [(sample.at, sample.values[name]) for sample in chosen if name in sample.values]
        charts.append(
            (name, [Bar(name=f"{at / 60:,.1f} min", value=value, text=f"{value:,.1f}") for at, value in seen])
        )
    sections = [
        Section(title="Grown or not", table=table(report.rows, COLUMNS)),
        Section(title="In the course of time", charts=charts),
    ]
    return page("The same load for hours", sections, notes)
