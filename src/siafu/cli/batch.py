"""`siafu batch`: files of OpenAI-Batch lines."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from siafu.cli.options import AllowUnpriced, BaseUrl, Drain, Fresh, Limit, Quiet, Source, Strict, Written
from siafu.cli.showing import AsJson, Config

if TYPE_CHECKING:
    from siafu.apps.filerun.place import Place
    from siafu.cli.progress import Progress
    from siafu.config.assembly import House

app = typer.Typer(
    help="Run a file of OpenAI-Batch lines against any OpenAI-compatible endpoint. Run again, it goes on.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu batch check requests.jsonl      what is in it? no call is made
  siafu batch run requests.jsonl --out results.jsonl
                                        run it; run again, it goes on
  siafu batch status results.jsonl      how far is it, what did it cost?
\b
A line: {"custom_id": "q1", "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": "gpt-4.1-mini", "messages": [...]}}
""",
)

Errors = typer.Option(
    None, "--errors", help="Where failed lines go. Default: OUT with .errors.jsonl", show_default=False
)
PerItem = typer.Option(None, "--budget-per-item", help="What one line may cost; it fails rather than pass that.")


@app.command(
    "run",
    epilog="""\b
Examples:
  siafu batch run requests.jsonl --out results.jsonl --budget "5 USD"
  siafu batch run requests.jsonl --out results.jsonl --retry-failed
  siafu batch run requests.jsonl --out try.jsonl --limit 10 --model NAME
\b
Each id ends with one line in OUT or in the errors file, in any order. Lines
that cannot be used become errors. A request to stream is left away.
Exit code: 0 all succeeded, 1 some failed, 2 wrong use or key, 3 budget
reached, no credit left or an endpoint that fails, 130 interrupted.
""",
)
def run(
    file: Path = Source,
    out: Path = typer.Option(..., "--out", "-o", help="Where results go; an existing file is resumed."),
    errors: Path | None = Errors,
    concurrency: int | None = typer.Option(None, min=1, max=10_000, help="Calls at once. Default: 100"),
    rpm: float | None = typer.Option(None, help="Requests a minute. Default: learned from the endpoint's 429s"),
    budget: str | None = typer.Option(None, help='Stop before this is spent, such as "5 USD".'),
    budget_per_item: str | None = PerItem,
    allow_unpriced: bool = AllowUnpriced,
    model: str | None = typer.Option(None, help="Ask this model, whatever the lines say."),
    base_url: str | None = BaseUrl,
    limit: int | None = Limit,
    strict: bool = Strict,
    retry_failed: bool = typer.Option(False, "--retry-failed", help="Run failed lines again."),
    fresh: bool = Fresh,
    drain: float = Drain,
    config: Path | None = Config,
    json: bool = AsJson,
    quiet: bool = Quiet,
) -> None:
    """Run every line of FILE; resume when OUT exists."""
    from siafu.apps.batch import BatchJob
    from siafu.apps.filerun.prepare import FileOptions
    from siafu.border.money import parse_usd
    from siafu.cli.filerun import planned, run_file
    from siafu.config.assembly import check_prices, opened
    from siafu.config.settings import load
    from siafu.swarm.options import MapOptions

    flags = {"limits.concurrency": concurrency, "limits.rpm": rpm, "endpoint.base_url": base_url}
    settings = load(config=config, flags=flags)
    where = _place(file, out, errors, settings.home)
    budget_pico = None if budget is None else parse_usd(budget)

    job = BatchJob(where.run, model)

    def open_house(progress: Progress) -> AbstractAsyncContextManager[House]:
        plan = planned(where, progress, budget_pico, budget_per_item, allow_unpriced=allow_unpriced)
        check_prices(settings, plan, job.models)
        return opened(settings, msgspec.structs.replace(plan, models=job.models))

    run_file(
        job,
        where,
        FileOptions(strict=strict, retry_failed=retry_failed, fresh=fresh, limit=limit),
        MapOptions(concurrency=settings.limits.concurrency),
        open_house,
        budget_pico=budget_pico,
        drain=drain,
        quiet=quiet,
        as_json=json,
    )


@app.command(
    "check",
    epilog="""\b
Examples:
  siafu batch check requests.jsonl
  siafu batch check requests.jsonl --json
""",
)
def check(file: Path = Source, limit: int | None = Limit, json: bool = AsJson) -> None:
    """Look at every line of FILE, without a call.

    Says what can be used, what not, and how much it is about.
    """
    from siafu.apps import batch
    from siafu.border.text import counted, printable
    from siafu.cli.filerun import encode

    found = batch.check(file, limit=limit)
    if json:
        typer.echo(encode(found))
    else:
        most = found.output_tokens_at_most
        output = "some without a maximum of output" if most is None else f"at most {most:,} tokens of output"
        typer.echo(f"{found.usable:,} of {counted(found.usable + found.bad, 'line')} can be run")
        typer.echo(f"about {found.input_tokens_about:,} tokens of input, {output}")
        for model, count in found.models.items():
            typer.echo(printable(f"{count:>9,}  {model}"))
        for error in found.first_bad:
            typer.echo(printable(error.message))
        if found.bad > len(found.first_bad):
            typer.echo(f"and {found.bad - len(found.first_bad):,} more that cannot be used")
    raise typer.Exit(1 if found.bad else 0)


@app.command(
    "status",
    epilog="""\b
Examples:
  siafu batch status results.jsonl
  siafu batch status results.jsonl --json
""",
)
def status(
    out: Path = Written,
    errors: Path | None = Errors,
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Say how far a run is, and what it has cost.

    Also while it works.
    """
    from siafu.apps.batch import BatchJob
    from siafu.cli.filerun import show_status
    from siafu.config.settings import load

    where = _place(Path("-"), out, errors, load(config=config).home)
    show_status(BatchJob(where.run), where, as_json=json)


def _place(source: Path, out: Path, errors: Path | None, home: Path) -> Place:
    from siafu.apps.filerun.place import place

    return place(source, out, errors or out.parent / f"{out.stem}.errors.jsonl", home)
