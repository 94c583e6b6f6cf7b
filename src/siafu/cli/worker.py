"""`siafu worker`: does what was submitted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from siafu.border.text import counted
from siafu.cli.options import BaseUrl, LogForm, LogFormat, MetricsAt, ParentPid
from siafu.cli.shop_records import UNPAID
from siafu.cli.showing import AsJson, Config, print_lines
from siafu.errors import ConfigError

if TYPE_CHECKING:
    from siafu.config.settings import Settings
    from siafu.observe.scrape import Scrape
    from siafu.queue.supervisor import Patience
    from siafu.queue.worker import Halt, Tally, WorkerOptions

_PARENTS = ("processes", "json", "parent_pid", "kept")  # options that are the parent's own
STILL_LEASES, STILL_SECONDS = 2.0, 5.0  # without a beat, the longer of both, after which a process hangs
START_SECONDS = 300.0  # until the first beat: many that start at once on few cores may take minutes
CLOSING = 9.5  # seconds beyond the grace: for what is handed back to be written, and everything to be closed
_log = logging.getLogger("siafu")
Shop = typer.Option(
    None,
    "--database",
    envvar="SIAFU_SHOP_DATABASE_URL",
    show_default=False,
    show_envvar=True,
    help="The example shop's database. Default: shop.db in SIAFU_HOME or ./.siafu",
)
app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    epilog="""\b
Examples:
  siafu worker                     until it is stopped
  siafu worker --until-empty       until nothing is left to do
  siafu worker --slots 200 --rpm 600
  siafu worker --min 8 --max 256   as many slots as the work and limits want
  siafu worker --processes 4       for more than one core
  siafu worker --metrics 8000      http://127.0.0.1:8000/metrics
  SIAFU_DATABASE_URL=postgresql://... siafu worker
                                   several machines, one queue
\b
Tasks come from siafu submit. A task is leased for a time and the lease is
renewed while the work goes on; if the worker dies, another one takes the
task over and goes on from its journal. SIGTERM and Ctrl-C let running tasks
end for --grace seconds and hand the others back; a second one hands back at
once. With --processes the slots are those of each; one that dies, or does not
move for two leases (5 s at least; 5 min at its start), is started again, and
without Redis each takes its part of the key's limits.
Exit code: 0 stopped or nothing left, 1 work under way was cut off in a
hurry, 2 wrong use or key, 3 budget reached or no credit left.
"""
)
def worker(
    ctx: typer.Context,
    slots: int | None = typer.Option(
        None, min=1, max=10_000, help="Tasks at once. Default: 50; with --max at first: --min"
    ),
    least: int | None = typer.Option(None, "--min", min=1, max=10_000, help="Slots at least, with --max. Default: 8"),
    most: int | None = typer.Option(None, "--max", min=1, max=10_000, help="Slots follow the work, up to so many."),
    processes: int = typer.Option(1, min=1, max=256, help="Worker processes; the slots are those of each."),
    lease: float = typer.Option(15.0, min=0.5, max=3600, help="Seconds until a dead worker's task is another's."),
    grace: float = typer.Option(20.0, min=0, max=3600, help="Seconds for running tasks to end when it is stopped."),
    poll: float = typer.Option(0.5, min=0.05, max=60, help="Seconds between two looks for new tasks."),
    until_empty: bool = typer.Option(False, "--until-empty", help="End when nothing is left that can go on by itself."),
    keep: str = typer.Option("30d", metavar="DURATION", help="How long ended tasks are kept; 0 = for ever."),
    rpm: float | None = typer.Option(None, help="Model calls a minute. Default: learned from the endpoint's 429s"),
    strong: str | None = typer.Option(None, "--strong", help="Model that sorts requests and answers delicate ones."),
    cheap: str | None = typer.Option(None, "--cheap", help="Model that answers most requests."),
    base_url: str | None = BaseUrl,
    database: str | None = Shop,
    metrics: str | None = MetricsAt,
    log_format: LogForm = LogFormat,
    parent_pid: int | None = ParentPid,
    kept: str | None = typer.Option(None, hidden=True, help="What the parent tells of this process."),
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Do the tasks that were submitted."""
    from siafu.cli.filerun import KEPT_DAYS, parse_duration
    from siafu.cli.logged import logged
    from siafu.queue.worker import WorkerOptions

    first, fewest, highest = _slots(slots, least, most)
    flags = {
        "endpoint.base_url": base_url, "models.strong": strong, "models.cheap": cheap, "limits.rpm": rpm,
    }  # fmt: skip
    settings = _settings(config, flags, highest, processes)
    seconds = parse_duration(keep, least=0, days=KEPT_DAYS) or None  # 0 = for ever
    with logged(log_format):
        if parent_pid is None:
            _say_parts(settings)
        if processes > 1:
            _check_ports(metrics, processes)
            if parent_pid is None:
                _say_once(settings)
            several = _Supervised(settings, processes, _patience(grace, lease), _words(ctx))
            found, code = asyncio.run(several.run(parent_pid))
        else:
            options = WorkerOptions(
                slots=first, least=fewest, most=highest, lease=lease, grace=grace, poll=poll, until_empty=until_empty
            )  # fmt: skip
            tally, hurried = asyncio.run(_run(settings, options, database, seconds, metrics, parent_pid, kept))
            found = _record(tally) | ({"open": tally.open} if parent_pid else {})  # it adds several up
            code = int(hurried and tally.cut > 0) if tally.halt is None else _halted(tally.halt)
        _show(found, code, settings, json)
    raise typer.Exit(code)


