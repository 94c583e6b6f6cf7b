"""`siafu cost`: what runs have cost, what a file will cost, and what a run would have cost on other models."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from siafu.border.text import preview
from siafu.cli.cost_tables import (
    budgets_json,
    estimate_json,
    print_budgets,
    print_estimate,
    print_report,
    print_what_if,
    report_json,
    what_if_json,
)
from siafu.cli.options import AllowUnpriced, Limit, Source
from siafu.cli.showing import AsJson, Config, print_json
from siafu.errors import InputError, UnpricedModel

if TYPE_CHECKING:
    from siafu.apps.costs.guess import Guessing
    from siafu.apps.filerun.job import FileJob
    from siafu.config.settings import Settings
    from siafu.store.spending import Work

app = typer.Typer(
    help="What runs have cost, from their ledgers; what a file will cost; what a run would cost on other models.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu cost report                          all runs, by model
  siafu cost estimate requests.jsonl         before a run; no call is made
  siafu cost what-if --run results.jsonl --models gpt-4.1,gpt-4.1-mini
""",
)

SHOWN = 10  # runs that a message names
RUN = "A run: its results file, or its name."
Run = typer.Option(None, "--run", metavar="RUN", help=RUN + " Default: all.", show_default=False)
Models = typer.Option(..., "--models", metavar="A,B,C", help="Models, by their exact ids.")


@app.command(
    "report",
    epilog="""\b
Examples:
  siafu cost report
  siafu cost report --by day --by model --since 7d
  siafu cost report results.jsonl --by role --estimate
  siafu cost report run.db --since 2026-11-29 --until 2026-11-29 --json
\b
Each attempt counts, also refused, failed and repeated ones. A call that was
cut off, or is under way, costs between nothing and what was reserved for it:
then the second amount is the most that it all can be. Days are those of UTC.
Exit code: 1 when a journal could not be read and is left out.
""",
)
def report(
    paths: list[Path] | None = typer.Argument(
        None,
        metavar="PATH",
        help="Journals, results files, or folders with journals. Default: SIAFU_HOME",
        show_default=False,
    ),
    by: list[str] = typer.Option(
        ["model"],
        "--by",
        metavar="WHAT",
        help="run, model, role, agent, upstream, key (of the upstream), client (key of serve), bucket (of a canary) or "
        "day; may stand several times.",
    ),
    run: str | None = Run,
    since: str | None = typer.Option(None, metavar="TIME", help="Calls from then on: a day, a time, or 24h, 7d ago."),
    until: str | None = typer.Option(None, metavar="TIME", help="Calls before then; a day counts as a whole."),
    estimate: bool = typer.Option(False, "--estimate", help="Beside what `siafu cost estimate --out` had said."),
    config: Path | None = Config,
    as_json: bool = AsJson,
) -> None:
    """Add up what calls have cost."""
    from siafu.apps.costs.report import cost_report
    from siafu.config.budgets import keys_today
    from siafu.config.settings import load
    from siafu.store.spending import DIMENSIONS

    wrong = [name for name in by if name not in DIMENSIONS]
    if wrong or len(set(by)) < len(by):
        raise InputError(f"--by is one of {', '.join(DIMENSIONS)}, each at most once, not {preview(' '.join(by), 60)}")
    settings = load(config=config)
    home, budgets = settings.home, keys_today(settings, time.time()) if "key" in by else {}
    since_at, until_at = _time(since, end=False), _time(until, end=True)
    files = list(dict.fromkeys(file for path in paths or [home] for file in _journals(path, home)))
    name = None if run is None else _the_run(run, home).name
    if name is not None and name not in (there := _runs(files)):
        raise InputError(f"no journal here holds a run {preview(name, 60)!r}; {_list(there)}")
    found = cost_report(files, by, run=name, since=since_at or 0.0, until=until_at or 1e12)
    expected = _kept(paths or [], run, home) if estimate else None
    for why in found.unread:
        typer.echo(f"siafu: left out: {why}", err=True)
    if as_json:
        told = report_json(found, by, since_at, until_at, expected)
        print_json({**told, "budgets": budgets_json(budgets)} if budgets else told)
    else:
        print_report(found, by, expected, None if expected is None else _done(files, name))
        print_budgets(budgets)
    raise typer.Exit(1 if found.unread else 0)


