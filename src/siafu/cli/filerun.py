"""What every command over files does at the front door: run, stop on a signal, say how it ended."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import typer

from siafu.apps.costs.estimate import estimate_path, kept
from siafu.apps.filerun.job import FileJob
from siafu.apps.filerun.place import STDIN, Place
from siafu.apps.filerun.prepare import FileOptions, Ready, ready
from siafu.apps.filerun.run import Outcome, nothing_left, run
from siafu.apps.filerun.status import spent, status
from siafu.border.money import PICO, json_usd, parse_usd, show_usd, to_usd
from siafu.border.text import counted, preview, printable
from siafu.cli.cost_tables import UNPRICED, cache_json, cache_text, estimate_json, print_comparison
from siafu.cli.progress import Progress, span
from siafu.config.assembly import House, Plan
from siafu.config.collector import relieve_collector
from siafu.errors import AccessRefused, ApprovalPending, ConfigError, Interrupted, Outage, OutcomeUnknown
from siafu.store.spending import Sums
from siafu.swarm.options import MapOptions

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LEAST_BUDGET = PICO // 100  # less is no help: one call may cost as much
KEPT_DAYS = 3_650  # the most days for which records are kept, or looked back at
_DURATION = re.compile(r"([0-9]{1,9})\s?([smhd]?)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
OpenHouse = Callable[[Progress], AbstractAsyncContextManager[House]]


def run_file(
    job: FileJob,
    where: Place,
    options: FileOptions,
    map_options: MapOptions,
    open_house: OpenHouse,
    *,
    budget_pico: int | None = None,
    drain: float = 0.0,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Run `job` over a file and end the command with its exit code.

    open_house: builds endpoint, store and tools, once the input is accepted. budget_pico: that it keeps. drain: seconds
    for what is in flight when the command is stopped. Results go to the files, the summary to stdout, progress and
    notes to stderr.

    Raises: Interrupted after SIGINT or SIGTERM, with the command that goes on; InputError, ConfigError, StoreError.
    """
    relieve_collector()
    with Progress(where.out.name, quiet=quiet) as progress, ready(job, where, options, progress) as prepared:
        work = partial(_work, prepared, map_options, open_house, progress)
        outcome = asyncio.run(_until_signal(work, progress, drain))
    cost = spent(where)
    typer.echo(_json(where, outcome, cost) if as_json else _text(where, outcome, cost))
    if outcome.session.stopped:
        budget = None
        if cost is not None and budget_pico is not None and outcome.session.budget == "run":
            budget = enough(outcome, cost, budget_pico)
        when = ", once it answers" if outcome.session.stopped == Outage.code else ""
        way = f"to go on{when}: {_again(sys.argv, budget=budget)}"
        typer.echo(f"siafu: {outcome.session.stop_message}; {way}", err=True)
    elif outcome.waiting:
        typer.echo(f"siafu: {_next(outcome.waits)}to go on: {_again(sys.argv)}", err=True)
    raise typer.Exit(outcome.exit_code)


def planned(
    where: Place, progress: Progress, budget_pico: int | None, per_item: str | None, *, allow_unpriced: bool
) -> Plan:
    """What a run over files needs beside the settings. per_item: the budget of an item, such as "0.05 USD".

    Raises: ConfigError when it is no amount.
    """
    return Plan(
        run=where.run,
        journal=where.journal,
        budget_pico=budget_pico,
        per_item_pico=None if per_item is None else parse_usd(per_item),
        allow_unpriced=allow_unpriced,
        observer=progress,
        notice=progress.note,
    )


def _next(waits: Mapping[str, int]) -> str:
    """What people can do about what waits, before the command is run again."""
    ways = {
        ApprovalPending.code: "to decide: siafu approvals list; then, ",
        OutcomeUnknown.code: "to see what is unknown: siafu effects list; then, ",
    }
    return "".join(way for code, way in ways.items() if code in waits)


async def _work(
    prepared: Ready, options: MapOptions, open_house: OpenHouse, progress: Progress, stop: asyncio.Event
) -> Outcome:
    if not prepared.plan.todo:
        return nothing_left(prepared, progress)
    async with open_house(progress) as house:
        if house.store is None:
            raise TypeError("a run over a file needs a store")
        outcome = await run(prepared, house.around, house.store, options, progress, stop)
        if in_vain(outcome):
            for text in await house.explain():
                progress.note(text)
        return outcome


def in_vain(outcome: Outcome) -> bool:
    """Whether nothing was answered, as it is when an address, a key or a model's name is wrong."""
    session = outcome.session
    stopped = session.stopped in (AccessRefused.code, Outage.code)
    return not session.calls and (stopped or (session.failed > 0 and not session.ok))