def _show(found: dict[str, Any], code: int, settings: Settings, json: bool) -> None:
    """What was done, and what comes next."""
    if json:
        return print_lines([found])
    typer.echo(_text(found))
    if code and not found["left"]:
        return None  # why nothing was done stands above
    waits = {} if found["left"] and not found["left"].get("waiting") else asyncio.run(_waits(settings))
    return _say(_next_step(found["left"], waits))


def _patience(grace: float, lease: float) -> Patience:
    """How long worker processes may take for what, in seconds."""
    from siafu.queue.supervisor import Patience

    still = max(STILL_LEASES * lease, STILL_SECONDS)
    return Patience(closing=grace + CLOSING, start=max(START_SECONDS, still), still=still)


def _check_ports(metrics: str | None, processes: int) -> None:
    """Raises: ConfigError when not each process has a port of its own for metrics."""
    from siafu.border.listening import host_and_ports

    if metrics is None:
        return
    ports = host_and_ports(metrics, "--metrics")[1]
    if ports != range(1) and len(ports) < processes:  # 0 = any that is free
        raise ConfigError(
            f"--metrics {metrics} is {len(ports):,} ports, and each of {processes:,} processes needs its own: give a "
            f"range of {processes:,}, such as --metrics {ports[0]}-{ports[0] + processes - 1}"
        )


def _slots(slots: int | None, least: int | None, most: int | None) -> tuple[int, int, int]:
    """How many at first, at least and at most."""
    if most is None:
        if least is not None:
            raise ConfigError("--min goes with --max, such as --min 8 --max 256")
        slots = 50 if slots is None else slots
        return slots, slots, slots
    least = min(8, most) if least is None else least
    slots = least if slots is None else slots
    if not least <= slots <= most:
        raise ConfigError(f"--min {least}, --slots {slots} and --max {most} must rise in this order")
    return slots, least, most


def _settings(config: Path | None, flags: Mapping[str, Any], slots: int, processes: int) -> Settings:
    """The settings, with room for a call of each slot of all processes where they do not say how many calls there may
    be at once.
    """
    from siafu.config.settings import given, load

    settings = load(config=config, flags=flags)
    parts = max(processes, settings.limits.processes)
    more: dict[str, Any] = {"limits.processes": parts}
    if not any(each.name == "limits.concurrency" for each in given(config=config, flags=flags)):
        more["limits.concurrency"] = min(slots * parts, 10_000)
    return load(config=config, flags={**flags, **more})


