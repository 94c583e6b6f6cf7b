"""`siafu support`: a swarm that answers an online shop's customers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from siafu.cli.options import AllowUnpriced, BaseUrl, Drain, Fresh, Limit, Quiet, Source, Strict, Written
from siafu.cli.shop_records import UNPAID
from siafu.cli.showing import AsJson, Config

if TYPE_CHECKING:
    from siafu.apps.support.job import SupportJob
    from siafu.apps.support.requests import CustomerRequest
    from siafu.apps.support.routes import Tier
    from siafu.apps.support.swarm import StepListener, Support
    from siafu.cli.progress import Progress
    from siafu.config.assembly import House, Plan
    from siafu.config.settings import Settings
    from siafu.swarm.results import MapResult

app = typer.Typer(
    help="Answer customers of an online shop: a strong model sorts each request, cheap agents look things up and "
    "refund over MCP, and answer, each with its own context and only its role's tools.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu support ask "주문 1001 어디쯤 왔나요?" --customer kim
      one request, every step shown
  siafu support run requests.jsonl --out results.jsonl
      many; the same command resumes
\b
A line: {"id": "r1", "customer": "kim", "text": "..."}, and if known
"created_at" and "lang". `siafu init` writes examples; `siafu shop orders`
lists what customers can ask about.
""",
)

Strong = typer.Option(None, "--strong", help="Model that sorts requests and answers delicate ones.")
Cheap = typer.Option(None, "--cheap", help="Model that answers most requests.")
Database = typer.Option(
    None,
    "--database",
    envvar="SIAFU_SHOP_DATABASE_URL",
    help="The example shop's database: a file, sqlite:///PATH or postgresql://... Default: shop.db in SIAFU_HOME or "
    "./.siafu",
    show_default=False,
    show_envvar=True,
)
PerItem = typer.Option(None, "--budget-per-item", help="What one request may cost; it fails rather than pass that.")
Wait = typer.Option(
    None,
    "--wait",
    "--wait-approvals",
    metavar="DURATION",
    help="When all else is done, look again for so long at requests that wait: 90s, 30m, 2h. Default: the next run",
)


@app.command(
    "run",
    epilog="""\b
Examples:
  siafu support run requests.jsonl --out results.jsonl --budget "2 USD"
  siafu support run requests.jsonl --out results.jsonl --retry-failed
  siafu support run requests.jsonl --out results.jsonl --wait 30m
      look again until a person has decided (siafu approvals list), and until
      what was away or switched off can act
\b
Each request ends with one line in OUT, answered or failed, in any order. One
that needs a person's decision, or cannot be done now, is answered so, with
"waiting": true and "waits_for"; the same command goes on with it, and puts
the new line in the old one's place. An id that stands again, and a line that
cannot be used, become errors.
Exit code: 0 all answered, 1 some failed, 2 wrong use or key, 3 budget
reached, no credit left or an endpoint that fails, 130 interrupted.
""",
)
def run(
    source: Path = Source,
    out: Path = typer.Option(..., "--out", "-o", help="Where answers go; an existing file is resumed."),
    concurrency: int | None = typer.Option(None, min=1, max=10_000, help="Requests at once. Default: 100"),
    rpm: float | None = typer.Option(None, help="Model calls a minute. Default: learned from the endpoint's 429s"),
    budget: str | None = typer.Option(None, help='Stop before this is spent, such as "2 USD".'),
    budget_per_item: str | None = PerItem,
    allow_unpriced: bool = AllowUnpriced,
    strong: str | None = Strong,
    cheap: str | None = Cheap,
    base_url: str | None = BaseUrl,
    database: str | None = Database,
    limit: int | None = Limit,
    strict: bool = Strict,
    retry_failed: bool = typer.Option(False, "--retry-failed", help="Run failed requests again."),
    wait: str | None = Wait,
    fresh: bool = Fresh,
    drain: float = Drain,
    config: Path | None = Config,
    json: bool = AsJson,
    quiet: bool = Quiet,
) -> None:
    """Answer every request of FILE; resume when OUT exists."""
    from siafu.apps.filerun.place import place
    from siafu.apps.filerun.prepare import FileOptions
    from siafu.apps.support.job import SupportJob
    from siafu.apps.support.requests import Answer
    from siafu.border.money import parse_usd
    from siafu.cli.filerun import parse_duration, planned, run_file
    from siafu.config.assembly import check_prices
    from siafu.swarm.options import MapOptions

    settings = _settings(config, base_url, strong, cheap, concurrency=concurrency, rpm=rpm)
    where = place(source, out, None, settings.home)
    budget_pico = None if budget is None else parse_usd(budget)
    job = SupportJob(_support(settings))

    def open_house(progress: Progress) -> AbstractAsyncContextManager[House]:
        plan = planned(where, progress, budget_pico, budget_per_item, allow_unpriced=allow_unpriced)
        check_prices(settings, plan, (settings.model("strong"), settings.model("cheap")))
        return _opened(settings, job, plan, database)

    files = FileOptions(strict=strict, retry_failed=retry_failed, fresh=fresh, limit=limit)
    options = MapOptions(
        concurrency=settings.limits.concurrency,
        user=lambda task: task.item.customer,
        value_type=Answer,
        wait=None if wait is None else parse_duration(wait),
    )
    run_file(job, where, files, options, open_house, budget_pico=budget_pico, drain=drain, quiet=quiet, as_json=json)


