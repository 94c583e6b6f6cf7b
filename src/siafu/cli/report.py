"""`siafu report`: how tasks did, against what was promised."""

from __future__ import annotations

import asyncio
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from siafu.border.text import clean, counted
from siafu.cli.showing import AsJson, Config, print_json, print_table, time_text
from siafu.errors import ConfigError

if TYPE_CHECKING:
    from siafu.apps.sla import Miss, Period, SlaReport, Targets
    from siafu.config.settings import Settings

app = typer.Typer(
    help="How tasks did, against what was promised.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu report sla --p95 30s --success 99
""",
)


@app.callback()
def reports() -> None:
    pass


@app.command(
    "sla",
    epilog="""\b
Examples:
  siafu report sla --p95 30s --success 99
  siafu report sla --since 7d --p95 2m --run monday --json
\b
The time of a task is from its acceptance to its end. It counts in the hour in
which it was accepted. p50 and p95 are by nearest rank, over tasks that
succeeded. success: of those that ended, but for cancelled ones, and of those
that are open for longer than --p95 (overdue). Misses are tasks that failed,
took longer than --p95, or are overdue. Ended tasks are kept for as long as
workers are told (siafu worker --keep).
Exit code: 0 kept in every hour, or nothing was promised; 1 not; 2 wrong use.
""",
)
def sla(
    since: str = typer.Option("24h", "--since", metavar="DURATION", help="Tasks accepted so long ago or later."),
    p95: str | None = typer.Option(None, "--p95", metavar="DURATION", help="95 of 100 take no longer: 900ms, 30s, 2m."),
    success: str | None = typer.Option(None, "--success", metavar="PERCENT", help="At least so many succeed: 99.5"),
    run: str | None = typer.Option(None, "--run", help="Only tasks of this run."),
    tenant: str | None = typer.Option(None, "--tenant", help="Only tasks of this tenant."),
    limit: int = typer.Option(20, min=0, max=100_000, help="The most misses that are listed, the first ones."),
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Compare tasks with what was promised, by hour."""
    from siafu.apps.sla import Targets
    from siafu.cli.filerun import KEPT_DAYS, parse_duration
    from siafu.config.settings import load

    targets = Targets(p95=None if p95 is None else _seconds(p95), success=None if success is None else _share(success))
    settings, window = load(config=config), parse_duration(since, days=KEPT_DAYS)
    found = asyncio.run(
        _report(settings, targets, window, {"run": run and clean(run), "tenant": tenant and clean(tenant)}, limit)
    )
    if json:
        print_json(_record(found))
    else:
        _show(found)
    raise typer.Exit(1 if found.total.met is False or any(hour.met is False for hour in found.hours) else 0)


async def _report(
    settings: Settings, targets: Targets, window: float, which: dict[str, str | None], most: int
) -> SlaReport:
    from siafu.apps.sla import Sla
    from siafu.config.tasks import task_database
    from siafu.store.task_times import clock, task_times

    async with task_database(settings) as database:
        now = await clock(database)
        sums = Sla(targets, now, most=most)
        async for page in task_times(database, since=now - window, until=now, **which):
            sums.add(page)
    return sums.report()


def _show(found: SlaReport) -> None:
    names = (
        "hour (UTC)", "kept", "accepted", "succeeded", "failed", "open", "overdue", "slow", "p50 s", "p95 s", "success",
    )  # fmt: skip
    rows = [(time_text(hour.begins_at), *_cells(hour)) for hour in found.hours]
    if rows:
        rows.append(("all", *_cells(found.total)))
    print_table(names, rows, nothing="no tasks were accepted in this time", numbers=2)
    if found.missed:
        typer.echo(
            f"\n{counted(found.missed, 'task')} missed it, the first {len(found.misses):,}:" if found.misses else ""
        )
        print_table(("id", "state", "seconds", "accepted", "run", "key", "why"), [_told(miss) for miss in found.misses])


def _told(miss: Miss) -> tuple[str, ...]:
    took = f"{miss.seconds:,.3f}"
    return (miss.id, miss.state, took, time_text(miss.accepted_at), miss.run, miss.key, miss.code)


def _cells(period: Period) -> tuple[str, ...]:
    kept = {None: "-", True: "yes", False: "NO"}[period.met]
    counts = (period.accepted, period.succeeded, period.failed, period.open, period.overdue, period.slow)
    times = ("-" if seconds is None else f"{seconds:,.3f}" for seconds in (period.p50, period.p95))
    share = "-" if period.success is None else f"{_percent(period.success)} %"
    return (kept, *(f"{count:,}" for count in counts), *times, share)


def _percent(share: Decimal) -> Decimal:
    """Rounded down: what is a little under a target must not look like it."""
    return (share * 100).quantize(Decimal("0.01"), rounding="ROUND_DOWN")


def _record(found: SlaReport) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(found, builtin_types=(Decimal,))
    for part in (told["targets"], told["total"], *told["hours"]):
        if part["success"] is not None:
            part["success"] = msgspec.Raw(
                format(part["success"].quantize(Decimal("0.000001"), "ROUND_DOWN"), "f").encode()
            )
    return told


def _seconds(text: str) -> float:
    from siafu.cli.filerun import parse_duration

    if text.strip().endswith("ms") and text.strip()[:-2].isdigit():
        return int(text.strip()[:-2]) / 1000
    return parse_duration(text)


def _share(text: str) -> Decimal:
    try:
        percent = Decimal(text.strip().removesuffix("%"))
    except InvalidOperation:
        percent = Decimal(-1)
    if not 0 < percent <= 100:
        raise ConfigError("--success is a number of percent above 0, up to 100, such as 99.5")
    return percent / 100