async def _run(
    settings: Settings, options: WorkerOptions, shop: str | None, keep: float | None, metrics: str | None,
    parent: int | None, told: str | None,
) -> tuple[Tally, bool]:  # fmt: skip
    from siafu.border.stopping import stopping
    from siafu.cli.lanes import Lanes
    from siafu.config.watching import scrape_of
    from siafu.config.worker import opened_worker
    from siafu.pace.clock import SystemClock
    from siafu.queue.pulse import Kept

    kept = Kept() if told is None else msgspec.json.decode(told, type=Kept)
    scrape = scrape_of(settings, SystemClock())
    scrape.add(kept.families)
    known = set(_notices(settings))
    if parent is None:
        _say_once(settings)

    def say(notice: str) -> None:
        if notice not in known:  # else it was said above, or by the parent for all of its children
            _say(notice)

    async with (
        stopping(parent) as stops,
        _served(metrics, scrape),
        opened_worker(
            settings, options, shop=shop, keep=keep, notice=say, observer=Lanes(_say), scrape=scrape
        ) as worker,
        kept.beating(SystemClock()),
    ):
        fixed = options.least == options.most
        slots = f"{options.slots}" if fixed else f"{options.least} to {options.most}"
        _say(f"worker {worker.name}: {slots} slots; Ctrl-C stops it in good order")
        return await worker.run(stops), stops.hurry.is_set()


@contextlib.asynccontextmanager
async def _served(metrics: str | None, scrape: Scrape) -> AsyncIterator[None]:
    """Serve metrics while the block runs, if they are wanted."""
    if metrics is None:
        yield
        return
    from siafu.border.listening import bind_first, bound_url, host_and_ports
    from siafu.border.urls import is_loopback
    from siafu.config.watching import TOKEN, scrape_token
    from siafu.pace.clock import SystemClock
    from siafu.service.metrics import METRICS, Metrics, MetricsApp
    from siafu.service.server import served_beside

    host, ports = host_and_ports(metrics, "--metrics")
    token, local = scrape_token(), is_loopback(host)
    if token is None and not local:
        raise ConfigError(f"metrics at {host} can be read from other machines: set {TOKEN}, or serve them on 127.0.0.1")
    with bind_first(host, ports) as listening:
        page = MetricsApp(Metrics(scrape, token, SystemClock(), lambda: local), SystemClock())
        async with served_beside(page, listening), scrape.lag.measured():
            _say(f"metrics: {bound_url(listening)}{METRICS}")
            yield


class _Supervised:
    """The parent of `number` worker processes, which get `words` and its environment."""

    def __init__(self, settings: Settings, number: int, patience: Patience, words: Sequence[str]) -> None:
        self._settings = settings
        self._number = number
        self._patience = patience
        self._words = words

    async def run(self, parent: int | None) -> tuple[dict[str, Any], int]:
        """What they have done together, and the exit code. parent: whose end ends all; None = nobody's."""
        from siafu.border.stopping import stopping
        from siafu.pace.clock import SystemClock
        from siafu.queue.supervisor import Supervisor, worst

        own = ["--json", "--parent-pid", str(os.getpid())]
        command = [sys.executable, "-P", "-m", "siafu", "worker", *self._words, *own]
        shared = {"SIAFU_PROCESSES": str(self._settings.limits.processes)}
        supervisor = Supervisor(command, shared, self._patience, _say, clock=SystemClock(), rng=Random())
        _say(f"{self._number} worker processes; Ctrl-C stops them in good order")
        async with stopping(parent) as stops:
            ended = await supervisor.run(self._number, stops)
        found = [msgspec.json.decode(each.output) for each in ended if each.output.strip()]
        done = await self._done({task for each in found for task in each["open"]})
        return _together(found, sum(each.deaths for each in ended), done), worst([each.code for each in ended])

    async def _done(self, tasks: Collection[str]) -> set[str]:
        """Those of the tasks that one process left open and that have ended since, in the hands of another."""
        from siafu.config.tasks import task_desk
        from siafu.errors import StoreError

        done: set[str] = set()
        with contextlib.suppress(StoreError):  # then some count twice
            async with task_desk(self._settings) as desk:
                done = await desk.ended_of(tasks)
        return done