@app.command(
    "estimate",
    epilog="""\b
Examples:
  siafu cost estimate requests.jsonl
  siafu cost estimate requests.jsonl --out results.jsonl --budget "5 USD"
      and later: siafu batch status results.jsonl
  siafu cost estimate requests.jsonl --rpm 500 --concurrency 50 --json
\b
Reads FILE (lines of a batch, or of support requests) and earlier runs of the
same work in SIAFU_HOME; makes no call. With --budget: exit code 2 when a
model has no price, 3 when it is likely to cost more.
""",
)
def estimate(
    file: Path = Source,
    out: Path | None = typer.Option(
        None, "--out", "-o", help="The results file of the run to come: remembers this for its status."
    ),
    budget: str | None = typer.Option(None, help='What it may cost, such as "5 USD".'),
    allow_unpriced: bool = AllowUnpriced,
    concurrency: int | None = typer.Option(None, min=1, max=10_000, help="Items at once. Default: 100"),
    rpm: float | None = typer.Option(None, help="Requests a minute."),
    model: str | None = typer.Option(None, help="Batch: ask this model, whatever the lines say."),
    strong: str | None = typer.Option(None, "--strong", help="Support: the model that sorts."),
    cheap: str | None = typer.Option(None, "--cheap", help="Support: the model that answers."),
    limit: int | None = Limit,
    config: Path | None = Config,
    as_json: bool = AsJson,
) -> None:
    """Say what a file will cost, before it is run."""
    from siafu.apps.costs.estimate import Pace, estimate_path, keep, loads, past
    from siafu.apps.costs.estimate import estimate as estimated
    from siafu.apps.filerun.place import opened, run_name
    from siafu.apps.filerun.run import work_print
    from siafu.border.money import parse_usd, show_usd
    from siafu.config.settings import load
    from siafu.config.upstreams import configured_prices

    flags = {"limits.concurrency": concurrency, "limits.rpm": rpm, "models.strong": strong, "models.cheap": cheap}
    settings = load(config=config, flags=flags)
    most = None if budget is None else parse_usd(budget)
    with opened(file) as source:
        job, guess = _work(source, settings, model)
        agents, asked = loads(job, guess, source, limit)
    prices, now = configured_prices(settings), time.time()
    pace = Pace(settings.limits.concurrency, settings.limits.rpm)
    earlier = past(settings.home, work_print(job))
    found = estimated(agents, asked, earlier, lambda name: prices.rates(name, now), pace)
    if out is not None:
        keep(found, estimate_path(settings.home, run_name(out)))
    if as_json:
        print_json(estimate_json(found, most))
    else:
        print_estimate(found, pace)
    if most is not None and found.unpriced and not allow_unpriced:
        raise UnpricedModel(
            f"under a budget nothing would be sent: there is no price for exactly {', '.join(found.unpriced)}; check "
            "the spelling, set a price ([prices] in siafu.toml), or give --allow-unpriced"
        )
    if most is not None and found.usd_pico > most:
        typer.echo(f"siafu: a budget of {show_usd(most)} will hardly do: about {show_usd(found.usd_pico)}", err=True)
        raise typer.Exit(3)


@app.command(
    "what-if",
    epilog="""\b
Examples:
  siafu cost what-if --run results.jsonl --models gpt-4.1,gpt-4.1-mini
  siafu cost what-if --run nightly run.db --models deepseek-chat --json
\b
The measured tokens of the run's answers at the prices of other models: as if
each answered in as many tokens, and had as much of the input cached.
""",
)
def what_if(
    path: Path | None = typer.Argument(
        None, metavar="[PATH]", help="The journal. Default: the run's in SIAFU_HOME", show_default=False
    ),
    run: str = typer.Option(..., "--run", metavar="RUN", help=RUN),
    models: str = Models,
    config: Path | None = Config,
    as_json: bool = AsJson,
) -> None:
    """Price the measured calls of a run on other models."""
    from siafu.apps.costs.what_if import what_if as priced
    from siafu.config.settings import load
    from siafu.config.upstreams import configured_prices
    from siafu.store.spending import journals

    names = list(dict.fromkeys(name.strip() for name in models.split(",") if name.strip()))
    if not names:
        raise InputError("--models names no model")
    settings = load(config=config)
    prices, now = configured_prices(settings), time.time()
    place = _the_run(run, settings.home)
    journal = path or place.journal
    if journal is None:
        there = _runs(journals(settings.home))
        raise InputError(f"no journal in {settings.home} holds a run {preview(run, 60)!r}; {_list(there)}")
    found = priced(journal, place.name, {name: prices.rates(name, now) for name in names})
    if as_json:
        print_json(what_if_json(found))
    else:
        print_what_if(found)


class _Run(NamedTuple):
    """A run by its name. `journal`: the file in SIAFU_HOME that holds it, None = none does."""

    name: str
    journal: Path | None


