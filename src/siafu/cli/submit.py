"""`siafu submit`: hand work over to workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

import msgspec
import typer

from siafu.border.text import preview, printable
from siafu.cli.options import Source, Strict
from siafu.cli.showing import AsJson, Config, print_json

if TYPE_CHECKING:
    from siafu.border.jsonl import LineError
    from siafu.config.settings import Settings
    from siafu.store.task_records import Accepted, NewTask, NotAccepted
    from siafu.store.tasks import TaskStore

    Read: TypeAlias = LineError | tuple[int, str, NewTask]  # number, id

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

    def add(self, number: int, key: str, answer: Accepted | NotAccepted) -> None:
        from siafu.store.task_records import NotAccepted

        if isinstance(answer, NotAccepted):
            why = (
                f"line {number}: the id {preview(key, 60)!r} stands for another request of this run, task {answer.id}; "
            )
            why += "give it another id, or the run another name (--run)"
            return self.refused.append({"line": number, "code": answer.code, "message": why})
        self.accepted += answer.fresh
        self.there += not answer.fresh
        return self.tasks.append({"line": number, "key": key, "id": answer.id, "new": answer.fresh})


@app.command(
    "support",
    epilog="""\b
Examples:
  siafu submit support requests.jsonl
  siafu submit support requests.jsonl --run monday --priority 1
  tail -n 3 new.jsonl | siafu submit support - --json
\b
A line is one request, as siafu support run takes it. Its id names the task
within the run: a line that was submitted before is not added again, so after
an interruption the same command goes on. Workers need no restart. While
too many tasks are open (tasks.backlog) it waits for room.
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
    wait: bool = typer.Option(True, "--wait/--no-wait", help="Wait for room while too many tasks are open, or end."),
    strict: bool = Strict,
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Submit every request of FILE to the support swarm."""
    from siafu.apps.filerun.place import opened
    from siafu.border.jsonl import LineError
    from siafu.cli.filerun import parse_duration
    from siafu.config.settings import load
    from siafu.errors import ConfigError, InputError

    if not run.strip() or len(run) > 100:
        raise ConfigError("--run is a name of 1 to 100 characters")
    settings = load(config=config)
    seconds = None if deadline is None else parse_duration(deadline)

    def lines(file: BinaryIO) -> Iterator[Read]:
        file.seek(0)
        return _read(file, run=run, tenant=tenant, priority=priority, deadline=seconds)

    with opened(source) as file:
        if strict and (bad := [each.message for each in lines(file) if isinstance(each, LineError)]):
            raise InputError(f"{len(bad):,} lines cannot be used, and nothing was submitted: {'; '.join(bad[:SHOWN])}")
        taken = asyncio.run(_submit(settings, lines(file), wait=wait))
    if json:
        print_json({"run": run, **msgspec.structs.asdict(taken)})
    else:
        there = f"; {taken.there:,} were there already" if taken.there else ""
        typer.echo(f"{taken.accepted:,} tasks accepted in the run {printable(run)}{there}")
        typer.echo("siafu: to have them done: siafu worker; to see them: siafu tasks list", err=True)
    for problem in taken.refused[:SHOWN]:
        typer.echo(f"siafu: {printable(problem['message'])}", err=True)
    if len(taken.refused) > SHOWN:
        typer.echo(f"siafu: and {len(taken.refused) - SHOWN:,} more lines that cannot be used", err=True)
    if taken.full:
        typer.echo(f"siafu: {taken.full}", err=True)
    raise typer.Exit(1 if taken.refused or taken.full else 0)


def _read(file: BinaryIO, **terms: Any) -> Iterator[Read]:
    from siafu.apps.support.requests import new_task, parse_request
    from siafu.border.jsonl import LineError, read_jsonl
    from siafu.errors import InputError

    for line in read_jsonl(file):
        if line.error is not None:
            yield line.error
            continue
        try:
            request = parse_request(line.value)
        except InputError as error:
            yield LineError(line.number, error.code, f"line {line.number}: {error.message}")
        else:
            yield line.number, request.id, new_task(request, **terms)


async def _submit(settings: Settings, lines: Iterator[Read], *, wait: bool) -> Taken:
    from siafu.border.jsonl import LineError
    from siafu.config.tasks import task_store
    from siafu.errors import BacklogFull

    taken = Taken()
    async with task_store(settings) as store:
        while part := list(islice(lines, min(AT_ONCE, max(1, settings.tasks.backlog // 10)))):
            good = [task for _, _, task in (each for each in part if not isinstance(each, LineError))]
            try:
                answers = iter(await _accepted(store, good, taken, wait=wait))
            except BacklogFull as error:
                taken.full = error.message
                return taken
            for each in part:
                if isinstance(each, LineError):
                    taken.refused.append({"line": each.line, "code": each.code, "message": each.message})
                else:
                    taken.add(each[0], each[1], next(answers))
    return taken


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
                typer.echo(f"siafu: {error.message}; waiting (Ctrl-C is safe)", err=True)
            taken.waited = True
            await asyncio.sleep(error.retry_after)
