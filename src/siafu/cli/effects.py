"""`siafu effects`: what agents' tools have done, what is unclear, and what stops a tool."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import typer

from siafu.border.text import preview, printable
from siafu.cli.approvals import As, Note, person
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
from siafu.errors import InputError, StoreError

if TYPE_CHECKING:
    from siafu.store.effect_people import EffectPeople
    from siafu.store.effect_records import Effect

T = TypeVar("T")
app = typer.Typer(
    help="Tools under the effect contract: what they did, what only a person can tell, what is switched off.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu effects list --state manual_review     what a person has to look into
  siafu effects resolve 5f1c --done            it did happen, I have looked
  siafu effects off shop.process_refund        stop a tool at once
  siafu effects tools                          what changed, what is off
""",
)

Tool = typer.Argument(None, metavar="SERVER.TOOL", help="The tool, such as shop.process_refund.")
All = typer.Option(False, "--all", help="Every tool.")
Tenant = typer.Option("", help="Only for this tenant. Default: for every one.")
Id = typer.Argument(..., metavar="ID", help="The effect, or the beginning of its id.")


class State(StrEnum):
    open = "open"
    pending_approval = "pending_approval"
    dispatching = "dispatching"
    unknown = "unknown"
    waiting = "waiting"
    succeeded = "succeeded"
    refused = "refused"
    denied = "denied"
    manual_review = "manual_review"


@app.command(
    "list",
    epilog="""\b
Examples:
  siafu effects list
  siafu effects list --state manual_review --json
\b
pending_approval  a rule has a person decide first: siafu approvals list
waiting           the tool itself waits for a person's decision, and is asked
                  again when its request is taken up again
dispatching       it is being called; (interrupted): the process ended in it,
                  and the next run, or `siafu effects resolve`, settles it
unknown           no clear answer; the next run looks it up or asks again
manual_review     only a person can tell: siafu effects resolve ID
refused, denied   nothing was done. open: claimed, nothing was sent
""",
)
def list_(
    state: State | None = typer.Option(None, metavar="STATE", help=f"Only those in one of: {', '.join(State)}."),
    limit: int = typer.Option(1000, min=1, max=1_000_000, help="At most so many, the newest."),
    config: Path | None = Config,
    as_json: bool = AsJson,
) -> None:
    """List effects, the oldest first."""
    _hear_desks(config)

    async def read(people: EffectPeople) -> tuple[list[Effect], set[str]]:
        return await people.effects(None if state is None else state.value, limit), {
            each.id for each in await people.approvals("expired")
        }

    found, expired = _with(config, read)
    if as_json:
        return print_json(found)
    rows = [
        (
            each.id[:8],
            each.tool,
            "pending_approval (expired)" if each.approval_id in expired else _state(each),
            each.customer,
            time_text(each.updated_at),
            arguments_text(each.arguments),
        )
        for each in found
    ]
    columns = ("id", "tool", "state", "for", "since", "arguments")
    return print_table(columns, rows, nothing="no effects yet" if state is None else f"no effect is {state.value}")


@app.command(
    "show",
    epilog="""\b
Examples:
  siafu effects show 5f1c
  siafu effects show 5f1c --json
""",
)
def show(effect_id: str = Id, config: Path | None = Config, as_json: bool = AsJson) -> None:
    """Show an effect and all that happened to it."""

    async def read(people: EffectPeople) -> tuple[Effect, list[Any]]:
        effect = await _one(people, effect_id)
        return effect, await people.history(effect.id)

    effect, history = _with(config, read)
    if as_json:
        return print_json([{**msgspec.structs.asdict(effect), "history": history}])
    print_record({**msgspec.structs.asdict(effect), "state": _state(effect)})
    rows = [(time_text(line.at), line.kind, str(line.epoch), line.actor, preview(line.data, 200)) for line in history]
    return print_table(("time", "what", "epoch", "by", "more"), rows)


@app.command(
    "resolve",
    epilog="""\b
Examples:
  siafu effects resolve 5f1c --done --note "in the bank's list as re_1"
  siafu effects resolve 5f1c --not-done
\b
--done: later calls get this as their answer. --not-done: it may be asked for
again. Look first at what the tool really did; siafu cannot.
""",
)
def resolve(
    effect_id: str = Id,
    done: bool = typer.Option(..., "--done/--not-done", help="Whether it has happened.", show_default=False),
    by: str | None = As,
    note: str = Note,
    config: Path | None = Config,
    as_json: bool = AsJson,
) -> None:
    """Say what became of an effect whose outcome is unknown."""
    who = person(by)
    text = "A person has made sure that this was done." + (f" {note}" if note else "")
    answer = msgspec.json.encode({"text": text}).decode()

    async def settle(people: EffectPeople) -> Effect:
        effect = await _one(people, effect_id)
        return await people.resolve(effect.id, done=done, by=who, result=answer, note=note)

    settled = _with(config, settle)
    if as_json:
        return print_json([settled])
    became = "done" if done else "not done, and may be asked for again"
    typer.echo(f"{settled.tool} {printable(settled.arguments)}: {became}")
    return None


@app.command(
    epilog="""\b
Examples:
  siafu effects off shop.process_refund --reason "the provider is down"
  siafu effects off --all
  siafu effects off bank.pay --anyway     no rule and no record here names it
"""
)
def off(
    tool: str | None = Tool,
    everything: bool = All,
    anyway: bool = typer.Option(False, "--anyway", help="Also a name that neither rules nor records know."),
    tenant: str = Tenant,
    reason: str = typer.Option("", help="Why, for those who read it later."),
    by: str | None = As,
    config: Path | None = Config,
    as_json: bool = AsJson,
) -> None:
    """Switch a tool off, everywhere and at once.

    Every process on this database sends nothing new through it from now on; what is under way is not called back.
    """
    _switch(_meant(tool, everything, config, anyway), tenant, False, reason, person(by), config, as_json)


