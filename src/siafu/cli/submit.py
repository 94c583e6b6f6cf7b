"""`siafu submit`: hand work over to workers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

import msgspec
import typer

from siafu.border.text import counted, preview, printable
from siafu.cli.options import Source, Strict
from siafu.cli.showing import AsJson, Config, print_lines

if TYPE_CHECKING:
    from siafu.border.jsonl import LineError
    from siafu.config.settings import Settings
    from siafu.store.task_desk import TaskDesk
    from siafu.store.task_records import Accepted, NewTask, NotAccepted
    from siafu.store.tasks import TaskStore

    Read: TypeAlias = "LineError | Line"

AT_ONCE = 100  # lines
SHOWN = 5  # problems told one by one

app = typer.Typer(
    help="Hand work over to workers (siafu worker). What is accepted is on disk, and ends exactly once.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu submit support requests.jsonl    then, here or elsewhere:
  siafu worker --until-empty
  siafu tasks list
""",
)


@app.callback()
def group() -> None:
    pass


class Line(NamedTuple):
    """A line that can be used. key: its id. needs: ids of lines that have to succeed first."""

    number: int
    key: str
    task: NewTask
    needs: tuple[str, ...]


class Taken(msgspec.Struct):
    """What came of a submission. tasks: in the order of the lines. waited: for room. full: why it ended before the last
    line; empty = it did not.
    """

    accepted: int = 0
    there: int = 0
    waited: bool = False
    full: str = ""
    tasks: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []

    def add(self, line: Line, answer: Accepted | NotAccepted) -> None:
        from siafu.store.task_records import NotAccepted

        if isinstance(answer, NotAccepted):
            why = {
                "key_reused": f"the id {preview(line.key, 60)!r} stands for another request of this run, task "
                f"{answer.id}; give it another id, or the run another name (--run)",
                "need_unknown": f"it needs the task {answer.id}, which is not there, or another tenant's",
                "need_failed": _need_failed(answer.id),
            }
            return self.refuse(line.number, answer.code, why[answer.code])
        self.accepted += answer.fresh
        self.there += not answer.fresh
        return self.tasks.append({"line": line.number, "key": line.key, "id": answer.id, "new": answer.fresh})

    def refuse(self, number: int, code: str, why: str) -> None:
        self.refused.append({"line": number, "code": code, "message": f"line {number}: {why}"})