@app.command(
    "status",
    epilog="""\b
Examples:
  siafu support status results.jsonl
  siafu support status results.jsonl --json
""",
)
def status(
    out: Path = Written,
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Say how far a run is, and what it has cost.

    Also while it works.
    """
    from siafu.apps.filerun.place import place
    from siafu.apps.support.job import SupportJob
    from siafu.apps.support.swarm import Support
    from siafu.cli.filerun import show_status
    from siafu.config.settings import load

    where = place(Path("-"), out, None, load(config=config).home)
    show_status(SupportJob(Support(models={})), where, as_json=json)


@app.command(
    "ask",
    epilog="""\b
Examples:
  siafu support ask "주문 1001 어디쯤 왔나요?" --customer kim
  siafu support ask "Is the yoga mat in stock?" --customer alice --json
  siafu support ask "환불해 주세요" --customer kim --thread kim-1
  siafu support ask "1001이요" --customer kim --thread kim-1
      goes on from what was said before
""",
)
def ask(
    text: str = typer.Argument(help="What the customer writes."),
    customer: str = typer.Option(..., "--customer", help="Who asks: the authenticated customer."),
    thread: str | None = typer.Option(
        None, "--thread", help="Keep the conversation under this name, and go on with it when there is one."
    ),
    strong: str | None = Strong,
    cheap: str | None = Cheap,
    base_url: str | None = BaseUrl,
    database: str | None = Database,
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Answer one request and show every step."""
    import uuid

    from siafu.apps.filerun.run import stop_code
    from siafu.apps.support.job import SupportJob
    from siafu.apps.support.requests import parse_request
    from siafu.cli.filerun import encode
    from siafu.cli.steps import show_answer, show_step
    from siafu.errors import ApprovalPending, NotNow

    settings = _settings(config, base_url, strong, cheap)
    request = parse_request({"id": f"ask-{uuid.uuid4()}", "customer": customer, "text": text})
    job = SupportJob(_support(settings, on_step=None if json else show_step))
    result = asyncio.run(_answer(settings, job, request, database, thread))
    record = job.record(result)
    if record is None:  # a rule makes the whole request wait
        raise NotNow(result.error.message if result.error else "")
    if json:
        typer.echo(encode(record))
    elif record["error"] is not None:
        typer.echo(f"siafu: {record['error']['code']}: {record['error']['message']}", err=True)
    else:
        show_answer(record)
    if result.status == "waiting" and result.error:
        decides = result.error.code == ApprovalPending.code
        person = "this waits for a person's decision: siafu approvals list"
        why = person if decides else f"this could not be settled yet ({result.error.code}); ask again later"
        typer.echo(f"siafu: {why}", err=True)
    raise typer.Exit(stop_code(result.error.code) if result.error and result.status == "error" else 0)


async def _answer(
    settings: Settings, job: SupportJob, request: CustomerRequest, database: str | None, thread: str | None
) -> MapResult:
    if thread is None:
        return await _answer_alone(settings, job, request, database)
    from siafu.config.threads import support_threads

    async with support_threads(settings) as threads:
        request = await threads.ask(thread, request)
        result = await _answer_alone(settings, job, request, database)
        if result.status != "error":
            await threads.answered(request.id, result.value.answer, result.value.outcome)
        return result


async def _answer_alone(
    settings: Settings, job: SupportJob, request: CustomerRequest, database: str | None
) -> MapResult:
    from siafu.apps.support.asking import answered
    from siafu.config.assembly import Plan

    def say(text: str) -> None:
        typer.echo(f"siafu: {text}", err=True)

    async with _opened(settings, job, Plan(run="ask", served=True, notice=say), database) as house:
        result = await answered(job, request, house.around, run="ask")
        for text in await house.explain() if result.status == "error" and not result.calls else ():
            say(text)
        return result


@contextlib.asynccontextmanager
async def _opened(settings: Settings, job: SupportJob, plan: Plan, database: str | None) -> AsyncIterator[House]:
    """A house with the support swarm's tools, and `job` ready to use them."""
    from siafu.apps.support.routes import ROLES
    from siafu.config.assembly import opened
    from siafu.config.servers import support_desk

    if plan.notice and not settings.mcp_servers and not os.environ.get("SIAFU_PAYMENTS_URL"):
        plan.notice(f"{UNPAID}; to try refunds: siafu payments serve --help")
    async with support_desk(settings, database=database) as desk:
        await job.ready(desk.tools, desk.identity_key)
        plan = msgspec.structs.replace(plan, tools=desk.tools, denied=desk.denied, roles=ROLES)
        async with opened(settings, plan) as house:
            yield house


def _settings(
    config: Path | None, base_url: str | None, strong: str | None, cheap: str | None, **limits: Any
) -> Settings:
    from siafu.config.settings import load

    flags = {"endpoint.base_url": base_url, "models.strong": strong, "models.cheap": cheap}
    return load(config=config, flags={**flags, **{f"limits.{name}": value for name, value in limits.items()}})


def _support(settings: Settings, on_step: StepListener | None = None) -> Support:
    from siafu.apps.support.swarm import Support, nobody

    models: dict[Tier, str] = {"strong": settings.model("strong"), "cheap": settings.model("cheap")}
    return Support(models=models, on_step=on_step or nobody)
