"""What `siafu bench` found, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from siafu.bench.crowd.compare import Report as CrowdReport
    from siafu.bench.gateway.compare import Report as GatewayReport
    from siafu.bench.gateway.figures import Spread
    from siafu.bench.limits.report import Row, Total
    from siafu.bench.serve.compare import Report as ServeReport
    from siafu.bench.storm import Row as Storm

GATEWAY_LEGEND = (
    "x: multiple of raw aiohttp in the same repeat, median (lowest-highest) of the runs. Percentiles by nearest rank. "
    "p50 of server: over the server's own median service time. Milliseconds are of this machine at this moment."
)
SERVE_LEGEND = (
    "x: multiple of the bare pass-through in the same repeat, median (lowest-highest) of the runs. CPU is that of the "
    "server's process. Both stand in front of the same upstream, on the same machine as the load."
)
LIMITS_LEGEND = (
    "Three times as many calls are offered as the upstream can take; after 70 s its capacity is halved. goodput: "
    "answers a second, of what it can do in the long run; refused: of what was sent; both leave the first 10 s out. "
    "converged: seconds from the halving until ten seconds in a row have 90 % goodput and at most 2 % refusals. p95: "
    "seconds of an answered call. Medians over the seeds; the same on every machine."
)
CROWD_LEGEND = (
    "Stall: how late what wants to run every 10 ms is, while all wait or are under way; a long one counts for each "
    "time it covers. The longest includes the beginning and the end."
)

STORM_LEGEND = (
    "All agents ask at once, at most 1,000 calls are under way, and the endpoint (siafu sim) tells its limit by 429 "
    "only. sent and refused: as it counted them. lost: agents without an answer. ideal: seconds that its rate alone "
    "takes. MB: the most that the process with the agents held."
)


def machine_line(machine: dict[str, Any]) -> str:
    """What the figures were taken on."""
    spread = f"answers come up to {machine['spread']:.0%} earlier or later, " if machine.get("spread") else ""
    return (
        f"{spread}{machine['cores']} cores, Python {machine['python']}, {machine['loop']}, "
        f"aiohttp {machine['aiohttp']}, fsync {machine['fsync_ms']} ms, "
        f"load {machine['load']} before, {machine['load_after']} after."
    )


def show_gateway(report: GatewayReport) -> None:
    console = Console(highlight=False, soft_wrap=False)
    for agents, by_client in report.ratios.items():
        series = [row for row in report.rows if str(row["concurrency"]) == agents]
        console.print(f"\n[bold]{agents} agents, {series[0]['upstream_ms']:g} ms upstream[/bold]")
        table = table_of("client", "CPU", "p50", "calls/s", "p50 of\nserver", "CPU\nms", "p99\nms", "MB", "err")
        for row in series:
            found = by_client[row["client"]]
            table.add_row(
                row["client"],
                _times(found["cpu"], extremes=row["runs"] > 1),
                _times(found["p50"]),
                _times(found["calls_per_s"]),
                "-" if found["p50_of_upstream"] is None else f"{found['p50_of_upstream'].median:.0%}",
                plain(row["cpu_ms_per_call"], ".2f"),
                plain(row["p99_ms"], ".0f"),
                plain(row["rss_mb"], ".0f"),
                f"{row['errors']:,}",
            )
        console.print(table)
    runs = ", ".join(sorted({str(row["runs"]) for row in report.rows}))
    console.print(f"\n{machine_line(report.machine)} Runs of each: {runs}. The server counted every call.")
    console.print(GATEWAY_LEGEND)
    for name, reason in report.skipped.items():
        console.print(f"Not measured: {name}. {reason}", markup=False)


def show_serve(report: ServeReport) -> None:
    console = Console(highlight=False, soft_wrap=False)
    table = table_of("answers", "server", "requests\n/s", "CPU\nms", "p50\nms", "p99\nms", "err")
    for row in report.rows:
        table.add_row(
            row["mode"],
            row["server"],
            f"{row['requests_per_s']:,.0f}",
            plain(row["cpu_ms_per_request"], ".2f"),
            f"{row['p50_ms']:.0f}",
            f"{row['p99_ms']:.0f}",
            f"{row['errors']:,}",
        )
    console.print(table)
    for mode, found in report.ratios.items():
        rate = _times(found["requests_per_s"], extremes=True)
        cpu = _times(found["cpu_ms_per_request"], extremes=True)
        console.print(f"{mode}: requests a second {rate}, CPU a request {cpu}, p50 {_times(found['p50_ms'])}")
    clients, runs = report.rows[0]["clients"], report.rows[0]["runs"]
    load = f"{clients:,} clients, load by {report.machine['load_by']}, runs of each: {runs}."
    console.print(f"\n{machine_line(report.machine)} {load}")
    console.print(SERVE_LEGEND)


def show_crowd(report: CrowdReport) -> None:
    console, row = Console(highlight=False, soft_wrap=False), report.row
    above = max(0.0, row.stall_p99_9_ms - row.idle_p99_9_ms)
    for line in (
        f"agents: {row.agents:,}, of whom {row.agents_in_calls:,.0f} were in a call on average; {row.in_flight:,.0f} "
        "of these at the upstream",
        f"memory: {row.rss_mb:,.0f} MB at most, {row.rss_before_mb:,.0f} MB before",
        f"stall p99.9: {row.stall_p99_9_ms:,.0f} ms, {above:,.0f} ms above idle ({row.idle_p99_9_ms:,.0f}); p50 "
        f"{row.stall_p50_ms:,.1f} ms; the longest {row.stall_longest_ms:,.0f} ms",
        f"calls: {row.calls:,}, {row.calls_per_s:,.0f} a second, {row.cpu_ms_per_call:.2f} ms CPU each, "
        f"{row.errors:,} errors {row.first_error}",
    ):
        console.print(line.strip(), markup=False)
    console.print(f"\n{machine_line(report.machine)}")
    console.print(CROWD_LEGEND)


def show_limits(rows: Sequence[Row], sums: Sequence[Total]) -> None:
    console = Console(highlight=False, soft_wrap=False)
    table = table_of(
        "scenario", "policy", "good-\nput", "refused", "halved:\ngoodput", "\nrefused", "con-\nverged", "p95"
    )
    before = ""
    for row in rows:
        table.add_row(
            "" if row.scenario == before else row.scenario,
            row.policy,
            f"{row.goodput:.0%}",
            f"{row.refused:.1%}",
            f"{row.goodput_halved:.0%}",
            f"{row.refused_halved:.1%}",
            plain(row.seconds_to_converge, ".0f"),
            f"{row.p95:.1f}",
        )
        before = row.scenario
    console.print(table)
    for each in sums:
        console.print(
            f"{each.policy}: goodput {each.goodput:.0%}, refused {each.refused:.1%}, converged in {each.converged} of "
            f"{each.scenarios}"
        )
    console.print(LIMITS_LEGEND)


def show_storms(rows: Sequence[Storm]) -> None:
    console = Console(highlight=False, soft_wrap=False)
    table = table_of("agents", "rate/s", "sent", "refused", "lost", "seconds", "ideal", "MB")
    for row in rows:
        table.add_row(
            f"{row.agents:,}",
            f"{row.rate:g}",
            f"{row.sent:,}",
            f"{row.refused / row.sent:.1%}",
            f"{row.agents - row.answered:,}",
            f"{row.seconds:.1f}",
            f"{row.ideal:.1f}",
            f"{row.rss_mb:,}",
        )
    console.print(table)
    for row in rows:
        if row.first_error:
            console.print(f"{row.agents:,} agents: {row.first_error}", markup=False)
    console.print(STORM_LEGEND)


def table_of(*columns: str) -> Table:
    """Words to the left, numbers to the right."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    words = ("client", "queue", "requests", "what", "answers", "server", "scenario", "policy")
    for name in columns:
        table.add_column(name, justify="left" if name in words else "right", no_wrap=True)
    return table


def _times(value: Spread | None, *, extremes: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value.median:.2f} x" + (f" ({value.min:.2f}-{value.max:.2f})" if extremes else "")


def plain(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)
