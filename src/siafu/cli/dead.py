"""`siafu dead`: tasks that were given up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from siafu.cli.showing import AsJson, Config, print_lines
from siafu.cli.tasks import Id, Ids, every, record, show_retried, show_table, with_desk
from siafu.cli.tasks import show as show_task
from siafu.errors import InputError

if TYPE_CHECKING:
    from siafu.store.task_desk import TaskDesk
    from siafu.store.task_records import Task

app = typer.Typer(
    help="Tasks that were given up: three times a worker died of them, or they failed with an error that may pass.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu dead list
  siafu dead show t_3f
  siafu dead retry t_3f
  siafu dead retry --all
""",
)


@app.command(
    "list",
    epilog="""\b
Examples:
  siafu dead list
  siafu dead list --json
""",
)
def list_(config: Path | None = Config, json: bool = AsJson) -> None:
    """List dead tasks and why they died, the oldest first."""
    found = with_desk(config, _dead)
    if json:
        return print_lines(map(record, found))
    return show_table(found, nothing="no task is dead")


@app.command(
    "show",
    epilog="""\b
Examples:
  siafu dead show t_3f
  siafu dead show t_3f --json
""",
)
def show(id: str = Id, config: Path | None = Config, json: bool = AsJson) -> None:
    """Show a task with its request and its last error."""
    show_task(id, config, json)


@app.command(
    "retry",
    epilog="""\b
Examples:
  siafu dead retry t_3f
  siafu dead retry --all
\b
Exit code: 0, or 1 when one that was named is not dead.
""",
)
def retry(
    ids: list[str] | None = Ids,
    all_: bool = typer.Option(False, "--all", help="All dead tasks."),
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Give dead tasks three more deliveries.

    They go on from their journals.
    """
    if bool(ids) == all_:
        raise InputError("say which tasks: ids, or --all; see: siafu dead list")

    async def choose(desk: TaskDesk) -> list[Task]:
        return [await desk.one(id) for id in ids] if ids else await _dead(desk)

    show_retried(config, choose, ("dead_letter",), named=bool(ids), as_json=json)


async def _dead(desk: TaskDesk) -> list[Task]:
    from siafu.store.task_desk import Which

    return await every(desk, Which(state="dead_letter"))