def _the_run(wanted: str, home: Path) -> _Run:
    """The run that `wanted` means: the one that writes this results file, else one of this name."""
    from siafu.errors import StoreError
    from siafu.store.spending import Spending, journals

    own = _journal_of(Path(wanted), home)
    if own is not None:
        return _Run(own.stem, own)
    for path in journals(home):
        try:
            with Spending(path) as ledger:
                if wanted in ledger.runs():
                    return _Run(wanted, path)
        except StoreError:
            continue
    return _Run(wanted, None)


def _done(journals: Iterable[Path], run: str | None) -> Work:
    """What a run has done, or all runs in the journals. Raises: StoreError."""
    from siafu.store.spending import Spending, Work

    found = []
    for path in journals:
        with Spending(path) as ledger:
            found += [ledger.work(each) for each in ledger.runs() if run in (None, each)]
    return Work(tasks=sum(each.tasks for each in found), seconds=sum(each.seconds for each in found))


def _journals(path: Path, home: Path) -> list[Path]:
    """The journals that `path` means: those in a folder, that of the run which writes a results file, or itself.

    Raises: InputError when there is nothing.
    """
    from siafu.store.spending import journals

    if path.is_dir():
        return journals(path)
    found = _journal_of(path, home)
    if found is None and path != home and not path.exists():
        raise InputError(f"there is no file {path}, and no run that writes one; {_list(_runs(journals(home)))}")
    return [] if path == home else [found or path]


def _runs(files: Iterable[Path]) -> list[str]:
    """The runs that journals hold, the last written first; one that cannot be read holds none."""
    from siafu.errors import StoreError
    from siafu.store.spending import Spending

    found: dict[str, None] = {}
    for path in sorted(files, key=lambda path: -path.stat().st_mtime if path.exists() else 0.0):
        with contextlib.suppress(StoreError), Spending(path) as ledger:
            found |= dict.fromkeys(ledger.runs())
    return list(found)


def _list(runs: Sequence[str]) -> str:
    if not runs:
        return "there is none yet"
    more = f" and {len(runs) - SHOWN} more (siafu cost report --by run)" if len(runs) > SHOWN else ""
    return f"there are: {', '.join(preview(name, 60) for name in runs[:SHOWN])}{more}"


def _journal_of(out: Path, home: Path) -> Path | None:
    """The journal of the run that writes this results file; None when there is none."""
    from siafu.apps.filerun.place import run_name

    own = home / "runs" / f"{run_name(out)}.db"
    return own if own.exists() else None


def _kept(paths: list[Path], run: str | None, home: Path) -> Any:
    from siafu.apps.costs.estimate import estimate_path, kept
    from siafu.apps.filerun.place import run_name

    named = [Path(run)] if run is not None else paths
    found = kept(estimate_path(home, run_name(named[0]))) if len(named) == 1 else None
    if found is None:
        raise InputError("--estimate needs the one results file that `siafu cost estimate FILE --out` was given")
    return found


def _work(source: Any, settings: Settings, model: str | None) -> tuple[FileJob, Guessing]:
    """What the first line that is an object belongs to: a batch, or the support swarm. Raises: InputError."""
    from siafu.apps.batch import BatchJob
    from siafu.apps.costs.guess import batch_guess, support_guess
    from siafu.apps.support.job import SupportJob
    from siafu.apps.support.swarm import Support
    from siafu.border.jsonl import read_jsonl

    first = next((line.value for line in read_jsonl(source) if isinstance(line.value, dict)), {})
    if "custom_id" in first:
        return BatchJob("estimate", model), batch_guess(model)
    if "text" in first:
        models: Any = {"strong": settings.model("strong"), "cheap": settings.model("cheap")}
        return SupportJob(Support(models=models)), support_guess(models)
    raise InputError('the input holds neither batch lines ("custom_id", "body") nor support requests ("id", "text")')


def _time(text: str | None, *, end: bool) -> float | None:
    """Seconds since 1970 of `2026-11-29`, `2026-11-29T12:00`, both UTC unless they say otherwise, or `24h` ago. With
    `end`, a day is its end. Raises: InputError.
    """
    if text is None:
        return None
    from siafu.cli.filerun import KEPT_DAYS, parse_duration
    from siafu.errors import ConfigError

    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        try:
            return time.time() - parse_duration(text, days=KEPT_DAYS)
        except ConfigError:
            told = f'{preview(text, 40)!r} is no time; write "2026-11-29", "2026-11-29T12:00" or "24h" (ago)'
            raise InputError(told) from None
    day = len(text.strip()) <= len("2026-11-29") and end
    return (found.replace(tzinfo=found.tzinfo or UTC) + timedelta(days=day)).timestamp()
