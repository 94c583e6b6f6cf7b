"""`siafu approvals`: what waits for a person's decision, in every database that asks for one."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from siafu.border.text import printable
from siafu.cli.showing import (
    AsJson,
    Config,
    arguments_text,
    print_json,
    print_record,
    print_table,
    the_one,
    time_text,
)
from siafu.errors import InputError

if TYPE_CHECKING:
    from siafu.store.approval import Approval, ApprovalDesk

app = typer.Typer(
    help="What agents may only do once a person has said yes: refunds of the shop, and tools under a contract.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu approvals list                 what waits
  siafu approvals show 5f1c            exactly what would be done
  siafu approvals approve 5f1c --note "called the customer"
\b
A decision binds the exact arguments, holds once and not for ever, and is
never made by who asked.
""",
)

Shop = typer.Option(
    None,
    "--database",
    envvar="SIAFU_SHOP_DATABASE_URL",
    help="The example shop's database. Default: shop.db in SIAFU_HOME or ./.siafu, if there is one",
    show_default=False,
)
As = typer.Option(None, "--as", "--by", metavar="NAME", help="Who decides. Default: the user of this terminal.")
Note = typer.Option("", "--note", help="Why, for those who read it later.")
Id = typer.Argument(..., metavar="ID", help="The approval, or the beginning of its id.")


class Shown(StrEnum):
    pending = "pending"
    approved = "approved"
    denied = "denied"
    expired = "expired"
    used = "used"
    all = "all"


@app.command(
    "list",
    epilog="""\b
Examples:
  siafu approvals list
  siafu approvals list --state all --json
""",
)
def list_(
    state: Shown = typer.Option(Shown.pending, help="Only those of this state."),
    config: Path | None = Config,
    database: str | None = Shop,
    as_json: bool = AsJson,
) -> None:
    """List what waits for a decision, the oldest first."""
    wanted = None if state is Shown.all else state.value
    found = asyncio.run(_all(config, database))
    shown = [(desk, each) for desk, each in found if wanted in (None, each.state)]
    if as_json:
        return print_json([_record(desk, each) for desk, each in shown])
    rows = [
        (
            each.id[:11],
            desk,
            each.tool,
            each.requester,
            each.state,
            time_text(each.expires_at),
            arguments_text(each.arguments),
        )
        for desk, each in shown
    ]
    columns = ("id", "where", "tool", "asked by", "state", "until", "arguments")
    return print_table(
        columns, rows, nothing="nothing waits for a decision" if wanted == "pending" else "there is none"
    )


@app.command(
    "show",
    epilog="""\b
Examples:
  siafu approvals show 5f1c
  siafu approvals show 5f1c --json
""",
)
def show(
    approval_id: str = Id, config: Path | None = Config, database: str | None = Shop, as_json: bool = AsJson
) -> None:
    """Show exactly what would be done.

    The arguments stand as they are, without a model's words about them.
    """
    desk, approval = _one(asyncio.run(_all(config, database)), approval_id)
    if as_json:
        return print_json([_record(desk, approval)])
    return print_record(_record(desk, approval))


@app.command(
    "approve",
    epilog="""\b
Examples:
  siafu approvals approve 5f1c
  siafu approvals approve 5f1c --as lee --note "called the customer"
""",
)
def approve(
    approval_id: str = Id,
    by: str | None = As,
    note: str = Note,
    config: Path | None = Config,
    database: str | None = Shop,
    as_json: bool = AsJson,
) -> None:
    """Let it happen, once, with exactly these arguments."""
    _decide(approval_id, True, by, note, (config, database), as_json)


@app.command(
    "deny",
    epilog="""\b
Examples:
  siafu approvals deny 5f1c --note "outside the 14 days"
  siafu approvals deny 5f1c --as lee --json
""",
)
def deny(
    approval_id: str = Id,
    by: str | None = As,
    note: str = Note,
    config: Path | None = Config,
    database: str | None = Shop,
    as_json: bool = AsJson,
) -> None:
    """Do not let it happen."""
    _decide(approval_id, False, by, note, (config, database), as_json)


def person(by: str | None) -> str:
    """Who decides: `by`, else the user of this terminal. Raises: InputError when there is none, or it is an agent."""
    from siafu.store.effect_people import checked_person

    try:
        return checked_person(getpass.getuser() if by is None else by)
    except (OSError, KeyError):
        raise InputError("this user has no name; say who decides with --as NAME") from None


def _decide(
    approval_id: str, yes: bool, by: str | None, note: str, where: tuple[Path | None, str | None], as_json: bool
) -> None:
    async def decide() -> tuple[str, Approval]:
        async with _desks(*where) as desks:
            desk, approval = _one(await _listed(desks), approval_id)
            return desk, await desks[desk].decide(approval.id, approve=yes, by=who, note=note)

    who = person(by)
    desk, decided = asyncio.run(decide())
    if as_json:
        return print_json([_record(desk, decided)])
    typer.echo(
        f"{decided.state} by {printable(decided.decided_by or '')}: {decided.tool} {printable(decided.arguments)}"
    )
    if yes:
        how = (
            f"until {time_text(decided.expires_at)} a running shop does it by itself, siafu shop settle does it "
            "now; then the command that asked, given again, tells the customer"
            if desk == "shop"
            else f"run the same command again, and it goes on, until {time_text(decided.expires_at)}"
        )
        typer.echo(f"siafu: {how}", err=True)
    return None


@contextlib.asynccontextmanager
async def _desks(config: Path | None, database: str | None) -> AsyncIterator[Mapping[str, ApprovalDesk]]:
    from siafu.config.desks import approval_desks
    from siafu.config.settings import load

    async with approval_desks(load(config=config), shop=database) as desks:
        yield desks


async def _all(config: Path | None, database: str | None) -> list[tuple[str, Approval]]:
    async with _desks(config, database) as desks:
        return await _listed(desks)


async def _listed(desks: Mapping[str, ApprovalDesk]) -> list[tuple[str, Approval]]:
    found = [(name, each) for name, desk in desks.items() for each in await desk.approvals()]
    return sorted(found, key=lambda each: each[1].created_at)


def _one(found: list[tuple[str, Approval]], wanted: str) -> tuple[str, Approval]:
    return the_one(found, wanted, "approval", key=lambda each: each[1].id, see="siafu approvals list")


def _record(desk: str, approval: Approval) -> dict[str, Any]:
    return {"where": desk, **msgspec.structs.asdict(approval)}
