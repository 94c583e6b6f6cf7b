"""`siafu tasks`: what was submitted, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import typer

from siafu.border.text import counted, preview, printable
from siafu.cli.showing import AsJson, Config, print_lines, print_record, print_table, time_text
from siafu.errors import ConfigError, InputError

if TYPE_CHECKING:
    from siafu.store.task_desk import TaskDesk, Which
    from siafu.store.task_records import Task
    from siafu.store.webhooks import Told

T = TypeVar("T")
PAGE = 500
WORKERS_SECONDS = 5.0  # between two looks for workers
app = typer.Typer(
    help="Tasks that were submitted (siafu submit): what they wait for, how they ended, and what to do about them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu tasks list
  siafu tasks show t_3f
  siafu tasks watch --json > results.jsonl
  siafu tasks cancel t_3f
\b
A task is blocked (by tasks it needs), ready, leased (a worker has it) or
waiting, until it ends once: succeeded, failed, cancelled, expired (its
deadline) or dead_letter (see: siafu dead --help). With --json every line is
one object, here and in siafu submit, worker, workers and dead.
""",
)

Id = typer.Argument(..., metavar="ID", help="The task: its id or how that begins, or NAME or RUN/NAME of its line.")
Ids = typer.Argument(None, metavar="ID", help="Tasks: ids or how they begin, or NAME or RUN/NAME.")
Run = typer.Option(None, "--run", help="Only tasks of this run.")
Customer = typer.Option(None, "--customer", help="Only tasks of this customer.")
Tenant = typer.Option(None, "--tenant", help="Only tasks of this tenant.")


class Shown(StrEnum):
    blocked = "blocked"
    ready = "ready"
    leased = "leased"
    waiting = "waiting"
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"
    expired = "expired"
    dead_letter = "dead_letter"


