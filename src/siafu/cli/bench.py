"""`siafu bench`: measurements of siafu beside other ways to do the same."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from siafu.errors import ConfigError

if TYPE_CHECKING:
    from siafu.bench.gateway.compare import Report
    from siafu.bench.gateway.figures import Spread
    from siafu.bench.limits.report import Row, Total

EPILOG = """\b
Examples:
  siafu bench gateway
      five runs each; some minutes, the OpenAI SDK most of them
  siafu bench gateway --no-peers --concurrency 100
      without the OpenAI SDK, at 100 agents only
  siafu bench gateway --json > bench.json
      for machines
  siafu bench limits
      policies of the limiter, in virtual time; some seconds
"""
LEGEND = (
    "x: multiple of raw aiohttp in the same repeat, median (lowest-highest) of the runs. Percentiles by nearest rank. "
    "p50 of server: over the server's own median service time. Milliseconds are of this machine at this moment."
)

LIMITS_LEGEND = (
    "Three times as many calls are offered as the upstream can take; after 70 s its capacity is halved. goodput: "
    "answers a second, of what it can do in the long run; refused: of what was sent; both leave the first 10 s out. "
    "converged: seconds from the halving until ten seconds in a row have 90 % goodput and at most 2 % refusals. p95: "
    "seconds of an answered call. Medians over the seeds; the same on every machine."
)

app = typer.Typer(rich_markup_mode=None, add_completion=False, no_args_is_help=True, epilog=EPILOG)


@app.callback()
def bench() -> None:
    """Measure siafu beside other clients, and its limiter's policies beside each other."""


@app.command(epilog=EPILOG)
def client(
    concurrency: str = typer.Option("100,1000", metavar="N,N", help="Agents at once; one series each."),
    calls: int = typer.Option(2000, min=1, help="Calls a run; at least two an agent."),
    repeats: int = typer.Option(5, min=1, help="Runs of each client; the median counts."),
    upstream_ms: float = typer.Option(200.0, min=1.0, help="How long the server takes to answer."),
    loop: str = typer.Option("auto", help="Event loop of all clients and the server: asyncio, uvloop or auto."),
    peers: bool = typer.Option(True, "--peers/--no-peers", help="Compare with the OpenAI SDK too (pip installs it)."),
    home: Path = typer.Option(Path(".siafu"), envvar="SIAFU_HOME", help="Where journals and peers are put."),
    json: bool = typer.Option(False, "--json", help="Print rows, ratios and machine as JSON."),
) -> None:
    """Measure CPU and latency of a model call.

    Bare aiohttp, siafu with ledger and journal, siafu without a store, and the OpenAI SDK: each in its own process, in
    turns, against one server with a fixed latency.
    """
    from siafu.bench.gateway.compare import Options, compare
    from siafu.border.canonical import dumps

    if loop not in ("auto", "asyncio", "uvloop"):
        raise ConfigError(f"--loop {loop}: write auto, asyncio or uvloop")
    report = compare(
        Options(
            concurrency=_numbers(concurrency),
            calls=calls,
            repeats=repeats,
            upstream_ms=upstream_ms,
            loop=loop,
            peers=peers,
            home=home,
        ),
        lambda text: typer.echo(text, err=True),
    )
    if json:
        sys.stdout.buffer.write(dumps(report) + b"\n")
        sys.stdout.flush()
    else:
        _show(report)
    if any(row["errors"] for row in report.rows):
        raise typer.Exit(1)


@app.command(epilog=EPILOG)
def limits(
    seeds: int = typer.Option(3, min=1, max=100, help="Runs of each scenario, with different chance."),
    json: bool = typer.Option(False, "--json", help="Print rows and totals as JSON."),
) -> None:
    """Compare the limiter's policies in virtual time.

    They decide how many calls are under way at once (limits.policy).
    """
    from siafu.bench.limits.report import compare, totals
    from siafu.border.canonical import dumps

    rows = compare(range(1, seeds + 1))
    if json:
        sys.stdout.buffer.write(dumps({"rows": rows, "totals": totals(rows)}) + b"\n")
        sys.stdout.flush()
    else:
        _show_limits(rows, totals(rows))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(1 <= number <= 10_000 for number in found) or len(set(found)) < len(found):
        raise ConfigError(f"--concurrency {text}: write numbers from 1 to 10,000, each once, such as 100,1000")
    return found


def _show(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=False)
    for agents, by_client in report.ratios.items():
        series = [row for row in report.rows if str(row["concurrency"]) == agents]
        console.print(f"\n[bold]{agents} agents, {series[0]['upstream_ms']:g} ms upstream[/bold]")
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("client", no_wrap=True)
        for name in ("CPU", "p50", "calls/s", "p50 of\nserver", "CPU\nms", "p99\nms", "MB", "err"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in series:
            found = by_client[row["client"]]
            table.add_row(
                row["client"],
                _times(found["cpu"], extremes=row["runs"] > 1),
                _times(found["p50"]),
                _times(found["calls_per_s"]),
                "-" if found["p50_of_upstream"] is None else f"{found['p50_of_upstream'].median:.0%}",
                _plain(row["cpu_ms_per_call"], ".2f"),
                _plain(row["p99_ms"], ".0f"),
                _plain(row["rss_mb"], ".0f"),
                f"{row['errors']:,}",
            )
        console.print(table)
    machine = report.machine
    console.print(
        f"\n{machine['cores']} cores, Python {machine['python']}, {machine['loop']}, aiohttp {machine['aiohttp']}, "
        f"fsync {machine['fsync_ms']} ms, load {machine['load']} before, {machine['load_after']} after. Runs of each: "
        f"{report.rows[0]['runs']}. The server counted every call."
    )
    console.print(LEGEND)
    for name, reason in report.skipped.items():
        console.print(f"Not measured: {name}. {reason}", markup=False)


def _show_limits(rows: Sequence[Row], sums: Sequence[Total]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=False)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("scenario", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    for name in ("good-\nput", "refused", "halved:\ngoodput", "\nrefused", "con-\nverged", "p95"):
        table.add_column(name, justify="right", no_wrap=True)
    before = ""
    for row in rows:
        table.add_row(
            "" if row.scenario == before else row.scenario,
            row.policy,
            f"{row.goodput:.0%}",
            f"{row.refused:.1%}",
            f"{row.goodput_halved:.0%}",
            f"{row.refused_halved:.1%}",
            _plain(row.seconds_to_converge, ".0f"),
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


def _times(value: Spread | None, *, extremes: bool = False) -> str:
    if value is None:
        return "-"
    return f"{value.median:.2f} x" + (f" ({value.min:.2f}-{value.max:.2f})" if extremes else "")


def _plain(value: Any, form: str) -> str:
    return "-" if value is None else format(value, form)
