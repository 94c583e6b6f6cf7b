"""How `siafu cost` shows what it found: tables for people, values for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from siafu.border.money import json_usd, show_usd
from siafu.border.text import counted, printable
from siafu.cli.showing import print_table, time_text

if TYPE_CHECKING:
    from siafu.apps.costs.estimate import Estimate, Pace
    from siafu.apps.costs.report import CostReport
    from siafu.apps.costs.what_if import WhatIf
    from siafu.store.spending import Sums, Work

TASKS = 100
UNPRICED = "without a price, or open or cut off without max_tokens"  # why nobody can say what a call costs at most
_WHY = {"repeated": "asked again, as the answer was lost or the work changed"}


def print_report(found: CostReport, by: Sequence[str], expected: Estimate | None, work: Work | None) -> None:
    """The groups with their sum, what was waste, and what had been expected beside the `work` that was done."""
    total = found.total
    there = {"at most": total.unknown, "unpriced": total.unpriced, "saved": total.saved_pico}
    more = [name for name, value in there.items() if value]
    columns = [*by, "calls", "wasted", "fresh input", "cached", "%", "output", "USD", *more]
    rows = [[*(part or "-" for part in group.key), *_cells(group.sums, more)] for group in found.groups]
    if len(rows) > 1:
        rows.append(["total", *[""] * (len(by) - 1), *_cells(total, more)])
    print_table(columns, rows, numbers=len(by), nothing="no call in these journals")
    if found.waste:
        share = "" if not total.usd_pico else f", {100 * total.wasted_pico / total.usd_pico:.1f} % of the cost"
        typer.echo(f"\nwasted: {total.wasted:,} of {counted(total.calls, 'call')}, {_interval(_waste(total))}{share}")
        lines = [
            [*(part or "-" for part in each.key), f"{each.sums.calls:,}", _interval(_waste(each.sums))]
            for each in found.waste
        ]
        print_table(("what became of them", "code", "calls", "USD"), lines, numbers=2)
    if told := cache_text(total):
        typer.echo(f"\n{told}")
    if total.doubtful:
        typer.echo(f"\nof {total.doubtful:,} answers the counts of the prompt cache contradict each other")
    if total.unpriced:
        typer.echo(f"\nunpriced calls: {total.unpriced:,} ({UNPRICED}); they are in no amount")
    if expected is not None and work is not None:
        typer.echo("")
        print_comparison(expected, total, _interval(_all(total)), work)


def print_budgets(budgets: Mapping[str, tuple[int, int]]) -> None:
    """What is spent today of the budgets of keys, and those; nothing when there are none."""
    if budgets:
        typer.echo("\nbudgets of keys, today (UTC), all runs together")
        rows = [[id, show_usd(spent), show_usd(budget)] for id, (spent, budget) in budgets.items()]
        print_table(("key", "spent", "budget"), rows, numbers=1)


def budgets_json(budgets: Mapping[str, tuple[int, int]]) -> list[dict[str, Any]]:
    return [
        {"key": id, "spent_today_usd": json_usd(spent), "budget_day_usd": json_usd(budget)}
        for id, (spent, budget) in budgets.items()
    ]


def cache_text(sums: Sums) -> str:
    """What the prompt cache gave and saved, for people; empty when it was not in play."""
    if not sums.hits and not sums.saved_pico:
        return ""
    hit = f"prompt cache: {counted(sums.hits, 'call')} hit, {100 * sums.hit_ratio:.0f} % of the input"
    more = f"{show_usd(abs(sums.saved_pico))} {'saved' if sums.saved_pico >= 0 else 'more than without it'}"
    return hit if sums.unpriced == sums.calls else f"{hit}; {more}"


def cache_json(sums: Sums) -> dict[str, Any]:
    """The same for programs. `hit_ratio`: of the input tokens; `saved_usd_pico` is exact, in 10^-12 USD."""
    return {
        "hits": sums.hits,
        "hit_ratio": round(sums.hit_ratio, 4),
        "saved_usd": json_usd(sums.saved_pico),
        "saved_usd_pico": sums.saved_pico,
    }


def print_comparison(expected: Estimate, spent: Sums, usd: str, work: Work) -> None:
    """What an estimate had said, and what it was. usd: what was spent, as it stands elsewhere on the page."""
    rows = [
        ("agents", f"{expected.agents:,}", f"{work.tasks:,}"),
        ("calls", f"{expected.calls:,}", f"{spent.calls:,}"),
        ("input tokens", f"{expected.input_tokens:,}", f"{spent.input_tokens:,}"),
        ("output tokens", f"{expected.output_tokens:,}", f"{spent.output_tokens:,}"),
        ("USD", _expected_usd(expected), usd),
        ("minutes", f"{expected.seconds / 60:,.1f}", f"{work.seconds / 60:,.1f}"),
    ]
    print_table(("", "estimated", "so far"), rows, numbers=1)


def report_json(
    found: CostReport, by: Sequence[str], since: float | None, until: float | None, expected: Estimate | None
) -> dict[str, Any]:
    groups = [{**dict(zip(by, group.key, strict=True)), **_sums(group.sums)} for group in found.groups]
    waste = [
        {"outcome": each.key[0], "code": each.key[1], "calls": each.sums.calls, **_amounts(_waste(each.sums))}
        for each in found.waste
    ]
    told = {
        "by": list(by),
        "since": None if since is None else time_text(since),
        "until": None if until is None else time_text(until),
        "groups": groups,
        "total": _sums(found.total),
        "waste": waste,
        "unread": found.unread,
    }
    return told if expected is None else {**told, "estimate": estimate_json(expected)}


def _cells(sums: Sums, more: Sequence[str]) -> list[str]:
    """The numbers of a row; `more`: the columns that not every report has."""
    shown = {
        "at most": show_usd(sums.usd_pico + sums.unknown_pico),
        "unpriced": f"{sums.unpriced:,}",
        "saved": show_usd(sums.saved_pico),
    }
    cells = [f"{sums.calls:,}", f"{sums.wasted:,}", f"{sums.fresh_tokens:,}", f"{sums.cached_tokens:,}"]
    cells += [f"{100 * sums.hit_ratio:.0f}", f"{sums.output_tokens:,}", show_usd(sums.usd_pico)]
    return cells + [shown[name] for name in more]


_Amounts = tuple[int, int, bool]  # known, at most more, whether all of it has a price


def _all(sums: Sums) -> _Amounts:
    return sums.usd_pico, sums.unknown_pico, not sums.unpriced


def _waste(sums: Sums) -> _Amounts:
    return sums.wasted_pico, sums.wasted_unknown_pico, not sums.unpriced


def _interval(amounts: _Amounts) -> str:
    known, more, _ = amounts
    return show_usd(known) + (f" to {show_usd(known + more)}" if more else "")


def _amounts(amounts: _Amounts) -> dict[str, Any]:
    """`usd` is rounded to nine decimals, as everywhere; `usd_pico` is exact, in 10^-12 USD."""
    known, more, priced = amounts
    return {"usd": json_usd(known), "usd_at_most": json_usd(known + more) if priced else None, "usd_pico": known}


def _sums(sums: Sums) -> dict[str, Any]:
    return {
        "calls": sums.calls,
        "answers": sums.answers,
        "wasted": sums.wasted,
        "tokens": {
            "input": sums.input_tokens,
            "fresh": sums.fresh_tokens,
            "cached": sums.cached_tokens,
            "cache_write": sums.cache_write_tokens,
            "output": sums.output_tokens,
            "reasoning": sums.reasoning_tokens,
        },
        **_amounts(_all(sums)),
        "prompt_cache": cache_json(sums),
        "doubtful": sums.doubtful,
        "unknown": sums.unknown,
        "unpriced": sums.unpriced,
        "wasted_usd": json_usd(sums.wasted_pico),
    }


def print_estimate(found: Estimate, pace: Pace) -> None:
    """The sums by model, and what they rest on."""
    rows = [
        (
            line.model, line.role or "-", f"{line.calls:,}", f"{line.input_tokens:,}", f"{line.cached_tokens:,}",
            f"{line.output_tokens:,}", show_usd(line.usd_pico), show_usd(line.usd_at_most),
        )
        for line in found.lines
    ]  # fmt: skip
    print_table(("model", "role", "calls", "input", "cached", "output", "USD", "at most"), rows, numbers=2)
    limit = f"{pace.concurrency:,} at once" + (f", {pace.rpm:g} requests a minute" if pace.rpm else "")
    typer.echo(f"\n{counted(found.agents, 'agent')}, {counted(found.calls, 'call')}, about {_expected_usd(found)}")
    typer.echo(f"about {found.seconds / 60:,.1f} minutes ({limit})")
    if found.measured:
        names = ", ".join(found.measured[:3]) + (", ..." if len(found.measured) > 3 else "")
        typer.echo(f"tokens and times as measured in earlier runs of this work: {names}")
    else:
        typer.echo(
            "no earlier run of this work: 4 bytes of input a token, answers of a usual length; after a first run of "
            "some lines (--limit 20) it is told from measured tokens"
        )
    for model in found.unpriced:
        price = f'[prices."{model}"] in siafu.toml sets one'
        typer.echo(printable(f"no price for exactly the model {model}, so ? and in no amount: {price}"))
    if any(line.usd_pico is not None and line.usd_at_most is None for line in found.lines):
        typer.echo("? at most: some lines name no maximum of output; max_tokens in their bodies sets one")


def _expected_usd(found: Estimate) -> str:
    most = "" if found.usd_at_most is None else f" (at most {show_usd(found.usd_at_most)})"
    return show_usd(found.usd_pico) + most


def estimate_json(found: Estimate, budget: int | None = None) -> dict[str, Any]:
    told = {
        "agents": found.agents,
        "calls": found.calls,
        "tokens": {"input": found.input_tokens, "cached": found.cached_tokens, "output": found.output_tokens},
        "usd": json_usd(found.usd_pico) if len(found.unpriced) < len(found.lines) else None,
        "usd_at_most": json_usd(found.usd_at_most),
        "seconds": round(found.seconds, 1),
        "measured_in": found.measured,
        "unpriced": found.unpriced,
        "lines": [
            {
                "model": line.model,
                "role": line.role,
                "calls": line.calls,
                "tokens": {"input": line.input_tokens, "cached": line.cached_tokens, "output": line.output_tokens},
                "usd": json_usd(line.usd_pico),
                "usd_at_most": json_usd(line.usd_at_most),
            }
            for line in found.lines
        ],
    }
    return told if budget is None else {**told, "budget_usd": json_usd(budget)}


def print_what_if(found: WhatIf) -> None:
    columns = ("model", "this run", f"{TASKS} tasks", "an hour", "a month", "to now")
    now = _as_it_ran(found)
    rows = [("as it ran", *_costs(found, now), "")]
    for model, usd in found.usd_pico.items():
        change = "" if usd is None or not now else f"{100 * (usd - now) / now:+.0f} %"
        rows.append((model, *_costs(found, usd), change))
    print_table(columns, rows, numbers=1)
    cached = 100 * found.measured.cached_tokens / found.measured.input_tokens if found.measured.input_tokens else 0
    measured = counted(found.measured.calls - found.measured.unknown, "measured call")
    typer.echo(
        f"\n{counted(found.work.tasks, 'task')}, {measured} of the run {found.run}, "
        f"{found.measured.input_tokens:,} + {found.measured.output_tokens:,} tokens\n"
        f"assumed: the same tokens on each model, {cached:.0f} % of the input cached as measured; an hour: "
        f"{found.hourly:,} tasks, the pace of the run; a month: {found.monthly:,}"
    )
    if found.left_out:
        typer.echo(f"left out: {counted(found.left_out, 'call')} that were wasted, or whose usage is not known")
    for model, usd in found.usd_pico.items():
        if usd is None:
            typer.echo(f"siafu: no price for exactly the model {model}: check the spelling, or set one", err=True)


def _as_it_ran(found: WhatIf) -> int | None:
    return None if found.measured.unpriced else found.measured.usd_pico


def _costs(found: WhatIf, usd: int | None) -> tuple[str, str, str, str]:
    if usd is None:
        return "?", "?", "?", "?"
    return (
        show_usd(usd),
        show_usd(found.per_tasks(usd, TASKS)),
        show_usd(found.per_tasks(usd, found.hourly), 2),
        show_usd(found.per_tasks(usd, found.monthly), 2),
    )


def what_if_json(found: WhatIf) -> dict[str, Any]:
    costs = {"as it ran": _as_it_ran(found), **found.usd_pico}
    return {
        "run": found.run,
        "tasks": found.work.tasks,
        "calls": found.measured.calls - found.measured.unknown,
        "left_out": found.left_out,
        "tokens": {
            "input": found.measured.input_tokens,
            "cached": found.measured.cached_tokens,
            "output": found.measured.output_tokens,
        },
        "tasks_per_hour": found.hourly,
        "models": [
            {
                "model": model,
                "usd": json_usd(usd),
                "usd_per_100_tasks": json_usd(None if usd is None else found.per_tasks(usd, TASKS)),
                "usd_per_hour": json_usd(None if usd is None else found.per_tasks(usd, found.hourly)),
                "usd_per_month": json_usd(None if usd is None else found.per_tasks(usd, found.monthly)),
            }
            for model, usd in costs.items()
        ],
    }