@app.command(
    "list",
    epilog="""\b
Examples:
  siafu tasks list
  siafu tasks list --state waiting --run monday
  siafu tasks list --limit 1000 --json
\b
The oldest first; how many there are of each state stands on stderr. States:
blocked, ready, leased, waiting, succeeded, failed, cancelled, expired and
dead_letter.
""",
)
def list_(
    state: Shown | None = typer.Option(None, metavar="STATE", help="Only those of this state."),
    run: str | None = Run,
    customer: str | None = Customer,
    tenant: str | None = Tenant,
    limit: int = typer.Option(50, min=1, max=100_000, help="The most that are shown."),
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """List tasks."""
    which = _which(run=run, state=state, customer=customer, tenant=tenant)

    async def look(desk: TaskDesk) -> tuple[list[Task], dict[str, int]]:
        return await desk.find(which, limit=limit), await desk.counts(which)

    found, counts = with_desk(config, look)
    if json:
        return print_lines(map(record, found))
    nothing = "no such task" if any((state, run, customer, tenant)) else "no task is there: siafu submit support FILE"
    show_table(found, nothing=nothing)
    return typer.echo(f"siafu: {_counted(counts)}", err=True) if found else None


@app.command(
    "show",
    epilog="""\b
Examples:
  siafu tasks show t_3f
  siafu tasks show r001              the line r001 that was submitted
  siafu tasks show monday/r001       of the run monday
  siafu tasks show t_3f --json
""",
)
def show(id: str = Id, config: Path | None = Config, json: bool = AsJson) -> None:
    """Show a task, what came of it, and the steps in its journal."""

    async def look(desk: TaskDesk) -> tuple[Task, dict[str, Any], list[Told]]:
        task = await desk.one(id)
        more = {"needs": await desk.needs(task.id), "request": _raw(task.payload), "steps": await desk.journal(task.id)}
        return task, more, await desk.deliveries.told(task.id)

    task, more, webhooks = with_desk(config, look)
    told = record(task) | more
    if json:
        states = [{**msgspec.structs.asdict(each), "state": each.state} for each in webhooks]
        return print_lines([{**told, "webhooks": states}])
    needs = ", ".join(f"{need['id']} ({need['state']})" for need in more["needs"])
    texts = {"once": None, "request": task.payload, "result": task.result, "steps": len(more["steps"]), "needs": needs}
    return print_record({**told, **texts, "webhooks": "; ".join(map(_webhook, webhooks))})


def _webhook(told: Told) -> str:
    """How far a webhook has been told of an end, for people."""
    at = told.told_at or told.next_at
    word = {"sent": "told at", "waiting": "next try at", "given_up": "given up"}[told.state]
    when = word if at is None else f"{word} {time_text(at)}"
    said = f": {told.said}" if told.said else f" ({told.status})" if told.status else ""
    return f"{told.webhook} of {told.what}: {when}, tried {counted(told.attempts, 'time')}{said}"


@app.command(
    "watch",
    epilog="""\b
Examples:
  siafu tasks watch
  siafu tasks watch --run monday --json > results.jsonl
\b
Each task that ends is one line; with --json that is its record with the
result in it. Ends when no task is left that can go on by itself, and says
how many are left and for what; tasks that wait for a person do not hold it
up. What waits for payments or the endpoint does while a worker is alive, as
those may come back. Says so when tasks are ready and no worker is alive, and
waits for one.
Exit code: 0 all succeeded or wait, 1 some ended otherwise, 130 interrupted.
""",
)
def watch(
    run: str | None = Run,
    tenant: str | None = Tenant,
    every: float = typer.Option(0.5, min=0.05, max=60, help="Seconds between two looks."),
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Follow tasks until they have ended."""
    which = _which(run=run, tenant=tenant)

    async def follow(desk: TaskDesk) -> bool:
        last, good, worked = None, True, _Worked(desk, which)
        while True:
            moving = await desk.moving(which)  # before looking at what has ended: so nothing is missed
            while page := await desk.ended(which, limit=PAGE, after=last):
                last = page[-1]
                good = good and all(task.state == "succeeded" for task in page)
                for task in page:
                    typer.echo(_line(task) if json else _told(task))
            if not moving:
                await _say_left(desk, which)
                return good
            await worked.look()
            await asyncio.sleep(every)

    raise typer.Exit(0 if with_desk(config, follow) else 1)


@app.command(
    "cancel",
    epilog="""\b
Examples:
  siafu tasks cancel t_3f
  siafu tasks cancel --run monday
\b
Tasks that have not begun end at once; those that a worker has are stopped
within a second or two. What needs a cancelled task is cancelled too.
Exit code: 0, or 1 when a task that was named had ended already.
""",
)
def cancel(
    ids: list[str] | None = Ids,
    run: str | None = typer.Option(None, "--run", help="All tasks of this run that have not ended."),
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Cancel tasks."""

    async def stop(desk: TaskDesk) -> tuple[list[Task], int, int]:
        chosen = await _chosen(desk, ids, run)
        open_ones = [task.id for task in chosen if task.ended_at is None]
        running = await desk.cancel(open_ones)
        ended = [task for task in chosen if task.ended_at is not None and ids]
        return ended, len(open_ones) - running, running

    ended, cancelled, running = with_desk(config, stop)
    if json:
        print_lines([{"cancelled": cancelled, "stopping": running, "left": _left(ended)}])
    else:
        typer.echo(f"{cancelled:,} cancelled, {running:,} being stopped")
    for task in ended:
        typer.echo(f"siafu: {task.id[:12]} has ended already: {task.state}", err=True)
    raise typer.Exit(1 if ended else 0)


@app.command(
    "retry",
    epilog="""\b
Examples:
  siafu tasks retry t_3f
  siafu tasks retry --run monday
\b
They go on from their journals: what was answered is not asked again, what
failed is. For tasks that failed, expired, were cancelled or are dead.
Exit code: 0, or 1 when one that was named stays as it is.
""",
)
def retry(
    ids: list[str] | None = Ids,
    run: str | None = typer.Option(None, "--run", help="All tasks of this run that ended otherwise than well."),
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Have tasks begin again that ended otherwise than well."""
    from siafu.store.task_desk import ENDED_BADLY

    show_retried(config, lambda desk: _chosen(desk, ids, run), ENDED_BADLY, named=bool(ids), as_json=json)


@app.command(
    "purge",
    epilog="""\b
Examples:
  siafu tasks purge --older 30d
  siafu tasks purge --run monday --older 0
  siafu tasks purge --customer kim
      all of one customer, under way or not
  siafu tasks purge --customer kim --tenant shop
\b
A purged task is gone with its request, its result and its journal, and its id
may be submitted anew. What tools did stays in the audit (siafu effects).
A customer is of one tenant: of --tenant, else of tasks that were submitted
without one. Says when tasks of a customer of this name are another tenant's.
""",
)
def purge(
    older: str | None = typer.Option(None, "--older", metavar="DURATION", help="Ended so long ago: 0, 90s, 2h, 90d."),
    run: str | None = Run,
    customer: str | None = typer.Option(None, "--customer", help="All tasks of this customer (of --tenant)."),
    tenant: str | None = Tenant,
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Remove tasks for good."""
    from siafu.cli.filerun import KEPT_DAYS, parse_duration

    if (customer is None) == (older is None):
        raise ConfigError("say what to remove: --older DURATION, or --customer NAME")
    if customer is not None and run is not None:
        raise ConfigError("--customer removes all tasks of a customer; leave --run away")

    async def remove(desk: TaskDesk) -> tuple[int, dict[str, int]]:
        if customer is not None:
            number = await desk.forget(customer, tenant or "")
            return number, {} if tenant is not None else await desk.tenants(customer)
        return await desk.purge(
            _which(run=run, tenant=tenant), parse_duration(older or "", least=0, days=KEPT_DAYS)
        ), {}

    number, elsewhere = with_desk(config, remove)
    if json:
        return print_lines([{"purged": number} | ({} if customer is None else {"other_tenants": elsewhere})])
    typer.echo(f"{number:,} purged")
    for name, more in elsewhere.items():
        told = f"{counted(more, 'task')} of a customer of this name at another tenant: --tenant {printable(name)}"
        typer.echo(f"siafu: {told}", err=True)
    return None


def show_retried(
    config: Path | None,
    choose: Callable[[TaskDesk], Awaitable[list[Task]]],
    states: Collection[str],
    *,
    named: bool,
    as_json: bool,
) -> None:
    """Have the chosen tasks begin again that are in one of `states`, and say how many that were. named: the others were
    meant too, so it is said that they stay, and the exit code is 1.
    """

    async def again(desk: TaskDesk) -> tuple[list[Task], int, int]:
        chosen = await choose(desk)
        wanted = [task.id for task in chosen if task.state in states]
        left = [task for task in chosen if task.state not in states and named]
        return left, len(wanted), await desk.retry(wanted)

    left, wanted, number = with_desk(config, again, rings=True)
    if as_json:
        print_lines([{"retried": number, "need_failed": wanted - number, "left": _left(left)}])
    else:
        typer.echo(f"{number:,} begin again")
    for task in left:
        typer.echo(f"siafu: {task.id[:12]} stays as it is: {task.state}", err=True)
    if wanted > number:
        typer.echo(f"siafu: {counted(wanted - number, 'task')} left that need others: retry those first", err=True)
    if number and not as_json:
        typer.echo("siafu: a worker that runs takes them, else: siafu worker", err=True)
    raise typer.Exit(1 if left or (named and wanted > number) else 0)


def show_table(found: list[Task], *, nothing: str) -> None:
    from siafu.store.task_records import name_of

    rows = [
        (
            task.id[:12], task.state, task.run, name_of(task.once, task.run) or "", task.customer,
            time_text(task.created_at), _why(task),
        )
        for task in found
    ]  # fmt: skip
    print_table(("id", "state", "run", "name", "customer", "accepted", "why"), rows, nothing=nothing)


def with_desk(config: Path | None, do: Callable[[TaskDesk], Awaitable[T]], *, rings: bool = False) -> T:
    from siafu.config.settings import load
    from siafu.config.tasks import task_desk

    async def run() -> T:
        async with task_desk(load(config=config), rings=rings) as desk:
            return await do(desk)

    return asyncio.run(run())


def record(task: Task) -> dict[str, Any]:
    """A task for JSON, without its request."""
    from siafu.store.task_records import name_of

    told = {"id": task.id, "name": name_of(task.once, task.run), **msgspec.structs.asdict(task)}
    for name in ("payload", "print", "turn", "deps_left", "waits_since"):
        del told[name]
    result = None if task.result is None else _raw(task.result)
    return {**told, "cancel_requested": bool(task.cancel_requested), "result": result}


def _raw(text: str) -> msgspec.Raw:
    """JSON, on one line."""
    return msgspec.Raw(msgspec.json.format(text.encode(), indent=-1))


def _left(tasks: list[Task]) -> list[dict[str, str]]:
    return [{"id": task.id, "state": task.state} for task in tasks]


class _Worked:
    """Says when nobody works, and what is left, once each time."""

    def __init__(self, desk: TaskDesk, which: Which) -> None:
        self._desk = desk
        self._which = which
        self._looked_at = float("-inf")
        self._worked = True

    async def look(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._looked_at + WORKERS_SECONDS:
            return
        self._looked_at = now
        worked = any(worker.state != "stale" for worker in await self._desk.workers.all())
        if self._worked and not worked:
            typer.echo("siafu: no worker is alive, so nothing goes on; to start one: siafu worker", err=True)
            await _say_left(self._desk, self._which)
        self._worked = worked


async def _say_left(desk: TaskDesk, which: Which) -> None:
    """Say what has not ended, if anything has not."""
    from siafu.cli.waits import waits_text
    from siafu.store.task_records import TERMINAL

    counts = await desk.counts(which)
    if not counts:
        typer.echo("siafu: there is no such task; see: siafu tasks list", err=True)
    if left := {state: number for state, number in counts.items() if state not in TERMINAL}:
        typer.echo(f"siafu: left: {_counted(left)}", err=True)
    if text := waits_text(await desk.waits(which)):
        typer.echo(f"siafu: {text}", err=True)


async def every(desk: TaskDesk, which: Which) -> list[Task]:
    """All of them, in pages."""
    found: list[Task] = []
    while page := await desk.find(which, limit=PAGE, after=found[-1] if found else None):
        found += page
    return found


async def _chosen(desk: TaskDesk, ids: list[str] | None, run: str | None) -> list[Task]:
    if bool(ids) == (run is not None):
        raise InputError("say which tasks: ids, or --run NAME; see: siafu tasks list")
    if ids:
        return [await desk.one(id) for id in ids]
    if found := await every(desk, _which(run=run)):
        return found
    raise InputError(f"there is no task of the run {preview(run or '', 60)!r}; see: siafu tasks list")


def _which(**values: Any) -> Which:
    from siafu.store.task_desk import Which

    return Which(**{name: None if value is None else str(value) for name, value in values.items()})


def _why(task: Task) -> str:
    if task.state == "waiting" and task.waits_for:
        return f"waits for {task.waits_for}"
    if task.state == "blocked":
        return f"needs {counted(task.deps_left, 'more task')}: siafu tasks show {task.id[:12]}"
    if task.state == "succeeded":
        return ""
    told = f"{task.code}: {task.message}" if task.message else task.code
    return f"before: {told}" if told and task.state in ("ready", "leased") else told


def _line(task: Task) -> str:
    return msgspec.json.encode(record(task)).decode()


def _told(task: Task) -> str:
    from siafu.store.task_records import full_name

    words = (time_text(task.ended_at or 0.0), task.id[:12], task.state, full_name(task.once, task.run), _why(task))
    return preview("  ".join(words), 300).rstrip()


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in sorted(counts.items())) or "no tasks"
