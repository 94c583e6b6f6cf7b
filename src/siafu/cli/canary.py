"""`siafu canary`: a new upstream or model for a growing share of users, beside the old one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from siafu.cli.showing import AsJson, Config, print_json, print_table, time_text
from siafu.errors import InputError

if TYPE_CHECKING:
    from siafu.store.canaries import Canaries
    from siafu.store.canary_records import Canary, Move, Moved, Numbers, Seen

app = typer.Typer(
    help="Let a growing share of users have a new upstream or model first, beside the old one; it goes on by itself "
    "while it is as good, and goes back when it is not. Whatever runs follows within a second or two.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu canary start --from legacy --to new --stages 5,25,50,100
  siafu canary status
  siafu canary promote              to the next stage at once, untested
  siafu canary rollback --reason "wrong tone"
  siafu canary retire               after the last stage: drop the old one
""",
)
MOST = 100  # moves that status shows
Reason = typer.Option("", "--reason", help="Why; it stands in the history.")


@app.command(
    epilog="""\b
Examples:
  siafu canary start --from legacy --to new
  siafu canary start --from legacy --to new --stages 5,25,50,100 \\
      --window 24h --min-samples 1000
  siafu canary start --from gpt-4.1 --to gpt-4.1-mini --dearer 1.0
\b
Both are upstreams of siafu.toml, or both models (MODEL or MODEL@UPSTREAM).
At the end of each window there is one test: failed calls, p95, cost a task.
A window without enough calls goes on until it has them. See docs/canary.md.
"""
)
def start(
    old: str = typer.Option(..., "--from", metavar="OLD", help="An upstream, or a model."),
    new: str = typer.Option(..., "--to", metavar="NEW", help="What takes its place."),
    stages: str = typer.Option("5,25,50,100", help="Percent of the users, rising to 100."),
    window: str = typer.Option("24h", help="After which a stage is tested: 30m, 24h, 7d."),
    min_samples: int | None = typer.Option(
        None, min=1, help="Calls of each side that a test needs. Default: twice the least it can work with"
    ),
    worse: float = typer.Option(0.02, min=0.001, max=0.5, help="Allowed: this share more failed calls."),
    slower: float = typer.Option(1.25, min=1, max=100, help="Allowed: the old side's p95 times this."),
    dearer: float = typer.Option(1.25, min=0.01, max=1000, help="Allowed: the old side's cost a task times this."),
    stop_failed: float = typer.Option(0.25, min=0.01, max=0.99, help="Back at once: this share of failed calls."),
    stop_slower: float | None = typer.Option(None, min=1, help="Back at once: p95 times this. Default: 2 or more"),
    stop_dearer: float | None = typer.Option(None, min=0.01, help="Back at once: cost times this. Default: 2 or more"),
    config: Path | None = Config,
    as_json: bool = AsJson,
) -> None:
    """Start a canary at its first stage."""
    from siafu.cli.filerun import parse_duration
    from siafu.config.canary import checked_sides
    from siafu.config.settings import load
    from siafu.gateway.verdict import enough
    from siafu.store.canary_records import Bounds, Plan

    settings = load(config=config)
    sides = checked_sides(settings, old, new)
    bounds = Bounds(
        worse=worse,
        slower=slower,
        dearer=dearer,
        stop_failed=stop_failed,
        stop_slower=_rail("slower", stop_slower, slower),
        stop_dearer=_rail("dearer", stop_dearer, dearer),
    )
    least = enough(bounds)
    if min_samples is not None and min_samples < least:
        typer.echo(
            f"siafu: {least:,} calls of each side are asked for: {min_samples:,} cannot show that at most {worse:.1%} "
            "more of them fail (--worse)",
            err=True,
        )
    plan = Plan(
        old=sides[0],
        new=sides[1],
        salt=secrets.token_hex(8),
        stages=_stages(stages),
        window_seconds=parse_duration(window),
        min_samples=max(min_samples or 2 * least, least),
        bounds=bounds,
    )

    async def begin(canaries: Canaries) -> None:
        await canaries.start(plan)

    _act(begin, config, as_json, make=True)