@app.command(
    "support",
    epilog="""\b
Examples:
  siafu submit support requests.jsonl
  siafu submit support requests.jsonl --run monday --priority 1
  tail -n 3 new.jsonl | siafu submit support - --json
  siafu submit support later.jsonl --needs t_3f
\b
A line is one request, as siafu support run takes it. Its id names the task
within the run: a line that was submitted before is not added again, so after
an interruption the same command goes on. Workers need no restart. While
too many tasks are open (tasks.backlog) it waits for room. What is done for a
task is traced under TRACEPARENT, when that is set.
A line with "needs": ["r1", "r2"] begins once these lines of the same run have
succeeded; they stand above it, or were submitted before. If one of them ends
otherwise, it is cancelled.
Exit code: 0 all are accepted, 1 some lines could not be used or there was no
room (--no-wait), 2 wrong use.
""",
)
def support(
    source: Path = Source,
    run: str = typer.Option("support", "--run", help="A name for these tasks; ids are unique within it."),
    priority: int = typer.Option(2, "--priority", min=1, max=3, help="1 goes first, 3 last."),
    tenant: str = typer.Option("", "--tenant", help="Tenants take turns, however much each has submitted."),
    deadline: str | None = typer.Option(
        None, "--deadline", metavar="DURATION", help="What is not done by then expires: 90s, 30m, 2h."
    ),
    needs: list[str] = typer.Option([], "--needs", metavar="ID", help="A task that all of these need; repeat it."),
    wait: bool = typer.Option(True, "--wait/--no-wait", help="Wait for room while too many tasks are open, or end."),
    strict: bool = Strict,
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Submit every request of FILE to the support swarm."""
    from siafu.apps.filerun.check import of_each_kind
    from siafu.apps.filerun.place import opened
    from siafu.cli.filerun import parse_duration
    from siafu.config.settings import load
    from siafu.errors import ConfigError, InputError

    if not run.strip() or len(run) > 100 or any(letter < " " for letter in run):
        raise ConfigError("--run is a name of 1 to 100 characters, in one line")
    settings = load(config=config)
    seconds = None if deadline is None else parse_duration(deadline)

    def lines(file: BinaryIO) -> Iterator[Read]:
        file.seek(0)
        return _read(file, run=run, tenant=tenant, priority=priority, deadline=seconds)

    with opened(source) as file:
        if strict and (bad := asyncio.run(_problems(settings, lines(file), needs))):
            raise InputError(
                f"{counted(len(bad), 'line')} cannot be used, and nothing was submitted: {'; '.join(bad[:SHOWN])}"
            )
        taken = asyncio.run(_submit(settings, lines(file), needs, wait=wait))
    if json:
        print_lines([{"run": run, **msgspec.structs.asdict(taken)}])
    else:
        there = f"; {taken.there:,} were there already" if taken.there else ""
        typer.echo(f"{counted(taken.accepted, 'task')} accepted in the run {printable(run)}{there}")
        if taken.accepted or taken.there:
            typer.echo("siafu: to have them done: siafu worker; to see them: siafu tasks list", err=True)
    told = of_each_kind(str(problem["message"]) for problem in taken.refused[:SHOWN])
    for problem in told:
        typer.echo(f"siafu: {printable(problem)}", err=True)
    if more := len(taken.refused) - len(told):
        typer.echo(
            f"siafu: and {counted(more, 'more line')} that cannot be used: {len(taken.refused):,} in all", err=True
        )
    if taken.full:
        typer.echo(f"siafu: {taken.full}", err=True)
    raise typer.Exit(1 if taken.refused or taken.full else 0)


def _read(file: BinaryIO, **terms: Any) -> Iterator[Read]:
    from siafu.apps.support.requests import new_task, parse_needs, parse_request
    from siafu.border.jsonl import LineError, read_jsonl
    from siafu.errors import InputError

    for line in read_jsonl(file):
        if line.error is not None:
            yield line.error
            continue
        try:
            request = parse_request(line.value)
            needs = parse_needs(line.value)
        except InputError as error:
            yield LineError(line.number, error.code, f"line {line.number}: {error.message}")
        else:
            yield Line(line.number, request.id, new_task(request, **terms), needs)


async def _submit(settings: Settings, lines: Iterator[Read], needs: Sequence[str], *, wait: bool) -> Taken:
    """needs: tasks, or how their ids begin, that all need."""
    from siafu.config.tasks import task_store
    from siafu.errors import BacklogFull
    from siafu.store.task_desk import TaskDesk

    taken = Taken()
    async with task_store(settings, notice=_say) as store:
        desk = TaskDesk(store.together.database)
        common = [(await desk.one(begin)).id for begin in needs]
        for part in _parts(lines, min(AT_ONCE, max(1, settings.tasks.backlog // 10))):
            ready = await _resolved(desk, part, common, taken)
            try:
                answers = await _accepted(store, [line.task for line in ready], taken, wait=wait)
            except BacklogFull as error:
                taken.full = error.message
                break
            for line, answer in zip(ready, answers, strict=True):
                taken.add(line, answer)
    taken.refused.sort(key=lambda each: int(each["line"]))
    return taken


async def _problems(settings: Settings, lines: Iterator[Read], needs: Sequence[str]) -> list[str]:
    """Why lines could not be used, if they were submitted now; nothing is."""
    from siafu.config.tasks import task_desk
    from siafu.store.task_records import body_print, task_key

    found: list[str] = []
    seen: dict[str, str] = {}  # what stands in the file above, as it would be compared
    async with task_desk(settings) as desk:
        common = [(await desk.one(begin)).id for begin in needs]
        for part in _parts(lines, AT_ONCE):
            good = [line for line in part if isinstance(line, Line)]
            found += [line.message for line in part if not isinstance(line, Line)]
            tenant = good[0].task.tenant if good else ""
            wanted = {task_key(line.task.run, need) for line in good for need in line.needs}
            known = await desk.known(tenant, sorted(wanted))
            prints = await desk.prints(tenant, [line.task.once or "" for line in good])
            failed = await desk.failed_of({*common, *known.values()})
            for line in good:
                keys, once = [task_key(line.task.run, need) for need in line.needs], line.task.once or ""
                if any(key not in known and key not in seen for key in keys):
                    found.append(f"line {line.number}: it needs a line that was not submitted in this run before it")
                    continue
                ids = (*common, *(known.get(key, key) for key in keys))
                if once not in prints and (bad := next((id for id in ids if id in failed), None)):
                    found.append(f"line {line.number}: {_need_failed(bad)}")
                mine = body_print(msgspec.structs.replace(line.task, needs=ids))
                if mine != prints.get(once, mine) or mine != seen.setdefault(once, mine):
                    found.append(f"line {line.number}: the id {preview(line.key, 60)!r} stands for another request")
    return found


def _need_failed(id: str) -> str:
    return f"it needs the task {id}, which did not succeed: siafu tasks retry {id}"


def _parts(lines: Iterator[Read], most: int) -> Iterator[list[Read]]:
    """At most `most` lines, none of which needs another one of its part."""
    part: list[Read] = []
    keys: set[str] = set()
    for line in lines:
        if len(part) == most or not keys.isdisjoint(getattr(line, "needs", ())):
            yield part
            part, keys = [], set()
        part.append(line)
        if isinstance(line, Line):
            keys.add(line.key)
    if part:
        yield part


async def _resolved(desk: TaskDesk, part: Sequence[Read], common: Sequence[str], taken: Taken) -> list[Line]:
    """The lines that can be submitted, with the tasks that they need; the others are refused."""
    from siafu.store.task_records import task_key

    good = [line for line in part if isinstance(line, Line)]
    for each in part:
        if not isinstance(each, Line):
            taken.refused.append({"line": each.line, "code": each.code, "message": each.message})
    wanted = sorted({task_key(line.task.run, need) for line in good for need in line.needs})
    trace = os.environ.get("TRACEPARENT", "")
    known = await desk.known(good[0].task.tenant, wanted) if wanted else {}
    found = []
    for line in good:
        missing = next((need for need in line.needs if task_key(line.task.run, need) not in known), None)
        if missing is not None:
            why = f"it needs the line {preview(missing, 60)!r}, which was not submitted in this run before it"
            taken.refuse(line.number, "need_unknown", why)
            continue
        needs = (*common, *(known[task_key(line.task.run, need)] for need in line.needs))
        found.append(line._replace(task=msgspec.structs.replace(line.task, needs=needs, trace=trace)))
    return found


async def _accepted(
    store: TaskStore, tasks: list[NewTask], taken: Taken, *, wait: bool
) -> list[Accepted | NotAccepted]:
    """What the store says, once there is room. Raises: BacklogFull when it is not to be waited for."""
    from siafu.errors import BacklogFull

    while True:
        try:
            return await store.accept(tasks)
        except BacklogFull as error:
            if not wait:
                raise
            if not taken.waited:
                _say(f"{error.message}; waiting (Ctrl-C is safe)")
            taken.waited = True
            await asyncio.sleep(error.retry_after)


def _say(notice: str) -> None:
    typer.echo(f"siafu: {notice}", err=True)
