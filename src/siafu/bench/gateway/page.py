"""The comparison of clients as an HTML page. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from siafu.bench.page import Section, bars, page

if TYPE_CHECKING:
    from siafu.bench.gateway.compare import Report

_CHARTS = (
    ("cpu_ms_per_call", "CPU a call, ms (less is better)", ".2f"),
    ("calls_per_s", "Calls a second (more is better)", ",.0f"),
    ("p50_ms", "Median of a call, ms (less is better)", ",.0f"),
    ("p99_ms", "99th percentile of a call, ms (less is better)", ",.0f"),
)
_COLUMNS = {
    "client": "client", "cpu_ms_per_call": "CPU ms", "calls_per_s": "calls/s", "p50_ms": "p50 ms", "p95_ms": "p95 ms",
    "p99_ms": "p99 ms", "rss_mb": "MB", "calls": "calls", "errors": "errors", "runs": "runs",
}  # fmt: skip


def gateway_page(report: Report, notes: list[str]) -> str:
    """One section a number of agents. notes: what stands below, such as the machine."""
    sections = []
    for agents, by_client in report.ratios.items():
        rows = [row for row in report.rows if str(row["concurrency"]) == agents]
        times = {name: found["cpu"] for name, found in by_client.items()}
        head = [*_COLUMNS.values(), "CPU, x raw"]
        table = [
            [
                *(_cell(row[name]) for name in _COLUMNS),
                "-" if (cpu := times[row["client"]]) is None else f"{cpu.median:.2f}",
            ]
            for row in rows
        ]
        sections.append(
            Section(
                title=f"{int(agents):,} agents, upstream answers in {rows[0]['upstream_ms']:g} ms",
                charts=[(title, bars(rows, "client", name, form)) for name, title, form in _CHARTS],
                table=[head, *table],
            )
        )
    return page("What a model call costs: siafu beside other clients", sections, notes)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"
    return "-" if value is None else str(value)