def _words(ctx: typer.Context) -> list[str]:
    """The options that stand on this command's line, but for those of the parent; what stands in variables and files,
    such as a password in an address, is found there by the others, too.
    """
    words = []
    for option in ctx.command.params:
        source = ctx.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE" and option.name not in _PARENTS:
            value = ctx.params[option.name or ""]
            words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return words


def _notices(settings: Settings) -> list[str]:
    """What people should know about how it is set up, whoever does the work."""
    from siafu.config.assembly import notices

    paid = settings.mcp_servers or os.environ.get("SIAFU_PAYMENTS_URL")
    return [*([] if paid else [f"{UNPAID}; to try refunds: siafu payments serve --help"]), *notices(settings)]


def _say_once(settings: Settings) -> None:
    for notice in _notices(settings):
        _say(notice)


def _say_parts(settings: Settings) -> None:
    parts = settings.limits.processes
    if parts > 1 and settings.redis_url is None and not settings.simulated:
        _say(f"without Redis each process takes one in {parts} parts of the key's limits; with it they share them")


def _say(notice: str) -> None:
    _log.info("%s", notice)


def _halted(halt: Halt) -> int:
    from siafu.apps.filerun.run import stop_code

    _say(f"{halt.message}; the tasks are kept: start a worker again")
    return stop_code(halt.code)


def _record(tally: Tally) -> dict[str, Any]:
    halt = None if tally.halt is None else tally.halt.code
    left = tally.left
    return {
        "tasks": left.total(), "claimed": tally.claimed, "left": dict(left), "fenced": tally.fenced, "stopped": halt,
        "restarts": 0,
    }  # fmt: skip


def _together(found: Sequence[Mapping[str, Any]], restarts: int, done: Collection[str]) -> dict[str, Any]:
    """The records of several workers as one. done: tasks that are not open any more, whoever says so. What a worker
    did that was killed is not in it.
    """
    left: Counter[str] = Counter()
    open_ones: dict[str, str] = {}
    for each in found:
        left.update(each["left"])
        left.subtract(each["open"].values())
        open_ones.update(each["open"])
    left.update(state for task, state in open_ones.items() if task not in done)
    left = +left
    return {
        "tasks": left.total(),
        "claimed": sum(each["claimed"] for each in found),
        "left": dict(left),
        "fenced": sum(each["fenced"] for each in found),
        "stopped": next((each["stopped"] for each in found if each["stopped"]), None),
        "restarts": restarts,
    }


def _text(found: Mapping[str, Any]) -> str:
    left = ", ".join(f"{number:,} {state}" for state, number in sorted(found["left"].items()))
    more = f", in {found['claimed']:,} deliveries" if found["claimed"] > found["tasks"] else ""
    lost = f"; {found['fenced']:,} were another worker's, or removed, before they ended" if found["fenced"] else ""
    again = f"; {found['restarts']:,} processes died or hung and were started again" if found["restarts"] else ""
    return f"{counted(found['tasks'], 'task')}{more}: {left or 'none ended'}{lost}{again}"


async def _waits(settings: Settings) -> dict[str, int]:
    """What all tasks that wait, wait for."""
    from siafu.config.tasks import task_desk
    from siafu.errors import StoreError
    from siafu.store.task_desk import Which

    with contextlib.suppress(StoreError):  # this is a hint
        async with task_desk(settings) as desk:
            return await desk.waits(Which())
    return {}


def _next_step(left: Mapping[str, int], waits: Mapping[str, int]) -> str:
    """What to do after a worker has ended."""
    from siafu.cli.waits import waits_text

    if left.get("dead_letter"):
        return "to see what was given up: siafu dead list; to see all: siafu tasks list"
    if text := waits_text(waits):
        return text
    if left:
        return "to see what came of them: siafu tasks list"
    return "nothing was there to do; to have something done: siafu submit support FILE"
