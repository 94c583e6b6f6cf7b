"""The surge as an HTML page. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from siafu.bench.page import Bar, Section, page, table

if TYPE_CHECKING:
    from siafu.bench.surge.compare import Report

COLUMNS = {
    "requests": "requests", "planned": "planned", "answered": "answered", "kept": "kept", "p50_ms": "p50 ms",
    "p95_ms": "p95 ms", "p99_ms": "p99 ms",
}  # fmt: skip
_SECONDS = {
    "second": "second", "planned": "planned", "answered": "answered", "refused": "refused",
    "interactive": "interactive", "interactive_answered": "of these answered",
}  # fmt: skip


def surge_page(report: Report, notes: list[str]) -> str:
    """notes: what stands below, such as the goals and the machine."""
    bars = [
        Bar(
            name=f"second {each['second']}",
            value=each["planned"],
            text=f"{each['planned']} planned, {each['answered']} answered, {each['refused']} refused",
        )
        for each in report.by_second
    ]
    sections = [
        Section(title="What became of them", table=table(report.rows, COLUMNS)),
        Section(title="By the second in which they were planned", charts=[("Requests", bars)]),
        Section(title="The same as figures", table=table(report.by_second, _SECONDS)),
    ]
    return page("A surge at siafu serve", sections, notes)
