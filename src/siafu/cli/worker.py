"""`siafu worker`: does what was submitted."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from siafu.cli.options import BaseUrl, LogForm, LogFormat
from siafu.cli.shop_records import UNPAID
from siafu.cli.showing import AsJson, Config, print_json
from siafu.errors import ConfigError

if TYPE_CHECKING:
    from siafu.config.settings import Settings
    from siafu.observe.scrape import Scrape
    from siafu.queue.worker import Tally, WorkerOptions

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    epilog="""\b
Examples:
  siafu worker                     until it is stopped
  siafu worker --until-empty       until nothing is left to do
  siafu worker --slots 200 --rpm 600
  siafu worker --metrics 8000      http://127.0.0.1:8000/metrics
  SIAFU_DATABASE_URL=postgresql://... siafu worker
                                   several machines, one queue
\b
Tasks come from siafu submit. A task is leased for a time and the lease is
renewed while the work goes on; if the worker dies, another one takes the
task over and goes on from its journal. SIGTERM and Ctrl-C let running tasks
end for --grace seconds and hand the others back; a second one hands back at
once.
Exit code: 0 stopped or nothing left, 1 stopped in a hurry, 2 wrong use or
key, 3 budget reached or no credit left.
"""
)
def worker(
    slots: int = typer.Option(50, min=1, max=10_000, help="Tasks at once."),
    lease: float = typer.Option(15.0, min=0.5, max=3600, help="Seconds until a dead worker's task is another's."),
    grace: float = typer.Option(20.0, min=0, max=3600, help="Seconds for running tasks to end when it is stopped."),
    poll: float = typer.Option(0.5, min=0.05, max=60, help="Seconds between two looks for new tasks."),
    until_empty: bool = typer.Option(False, "--until-empty", help="End when nothing is left that can go on by itself."),
    keep: str = typer.Option("30d", metavar="DURATION", help="How long ended tasks are kept; 0 = for ever."),
    rpm: float | None = typer.Option(None, help="Model calls a minute. Default: learned from the endpoint's 429s"),
    strong: str | None = typer.Option(None, "--strong", help="Model that sorts requests and answers delicate ones."),
    cheap: str | None = typer.Option(None, "--cheap", help="Model that answers most requests."),
    base_url: str | None = BaseUrl,
    database: str | None = typer.Option(
        None,
        "--database",
        envvar="SIAFU_SHOP_DATABASE_URL",
        show_default=False,
        show_envvar=True,
        help="The example shop's database. Default: shop.db in SIAFU_HOME or ./.siafu",
    ),
    metrics: str | None = typer.Option(
        None,
        "--metrics",
        metavar="[HOST:]PORT[-PORT]",
        envvar="SIAFU_METRICS",
        show_envvar=True,
        help="Serve metrics for Prometheus there, usually at 8000; of 8000-8003 at the first that is free.",
    ),
    log_format: LogForm = LogFormat,
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Do the tasks that were submitted."""
    from siafu.apps.filerun.run import stop_code
    from siafu.cli.filerun import parse_duration
    from siafu.config.settings import load
    from siafu.observe.logs import log_to_stderr
    from siafu.queue.worker import WorkerOptions

    flags = {
        "endpoint.base_url": base_url, "models.strong": strong, "models.cheap": cheap, "limits.rpm": rpm,
        "limits.concurrency": slots,
    }  # fmt: skip
    settings = load(config=config, flags=flags)
    options = WorkerOptions(slots=slots, lease=lease, grace=grace, poll=poll, until_empty=until_empty)
    kept = None if keep == "0" else parse_duration(keep)
    with log_to_stderr(log_format.value) as say:
        beside = Beside(shop=database, keep=kept, metrics=metrics, say=say)
        tally, hurried = asyncio.run(_run(settings, options, beside))
        if json:
            print_json(_record(tally))
        else:
            typer.echo(_text(tally))
        if tally.halt is not None:
            say(f"{tally.halt.message}; the tasks are kept: start a worker again")
    raise typer.Exit(stop_code(tally.halt.code) if tally.halt else int(hurried))


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is given beside its settings. shop, keep: as in `opened_worker`. metrics: where they are served,
    None = nowhere. say: tells people something.
    """

    shop: str | None
    keep: float | None
    metrics: str | None
    say: Callable[[str], None]


async def _run(settings: Settings, options: WorkerOptions, beside: Beside) -> tuple[Tally, bool]:
    from siafu.border.stopping import stopping
    from siafu.config.watching import scrape_of
    from siafu.config.worker import opened_worker
    from siafu.pace.clock import SystemClock

    say, scrape = beside.say, scrape_of(settings, SystemClock())
    if not settings.mcp_servers and not os.environ.get("SIAFU_PAYMENTS_URL"):
        say(f"{UNPAID}; to try refunds: siafu payments serve --help")
    async with (
        stopping() as stops,
        _metrics(beside, scrape),
        opened_worker(settings, options, shop=beside.shop, keep=beside.keep, notice=say, scrape=scrape) as worker,
    ):
        say(f"worker {worker.name}: {options.slots} slots; Ctrl-C stops it in good order")
        return await worker.run(stops), stops.hurry.is_set()


@contextlib.asynccontextmanager
async def _metrics(beside: Beside, scrape: Scrape) -> AsyncIterator[None]:
    """Serve them while the block runs, if they are wanted."""
    if beside.metrics is None:
        yield
        return
    from siafu.border.listening import bind_first, bound_url, host_and_ports
    from siafu.border.urls import is_loopback
    from siafu.config.watching import TOKEN, scrape_token
    from siafu.pace.clock import SystemClock
    from siafu.service.metrics import METRICS, Metrics, MetricsApp
    from siafu.service.server import served_beside

    host, ports = host_and_ports(beside.metrics, "--metrics")
    token, local = scrape_token(), is_loopback(host)
    if token is None and not local:
        raise ConfigError(f"metrics at {host} can be read from other machines: set {TOKEN}, or serve them on 127.0.0.1")
    with bind_first(host, ports) as listening:
        page = MetricsApp(Metrics(scrape, token, SystemClock(), lambda: local), SystemClock())
        async with served_beside(page, listening), scrape.lag.measured():
            beside.say(f"metrics: {bound_url(listening)}{METRICS}")
            yield


def _record(tally: Tally) -> dict[str, object]:
    halt = None if tally.halt is None else tally.halt.code
    return {"claimed": tally.claimed, "left": dict(tally.left), "fenced": tally.fenced, "stopped": halt}


def _text(tally: Tally) -> str:
    left = ", ".join(f"{number:,} {state}" for state, number in sorted(tally.left.items()))
    lost = f"; {tally.fenced:,} were another worker's before they ended" if tally.fenced else ""
    return f"{tally.claimed:,} tasks claimed: {left or 'none ended'}{lost}"