@app.command(
    epilog="""\b
Examples:
  siafu canary status
  siafu canary status --json
\b
Also makes the move that is due, as every running siafu does.
Exit code: 1 when the last canary was rolled back.
"""
)
def status(config: Path | None = Config, json: bool = AsJson) -> None:
    """Show where the canary stands, and both sides' numbers."""
    if _act(None, config, json) == "rolled_back":
        raise typer.Exit(1)


@app.command(
    epilog="""\b
Examples:
  siafu canary promote --reason "checked by hand"
"""
)
def promote(reason: str = Reason, config: Path | None = Config, json: bool = AsJson) -> None:
    """Go to the next stage at once, untested. After the last one the new side has won."""
    from siafu.gateway.verdict import onwards

    _act(_moving(("running",), lambda canary: onwards(canary, _by_hand(reason)), "promoted"), config, json)


@app.command(
    epilog="""\b
Examples:
  siafu canary rollback --reason "answers in the wrong language"
"""
)
def rollback(reason: str = Reason, config: Path | None = Config, json: bool = AsJson) -> None:
    """Give everybody the old side again. Also after a promotion, or when the old one was retired."""
    _act(
        _moving(("running", "promoted", "retired"), lambda _: _end("rolled_back", reason), "rolled back"), config, json
    )


@app.command(
    epilog="""\b
Examples:
  siafu canary retire
"""
)
def retire(reason: str = Reason, config: Path | None = Config, json: bool = AsJson) -> None:
    """Call the old side no more. Once the new one is promoted; then take the old one out of siafu.toml."""
    _act(_moving(("promoted",), lambda _: _end("retired", reason), "retired"), config, json)


def _stages(text: str) -> tuple[int, ...]:
    parts = [part.strip().removesuffix("%") for part in text.split(",")]
    found = tuple(int(part) for part in parts if part.isascii() and part.isdigit())
    if len(found) < max(2, len(parts)) or found != tuple(sorted(set(found))) or found[0] < 1 or found[-1] != 100:
        raise InputError(
            "--stages are rising whole numbers of percent, at least two of them and the last one 100: 5,25,50,100"
        )
    return found


def _rail(name: str, given: float | None, allowed: float) -> float:
    if given is not None and given < allowed:
        raise InputError(f"--stop-{name} is below what --{name} allows ({allowed:g})")
    return max(2.0, allowed) if given is None else given


def _by_hand(reason: str) -> str:
    return f"by hand: {reason}" if reason else "by hand"


def _end(state: Any, reason: str) -> Move:
    from siafu.store.canary_records import Move

    return Move(state=state, reason=_by_hand(reason))


def _moving(
    states: tuple[str, ...], move: Callable[[Canary], Move], what: str
) -> Callable[[Canaries], Awaitable[None]]:
    """Moves the last canary; it must be in one of `states`. Somebody else's move in between counts as one more look."""

    async def act(canaries: Canaries) -> None:
        while True:
            last = (await canaries.look()).last
            if last is None:
                raise _none()
            if last.state not in states:
                raise InputError(
                    f"a canary that is {last.state.replace('_', ' ')} cannot be {what}: siafu canary status"
                )
            if await canaries.move(last, move(last)) is not None:
                return

    return act


def _act(
    work: Callable[[Canaries], Awaitable[None]] | None, config: Path | None, as_json: bool, *, make: bool = False
) -> str | None:
    """Do `work`, then show how all stands; the state, None without a canary. make: the database, if there is none."""
    from siafu.config.canary import FILE, canaries, place, settled
    from siafu.config.settings import load

    settings = load(config=config)
    url = settings.database(FILE) if make else place(settings)

    async def act() -> tuple[Canary, Seen, list[Moved]] | None:
        if url is None:
            if work is not None:
                raise _none()
            return None
        async with canaries(url) as found:
            if work is not None:
                await work(found)
            seen = await settled(found, await found.look())
            return (seen.last, seen, await found.moves(seen.last.id)) if seen.last else None

    done = asyncio.run(act())
    if as_json:
        print_json({"state": "none"} if done is None else _json(*done))
    elif done is None:
        typer.echo("no canary: siafu canary start --help")
    else:
        _print(*done)
    return None if done is None else done[0].state