async def _until_signal(
    work: Callable[[asyncio.Event], Coroutine[Any, Any, Outcome]], progress: Progress, drain: float
) -> Outcome:
    """Await `work`. The first SIGINT or SIGTERM sets its event, so that it begins nothing more, and gives what is in
    flight `drain` seconds; their end, or a second signal, cancels it and waits for it; one more ends the process.
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    task = loop.create_task(work(stop))
    timer: asyncio.TimerHandle | None = None
    given_up = False

    def give_up() -> None:
        nonlocal given_up
        given_up = True
        progress.note("calls in flight are given up, all else is kept (once more to end at once)")
        task.cancel()

    def signalled() -> None:
        nonlocal timer
        if given_up:
            progress.restore()
            os._exit(Interrupted.exit_code)
        first = not stop.is_set()
        stop.set()
        if first and drain:
            flying = max(0, progress.counts.in_flight)
            progress.note(f"stopping; what is in flight ({flying:,}) has {drain:g} s to end (once more to give it up)")
            timer = loop.call_later(drain, give_up)
        else:
            give_up()

    for number in SIGNALS:
        loop.add_signal_handler(number, signalled)
    try:
        outcome = await task
        if outcome.session.stopped != Interrupted.code:
            return outcome
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    finally:
        if timer is not None:
            timer.cancel()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    done = f"{progress.counts.done:,} of {counted(progress.counts.plan.total, 'line')} done"
    raise Interrupted(f"interrupted; {done}, all is kept. To go on:\n  {_again(sys.argv)}")


def _again(argv: Sequence[str], *, budget: int | None = None) -> str:
    """The command that goes on where this one stopped: itself, without `--fresh`, and with `budget`, in pico-dollars;
    None = with its own.
    """
    name = Path(argv[0]).name
    program = [name if shutil.which(name) == argv[0] else argv[0]]  # a script on the PATH is known by its name
    if name == "__main__.py":
        program = [sys.executable, "-m", "siafu"]
    words = [word for word in argv[1:] if word != "--fresh"]
    command = shlex.join([*program, *(words if budget is None else _with_budget(words, budget))])
    return command + ("  (with the same input on stdin)" if str(STDIN) in argv else "")


def _with_budget(words: Sequence[str], budget: int) -> list[str]:
    """`words` with `budget` in place of the one that they name."""
    amount, changed, before = f"{to_usd(budget):f} USD", [], ""
    for word in words:
        inline = f"--budget={amount}" if word.startswith("--budget=") else word
        changed.append(amount if before == "--budget" else inline)
        before = word
    return changed


def enough(outcome: Outcome, spent: Sums, given: int) -> int:
    """A budget, in pico-dollars, with which a run that reached `given` goes on, and likely to its end: not less than
    what the next call needs, twice of what there was, and what all lines cost at the price of those that are done.
    """
    sofar = spent.usd_pico + spent.unknown_pico
    done = outcome.finished + outcome.waiting + outcome.failed
    for_all = sofar * outcome.total * 5 // (4 * done) if done else 0
    most = max(2 * given, 2 * sofar, sofar + outcome.session.needs_pico, for_all, 2 * LEAST_BUDGET)
    return -(-most // LEAST_BUDGET) * LEAST_BUDGET


def parse_duration(text: str, *, least: int = 1, days: int = 30) -> float:
    """`90`, `90s`, `30m`, `2h`, `1d` in seconds, from `least` seconds to `days` days. Raises: ConfigError."""
    match = _DURATION.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS[match[2] or "s"] if match else -1.0
    if not least <= seconds <= days * 86_400:
        told = f'{preview(text, 40)!r} is no duration from {least}s to {days}d; write it like "90s", "30m" or "2h"'
        raise ConfigError(told)
    return seconds


def _text(where: Place, outcome: Outcome, cost: Sums | None) -> str:
    session = outcome.session
    answered = outcome.finished + outcome.waiting
    lines = [f"{answered:,} of {counted(outcome.total, 'line')} answered in {printable(str(where.out))}"]
    waits = dict(outcome.waits)
    if asked := waits.pop(ApprovalPending.code, 0):
        lines.append(f"{asked:,} of these wait for a person's decision, and go on after it")
    if waits:
        why = ", ".join(f"{code}: {number:,}" for code, number in sorted(waits.items()))
        lines.append(
            f"{sum(waits.values()):,} of these could not be settled yet ({why}), and go on with the same command"
        )
    if outcome.failed:
        where_to = printable(str(where.errors or where.out))
        lines.append(f"{outcome.failed:,} failed, see {where_to}; --retry-failed runs requests again that failed")
    if outcome.left:
        lines.append(f"{outcome.left:,} left")
    if session.restored:
        lines.append(f"{session.restored:,} written from the journal, without a call")
    if session.in_flight_lost:
        most = session.in_flight_lost_pico
        cost_text = f"0 to {show_usd(most)}" if most else "not known"
        lost = counted(session.in_flight_lost, "call")
        lines.append(f"{lost} under way when the last process ended; cost: {cost_text}")
    if session.discarded:
        again = show_usd(session.billed_again_pico)
        anew = counted(session.discarded, "step")
        lines.append(f"{anew} done anew, by a decision, a prompt or an answer that is new since; had cost {again}")
    if cost is not None:
        lines.append(f"{describe(cost)}; {span(session.seconds)} this time")
        lines += [told] if (told := cache_text(cost)) else []
    return "\n".join(lines)


def show_status(job: FileJob, where: Place, *, as_json: bool) -> None:
    """Print how far the run is that writes `where.out`, and what it has cost. Raises: InputError, StoreError."""
    found = status(job, where)
    counts = {
        "finished": found.finished,
        "waiting": found.waiting,
        "failed": found.failed,
        "bad_lines": found.bad,
        "left": found.left,
    }
    expected = kept(estimate_path(where.folder.parent, where.run))
    if as_json:
        more: dict[str, Any] = {} if expected is None else {"estimate": estimate_json(expected)}
        failing = [{**msgspec.structs.asdict(each), "since": _utc(each.since)} for each in found.failing]
        more |= {"upstreams": found.upstreams, "failing": failing}
        typer.echo(encode({"run": where.run, **counts, **costs(found.spent), **more}))
        return
    for name, count in counts.items():
        typer.echo(f"{name.replace('_', ' '):<10} {'?' if count is None else f'{count:,}'}")
    for each in found.failing:
        calls = counted(each.calls, "call")
        told = f"{each.model} at {each.upstream} since {_utc(each.since)}, {calls} in a row ({each.code})"
        typer.echo(printable(f"{'failing':<10} {told}"))
    if found.spent is not None:
        typer.echo(f"{'spent':<10} {describe(found.spent)}")
        if told := cache_text(found.spent):
            typer.echo(told)
        for name, ended in found.upstreams.items() if len(found.upstreams) > 1 else ():
            typer.echo(printable(f"{'at':<10} {name}: {_ended(ended)}"))
        if expected is not None and found.work is not None:
            typer.echo("")
            print_comparison(expected, found.spent, usd_text(found.spent), found.work)


def _utc(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _ended(ended: Mapping[str, int]) -> str:
    """How attempts ended at one upstream, for people."""
    others = ", ".join(f"{count:,} x {code}" for code, count in ended.items() if code != "ok")
    answered = f"{ended.get('ok', 0):,} of {counted(sum(ended.values()), 'call')} answered"
    return f"{answered} ({others})" if others else answered


def describe(cost: Sums) -> str:
    """Calls, tokens and cost of all sessions, for people."""
    usd = usd_text(cost)
    if cost.unpriced:
        unknown = f"cost unknown for {counted(cost.unpriced, 'call')} ({UNPRICED})"
        usd = unknown + (f", else {usd}" if cost.usd_pico else "")
    return f"{counted(cost.calls, 'call')}, {cost.input_tokens:,} + {cost.output_tokens:,} tokens, {usd}"


def usd_text(cost: Sums) -> str:
    """The cost of what has a price; an interval when usage is not known."""
    return show_usd(cost.usd_pico) + (f" to {show_usd(cost.usd_pico + cost.unknown_pico)}" if cost.unknown else "")


def _json(where: Place, outcome: Outcome, cost: Sums | None) -> str:
    session = outcome.session
    return encode(
        {
            "run": where.run,
            "out": str(where.out),
            "errors": None if where.errors is None else str(where.errors),
            "total": outcome.total,
            "finished": outcome.finished,
            "waiting": outcome.waiting,
            "waits_for": outcome.waits,
            "failed": outcome.failed,
            "left": outcome.left,
            "restored": session.restored,
            "replayed": session.replayed,
            "discarded": session.discarded,
            "billed_again_usd": json_usd(session.billed_again_pico),
            "in_flight_lost": session.in_flight_lost,
            "stopped": session.stopped or None,
            "next_call_usd": json_usd(session.needs_pico) if session.budget else None,
            "seconds": round(session.seconds, 3),
            **costs(cost),
        }
    )


def costs(cost: Sums | None) -> dict[str, Any]:
    """The cost of all sessions for JSON. `usd_at_most`: calls of unknown usage taken at their reservation."""
    if cost is None:
        return {"calls": None, "tokens": None, "usd": None, "usd_at_most": None, "prompt_cache": None}
    known = cost.calls == 0 or cost.unpriced < cost.calls
    return {
        "calls": cost.calls,
        "tokens": {"input": cost.input_tokens, "cached": cost.cached_tokens, "output": cost.output_tokens},
        "usd": json_usd(cost.usd_pico) if known else None,
        "usd_at_most": json_usd(cost.usd_pico + cost.unknown_pico) if known and not cost.unpriced else None,
        "prompt_cache": cache_json(cost),
    }


def encode(value: Any) -> str:
    """One line of JSON for stdout."""
    return msgspec.json.encode(value).decode()