@app.command(
    epilog="""\b
Examples:
  siafu effects on shop.process_refund
  siafu effects on --all            lifts `siafu effects off --all` only
"""
)
def on(
    tool: str | None = Tool,
    everything: bool = All,
    tenant: str = Tenant,
    reason: str = typer.Option("", help="Why, for those who read it later."),
    by: str | None = As,
    config: Path | None = Config,
    as_json: bool = AsJson,
) -> None:
    """Switch a tool on again, as it was switched off."""
    _switch(_meant(tool, everything, config), tenant, True, reason, person(by), config, as_json)


@app.command(
    epilog="""\b
Examples:
  siafu effects tools
  siafu effects tools --json          with the definitions, old and new
"""
)
def tools(config: Path | None = Config, as_json: bool = AsJson) -> None:
    """List the tools: what has changed, what is off."""

    async def read(people: EffectPeople) -> tuple[list[Any], list[Any]]:
        return await people.tools(), await people.switches()

    known, switches = _with(config, read)
    if as_json:
        return print_json([{"tools": known, "switches": switches}])
    rows = [
        (each.tool, "changed; not used until accepted" if each.offered else "accepted", each.person, time_text(each.at))
        for each in known
    ]
    print_table(("tool", "definition", "by", "since"), rows, nothing="no tool under a contract was used yet")
    off = [(each.tool or "every tool", each.tenant or "every", each.person, each.reason) for each in switches]
    if off:
        typer.echo()
        print_table(("switched off", "tenant", "by", "reason"), off)
    return None


@app.command(
    epilog="""\b
Examples:
  siafu effects accept cash.pay
  siafu effects accept cash.pay --as lee --yes
"""
)
def accept(
    tool: str = typer.Argument(..., metavar="SERVER.TOOL", help="A tool that has changed."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask."),
    by: str | None = As,
    config: Path | None = Config,
    as_json: bool = AsJson,
) -> None:
    """Let a tool whose definition has changed be used again.

    Shows the definition that was accepted and the one that the server offers now, and asks.
    """
    who = person(by)
    known = next((each for each in _with(config, lambda people: people.tools()) if each.tool == tool), None)
    if known is None or known.offered is None:
        raise InputError(f"{preview(tool, 100)} has no change to accept; see: siafu effects tools")
    typer.echo(f"accepted: {printable(known.definition)}\nnow:      {printable(known.offered)}", err=as_json)
    if not yes:
        typer.confirm("Use it as it is now?", abort=True, err=as_json)
    accepted = _with(config, lambda people: people.accept(tool, by=who, definition=known.offered))
    if as_json:
        print_json([accepted])


def _meant(tool: str | None, everything: bool, config: Path | None, anyway: bool = False) -> str:
    """The tool's name, "" for every one. Raises: InputError when neither a rule nor a record knows the name, so that
    nobody believes a tool to be off that is not.
    """
    from siafu.config.effects import tools_with_rules
    from siafu.config.settings import load

    async def recorded(people: EffectPeople) -> set[str]:
        return {each.tool for each in await people.tools()} | {each.tool for each in await people.switches()}

    if (tool is None) != everything:
        raise InputError("name a tool, or --all for every one")
    if tool is None or anyway:
        return tool or ""
    known = sorted((tools_with_rules(load(config=config)) | _with(config, recorded)) - {""})
    if tool not in known:
        near = get_close_matches(tool, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known) or 'none'}"
        raise InputError(f"no rule and no record here names {preview(tool, 100)!r}, so nothing was switched; {hint}")
    return tool


def _switch(tool: str, tenant: str, on: bool, reason: str, who: str, config: Path | None, as_json: bool) -> None:
    async def switch(people: EffectPeople) -> tuple[bool, list[Any]]:
        changed = await people.switch(tool, tenant, on=on, by=who, reason=reason)
        return changed, await people.switches()

    changed, off = _with(config, switch)
    if as_json:
        return print_json(off)
    state = "on" if on else "off"
    typer.echo(f"{printable(tool or 'every tool')} is {state}" + ("" if changed else f", as it was {state} before"))
    return None


async def _one(people: EffectPeople, wanted: str) -> Effect:
    found = await people.effects(limit=1_000_000)
    return the_one(found, wanted, "effect", key=lambda each: each.id, see="siafu effects list")


def _with(config: Path | None, work: Callable[[EffectPeople], Awaitable[T]]) -> T:
    from siafu.config.effects import effect_people
    from siafu.config.settings import load

    async def run() -> T:
        async with effect_people(load(config=config)) as people:
            return await work(people)

    return asyncio.run(run())


def _hear_desks(config: Path | None) -> None:
    """Opening the desks brings effects up to date that wait there; they are shown as they were when that fails."""
    from siafu.config.desks import approval_desks
    from siafu.config.settings import load

    async def hear() -> None:
        async with approval_desks(load(config=config), shop=os.environ.get("SIAFU_SHOP_DATABASE_URL")):
            pass

    try:
        asyncio.run(hear())
    except StoreError as error:
        typer.echo(f"siafu: what waits may be out of date: {error.message}", err=True)


def _state(effect: Effect) -> str:
    over = effect.lease_until is not None and effect.lease_until < time.time()
    return f"{effect.state} (interrupted)" if over else effect.state