def _none() -> InputError:
    return InputError("there is no canary: siafu canary start --help")


def _print(canary: Canary, seen: Seen, moves: list[Moved]) -> None:
    from siafu.config.canary import standing

    typer.echo(standing(canary))
    if canary.state == "running":
        typer.echo(_window(canary, seen))
    if seen.old.tasks or seen.new.tasks:
        typer.echo("")
        print_table(("", "old", "new"), _rows(seen.old, seen.new), numbers=1)
        if canary.reference:
            typer.echo("everybody gets the new side: the old one's numbers are those of the stage before")
    typer.echo("")
    lines = [(time_text(each.at), f"{each.percent} %", each.state.replace("_", " "), each.reason) for each in moves]
    print_table(("since", "users", "state", "why"), lines[-MOST:])


def _window(canary: Canary, seen: Seen) -> str:
    from siafu.gateway.verdict import TRIES, waits_for

    plan = canary.plan
    ends = time_text(canary.began_at + plan.window_seconds)
    where = f"stage {canary.stage + 1} of {len(plan.stages)}, window {canary.tries + 1} of at most {TRIES}"
    if waits_for(canary, seen) == "samples":
        have = min(seen.old.calls, seen.new.calls)
        return f"{where}: extended since {ends}, as it needs {plan.min_samples:,} calls of each side and has {have:,}"
    return f"{where}: tested once, at {ends} or later, when each side has {plan.min_samples:,} calls"


def _rows(old: Numbers, new: Numbers) -> list[tuple[str, str, str]]:
    from siafu.border.money import show_usd
    from siafu.gateway.verdict import quantile

    def share(side: Numbers) -> str:
        return f"{100 * side.ok / side.calls:.2f} %" if side.calls else "-"

    def seconds(side: Numbers, q: float) -> str:
        found = quantile(side.slots, q)
        return "-" if found is None else f"{found:.2f} s"

    def cost(side: Numbers) -> str:
        return "-" if side.unpriced or not side.tasks else show_usd(side.usd_pico // side.tasks)

    return [
        ("calls", f"{old.calls:,}", f"{new.calls:,}"),
        ("succeeded", share(old), share(new)),
        *((f"p{round(100 * q)}", seconds(old, q), seconds(new, q)) for q in (0.5, 0.95, 0.99)),
        ("tasks", f"{old.tasks:,}", f"{new.tasks:,}"),
        ("USD a task", cost(old), cost(new)),
        ("refused by limits", f"{old.limited:,}", f"{new.limited:,}"),
    ]


def _json(canary: Canary, seen: Seen, moves: list[Moved]) -> dict[str, Any]:
    from siafu.config.canary import shown
    from siafu.gateway.verdict import waits_for

    plan = canary.plan
    running = canary.state == "running"
    return {
        "state": canary.state,
        "from": shown(plan.old),
        "to": shown(plan.new),
        "percent": canary.percent,
        "stages": plan.stages,
        "stage": canary.stage + 1,
        "window": {
            "number": canary.number,
            "tries": canary.tries,
            "began_at": time_text(canary.began_at),
            "ends_at": time_text(canary.began_at + plan.window_seconds) if running else None,
            "waits_for": waits_for(canary, seen) if running else "",
            "min_samples": plan.min_samples,
        },
        "bounds": plan.bounds,
        "old": _side_json(seen.old),
        "new": _side_json(seen.new),
        "reason": canary.reason,
        "history": [
            {"at": time_text(each.at), "percent": each.percent, "state": each.state, "reason": each.reason}
            for each in moves
        ],
    }


def _side_json(side: Numbers) -> dict[str, Any]:
    from siafu.border.money import json_usd
    from siafu.gateway.verdict import quantile

    priced = side.tasks and not side.unpriced
    return {
        "calls": side.calls,
        "succeeded": side.ok,
        "success": side.ok / side.calls if side.calls else None,
        **{f"p{round(100 * q)}_seconds": quantile(side.slots, q) for q in (0.5, 0.95, 0.99)},
        "tasks": side.tasks,
        "usd_per_task": json_usd(side.usd_pico // side.tasks) if priced else None,
        "refused_by_limits": side.limited,
    }
