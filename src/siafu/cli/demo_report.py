"""What a demo has found, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from siafu.bench.demo.account import DEFINITIONS, Column
from siafu.bench.demo.demo import GLUE, Options, Outcome
from siafu.bench.demo.real import Observed
from siafu.bench.demo.summary import Category
from siafu.border.money import json_usd, show_usd
from siafu.border.text import printable
from siafu.cli.filerun import encode

_ROWS: tuple[tuple[str, Callable[[Column], str]], ...] = (
    ("answered", lambda column: f"{column.answered:,}"),
    ("lost", lambda column: f"{column.lost:,}"),
    ("run twice", lambda column: f"{column.run_twice:,}"),
    ("calls wasted", lambda column: f"{column.wasted:,}"),
    ("  calls in flight at the kill", lambda column: f"{column.in_flight:,}"),
    ("  USD for the wasted calls", lambda column: show_usd(column.wasted_pico)),
    ("USD without an explanation", lambda column: show_usd(column.unexplained_pico)),
    ("tool calls made twice", lambda column: f"{column.tool_calls_twice:,}"),
    ("refunds paid", lambda column: f"{column.refunds.paid:,} of {column.refunds.due:,}"),
    ("  waiting for a person", lambda column: f"{column.refunds.waiting:,}"),
    ("  paid without that person", lambda column: f"{column.refunds.unapproved:,}"),
    ("refunds paid twice", lambda column: f"{column.refunds.twice:,}"),
    ("refunds paid wrongly", lambda column: f"{column.refunds.wrongly:,}"),
    ("calls at the endpoint", lambda column: f"{column.calls:,}"),
    ("  refused with 429", lambda column: f"{column.refused:,}"),
    ("  failed with 5xx", lambda column: f"{column.failed:,}"),
    ("USD in all", lambda column: show_usd(column.usd_pico)),
    ("wall time", lambda column: f"{column.wall:.1f} s"),
)
SIMULATED = "Endpoint and payments were SIMULATED: nothing was billed, USD = list prices."


def print_report(options: Options, outcome: Outcome, out: Path) -> None:
    """Everything on stdout, in 80 columns."""
    console = Console(highlight=False, soft_wrap=False)
    glue = "the usual glue" if options.glue == GLUE else printable(options.glue.name)[:24]
    table = _table("", (glue, "siafu"))
    for name, cell in _ROWS:
        table.add_row(name, cell(outcome.glue), cell(outcome.siafu))
    console.print(table)
    console.print()
    console.print(_definitions())
    console.print("\nsiafu's own summary\n", style="bold")
    console.print(_categories(outcome.categories))
    for line in _facts(outcome, out):
        typer.echo(line)


def print_observed(seen: Observed, out: Path) -> None:
    """What a real model did, on stdout."""
    console = Console(highlight=False, soft_wrap=False)
    console.print(_categories(seen.categories))
    lines = [
        "",
        f"model            {printable(seen.model)}",
        f"answered         {seen.answered} of {seen.requests}{_counts(seen.errors)}",
        f"outcomes         {_counts(seen.outcomes).strip(' ()') or '-'}",
        f"right category   {seen.right} of {seen.requests}",
        f"tool calls       {seen.tool_calls}, in {seen.steps} steps of agents{_counts(seen.flagged)}",
        f"output           {seen.output_tokens:,} tokens, {seen.output_tokens / seen.wall:.1f} a second",
        f"wall time        {seen.wall:.1f} s{', stopped then: the time for them was over' if seen.stopped else ''}",
        f"results          {printable(str(out / 'results.jsonl'))}",
    ]
    for line in lines:
        typer.echo(line)


def _counts(counts: dict[str, int]) -> str:
    return f" ({', '.join(f'{count} {name}' for name, count in counts.items())})" if counts else ""


def observed_json(seen: Observed, out: Path) -> str:
    """The same as one JSON object."""
    found = msgspec.structs.asdict(seen)
    categories = [_category(row) for row in seen.categories]
    return encode({"simulated": False, **found, "categories": categories, "results": str(out / "results.jsonl")})


def _definitions() -> Table:
    table = Table.grid(padding=(0, 2))
    for name, meaning in DEFINITIONS:
        table.add_row(name, meaning, style="dim")
    return table


def _categories(rows: Sequence[Category]) -> Table:
    table = _table("category", ("count", "p50 s", "p95 s", "p99 s", "tokens in", "out", "USD"))
    for row in rows:
        times = (f"{milliseconds / 1000:.1f}" for milliseconds in (row.p50, row.p95, row.p99))
        tokens = (f"{row.input_tokens:,}", f"{row.output_tokens:,}")
        table.add_row(printable(row.category)[:16], f"{row.count:,}", *times, *tokens, show_usd(row.usd_pico))
    return table


def _facts(outcome: Outcome, out: Path) -> list[str]:
    found, spent = outcome.parallel, outcome.spent
    most = f" to {show_usd(spent.most_pico)} ({spent.unknown_calls} calls cut off by the kill)"
    exits = {"the glue": outcome.glue_exit, "siafu": outcome.siafu_exit}
    return [
        "",
        f"serial time replaced  {found.serial_seconds:.0f} s of the endpoint's own service time",
        f"speed-up              {found.speed_up:.1f} x in {outcome.siafu.wall:.1f} s, the kill and restart included",
        f"peak parallelism      {found.peak} answers in the making at once",
        f"critical steps        {found.critical_steps} model and tool calls, each waiting for the one before",
        f"429s waited out       {found.refusals} for {found.waited_out} questions, {found.waited_seconds:.1f} s in all",
        f"ledger                {show_usd(spent.least_pico)}{most if spent.unknown_calls else ''}",
        f"results               {printable(str(out / 'results.jsonl'))}",
        *(f"{name} ended with exit code {code}; see its log there" for name, code in exits.items() if code),
        "",
        SIMULATED,
    ]


def _table(first: str, others: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def as_json(options: Options, outcome: Outcome, out: Path) -> str:
    """The same as one JSON object; amounts in USD."""
    return encode(
        {
            "simulated": True,
            "requests": options.requests,
            "seed": options.seed,
            "rpm": options.rpm,
            "glue": {**_column(outcome.glue), "exit_code": outcome.glue_exit},
            "siafu": {**_column(outcome.siafu), "exit_code": outcome.siafu_exit},
            "clean": outcome.siafu.clean,
            "categories": [_category(row) for row in outcome.categories],
            "parallel": outcome.parallel,
            "ledger": {
                "usd": json_usd(outcome.spent.least_pico),
                "usd_at_most": json_usd(outcome.spent.most_pico),
                "unknown_calls": outcome.spent.unknown_calls,
            },
            "definitions": dict(DEFINITIONS),
            "results": str(out / "results.jsonl"),
        }
    )


def _column(column: Column) -> dict[str, Any]:
    return _in_usd(msgspec.structs.asdict(column))


def _category(row: Category) -> dict[str, Any]:
    return _in_usd(msgspec.structs.asdict(row))


def _in_usd(values: dict[str, Any]) -> dict[str, Any]:
    """`*usd_pico` as `*usd`, and other `*_pico` as `*_usd`, in dollars."""
    return {
        name.replace("usd_pico", "usd").replace("_pico", "_usd"): json_usd(value) if name.endswith("_pico") else value
        for name, value in values.items()
    }
