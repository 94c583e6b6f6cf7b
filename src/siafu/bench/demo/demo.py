"""The whole show: one endpoint, the glue and then siafu, each with a new shop, and what the records say about both."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import aiohttp
import msgspec

from siafu.apps.filerun.place import Place, place
from siafu.apps.support.routes import REFUND
from siafu.apps.support.shop.database import MAX_CALLS, ShopDatabase
from siafu.bench.demo import notes
from siafu.bench.demo.account import Column, Evidence, Notes, ToolCall, judge
from siafu.bench.demo.payouts import Refunds, judge_refunds, payouts
from siafu.bench.demo.phases import Listener, Program, Ran, Watch, run
from siafu.bench.demo.place import (
    Case,
    Folder,
    clean_environment,
    dues,
    new_key,
    refund_cases,
    write_cases,
    write_settings,
)
from siafu.bench.demo.refund_requests import Due
from siafu.bench.demo.seen import Reader
from siafu.bench.demo.servers import POLL_SECONDS, SIAFU, DemoFailed, Endpoint, payments, server
from siafu.bench.demo.summary import Category, Parallel, by_category, parallel
from siafu.config.effects import SHOP_RULES
from siafu.gateway.chat import Usage
from siafu.gateway.pricing import Prices
from siafu.store.database import Transaction
from siafu.store.report import Report
from siafu.store.spending import Spending

GLUE = Path(__file__).with_name("glue.py")
STRONG, CHEAP = "kimi-k2.5", "deepseek-v3.2"
CONCURRENCY = 50
SETTLE_SECONDS = 30.0  # for the shop, to find out what became of the refunds whose answer was lost
_UNSETTLED = {"reserved", "dispatching", "unknown"}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """seed: of the requests and of the endpoint. rpm: the endpoint's limit, requests a minute. latency: a
    `siafu sim --latency`. glue: the other program. seconds: the longest each run of a program may take. lease: seconds
    after which siafu takes up an effect that its killed process had in hand; None = as the shop's rules say.
    """

    requests: int = 100
    seed: int = 7
    rpm: float = 1500.0
    latency: str = "default"
    glue: Path = GLUE
    seconds: float = 120.0
    lease: float | None = None


class Did(msgspec.Struct, frozen=True, kw_only=True):
    """What a program has done in its shop: its tool calls, refunds apart, and what became of refunds."""

    tool_calls: list[ToolCall]
    refunds: Refunds


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What siafu's ledger says its run has cost: between the two, in pico-dollars."""

    least_pico: int
    most_pico: int
    unknown_calls: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo shows. `glue_exit`, `siafu_exit`: exit codes after the restart."""

    glue: Column
    siafu: Column
    categories: list[Category]
    parallel: Parallel
    spent: Spent
    glue_exit: int
    siafu_exit: int


async def show(options: Options, folder: Folder, listen: Listener) -> Outcome:
    """Run the demo in `folder`. Cancelling ends every process it has started.

    Raises: ConfigError, DemoFailed, InputError, StoreError.
    """
    cases = refund_cases(options.requests, options.seed)
    write_cases(folder, cases)
    (folder.path / "payment-faults.json").write_bytes(msgspec.json.encode({"rules": payment_faults(dues(cases))}))
    key = new_key()
    reader = Reader({case.request.id: case.request.text for case in cases})
    async with _endpoint(options, folder) as endpoint:
        reach = {"OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": "any-key-will-do"}
        async with _shop("glue", folder, key) as (shop, paying):
            glue = Program(
                name="glue" if options.glue == GLUE else options.glue.name[:24],
                command=[sys.executable, options.glue.absolute(), folder.requests.name, "glue-results.jsonl"],
                environment=clean_environment(**reach, SHOP_URL=shop, SHOP_KEY=key, PAYMENTS_URL=paying),
                log=folder.path / "glue.log",
                output=folder.path / "glue-output.jsonl",
            )
            ran_glue = await _run(glue, endpoint, reader, options, folder, listen)
            glue_did = await _did("glue", folder, cases)
        await endpoint.reset()
        async with _shop("siafu", folder, key) as (shop, _):
            write_settings(folder, _settings(shop, options.lease))
            siafu = Program(
                name="siafu",
                command=[*SIAFU, "support", "run", folder.requests.name, "--out", folder.results.name, "--quiet"],
                environment=clean_environment(**reach, SIAFU_IDENTITY_KEY=key),
                log=folder.path / "siafu.log",
                output=folder.path / "siafu-output.txt",
            )
            ran_siafu = await _run(siafu, endpoint, reader, options, folder, listen)
            peak = await endpoint.peak()
            siafu_did = await _did("siafu", folder, cases)
        prices = Prices(base_url=endpoint.url)
    where = place(folder.requests, folder.results, None, folder.path / ".siafu")
    told = notes.results(folder.results)
    glue_told = notes.results(folder.path / "glue-results.jsonl")
    return Outcome(
        glue=_judge(cases, ran_glue, glue_told, glue_did, notes.from_log(glue.output), prices),
        siafu=_judge(cases, ran_siafu, told, siafu_did, _ledger(where, cases), prices),
        categories=by_category(told),
        parallel=parallel(ran_siafu.calls, ran_siafu.wall, peak),
        spent=_spent(where),
        glue_exit=ran_glue.exit_code,
        siafu_exit=ran_siafu.exit_code,
    )


@contextlib.asynccontextmanager
async def _endpoint(options: Options, folder: Folder) -> AsyncIterator[Endpoint]:
    """The simulated endpoint; it ends with the block."""
    faults = folder.path / "faults.json"
    faults.write_bytes(msgspec.json.encode(storm(options.requests)))
    sim = [*SIAFU, "sim", "--seed", str(options.seed), "--latency", options.latency, "--keep-bodies"]
    limits = ["--rpm", str(options.rpm), "--burst", "2", "--faults", faults.name]
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        server("endpoint", [*sim, *limits], folder=folder.path, environment=clean_environment()) as ready,
        aiohttp.ClientSession(timeout=timeout) as session,
    ):
        yield Endpoint(msgspec.json.decode(ready)["url"], session)


@contextlib.asynccontextmanager
async def _shop(program: str, folder: Folder, key: str) -> AsyncIterator[tuple[str, str]]:
    """A new shop for one program, and the provider that pays its refunds: their URLs. Both end with the block."""
    faults = ("--faults", "payment-faults.json")
    async with payments(f"{program}-payments", folder.path, folder.ledger(program), *faults) as url:
        command = [*SIAFU, "shop", "serve", "--transport", "http", "--database", folder.database(program).name]
        own = clean_environment(SIAFU_IDENTITY_KEY=key, SIAFU_PAYMENTS_URL=url)
        async with server(f"{program}-shop", command, folder=folder.path, environment=own) as shop:
            yield shop, url


def _settings(shop: str, lease: float | None) -> dict[str, dict[str, object]]:
    """siafu's settings; the rules of the shop's tools are those that the shop stands for."""
    rules = {f'tools.effects."{name}"': msgspec.to_builtins(rule) for name, rule in SHOP_RULES.items()}
    if lease is not None:
        rules = {name: {**rule, "lease_seconds": lease} for name, rule in rules.items()}
    return {
        "models": {"strong": STRONG, "cheap": CHEAP},
        "limits": {"concurrency": CONCURRENCY},
        "mcp_servers.shop": {"url": shop, "identity": "siafu"},
        **{section: {k: v for k, v in rule.items() if v is not None} for section, rule in rules.items()},
    }


def storm(requests: int) -> dict[str, object]:
    """The endpoint's bad days: now and then a 500, rarely a 503, and once a storm: no matter how slowly one asks,
    every call is refused for a while.
    """
    rule = {"kind": "429", "skip": requests // 4, "times": max(3, requests // 8), "form": "seconds", "wait": 1}
    return {"rates": "500:1%,503:0.3%", "rules": [rule]}


def payment_faults(owed: Iterable[Due]) -> list[dict[str, object]]:
    """The provider's bad days, the same for both programs: of four refunds the first answer is lost or a 500, although
    the money was paid. Only four, as the shop begins no refund for a while after five in a row.
    """
    kinds = ("lost", "error_after", "lost", "error_after")
    alone = [due for due in owed if not due.by_person]
    chosen = alone[:: max(1, len(alone) // len(kinds))]
    return [{"kind": kind, "match": due.payment} for kind, due in zip(kinds, chosen, strict=False)]


async def _run(
    program: Program, endpoint: Endpoint, reader: Reader, options: Options, folder: Folder, listen: Listener
) -> Ran:
    watch = Watch(endpoint, reader)
    return await run(program, watch, listen, total=options.requests, folder=folder.path, seconds=options.seconds)


def _judge(
    cases: Sequence[Case],
    ran: Ran,
    lines: Sequence[notes.ResultLine],
    did: Did,
    own: Notes,
    prices: Prices,
) -> Column:
    def price(model: str, usage: Usage) -> int | None:
        rates = prices.rates(model, now)
        return None if rates is None else rates.cost(usage)

    now = time.time()
    found = Evidence(
        requests=[case.request.id for case in cases],
        calls=ran.calls,
        killed_at=ran.killed_at,
        answers=notes.answers(lines),
        tool_calls=did.tool_calls,
        refunds=did.refunds,
        notes=own,
        wall=ran.wall,
    )
    return judge(found, price)


async def _did(program: str, folder: Folder, cases: Sequence[Case]) -> Did:
    """What a program that has ended has done, once the shop has found out what became of every refund.

    Raises: ConfigError, DemoFailed, StoreError.
    """
    async with contextlib.aclosing(ShopDatabase(folder.database(program))) as shop:
        deadline = time.monotonic() + SETTLE_SECONDS
        refunds = await shop.run(_refunds)
        while _UNSETTLED & {state for _, state in refunds}:
            if time.monotonic() > deadline:
                raise DemoFailed(f"the shop did not find out within {SETTLE_SECONDS:.0f} s what became of its refunds")
            await asyncio.sleep(POLL_SECONDS)
            refunds = await shop.run(_refunds)
        calls = shop.calls(MAX_CALLS)
    waiting = {payment for payment, state in refunds if state == "pending_approval"}
    return Did(
        tool_calls=[
            ToolCall(what=(call.customer, call.request, call.tool, call.arguments_sha256), at=call.at)
            for call in calls
            if call.tool != REFUND
        ],
        refunds=judge_refunds(dues(cases), payouts(folder.ledger(program)), waiting),
    )


def _refunds(tx: Transaction) -> list[tuple[str, str]]:
    """Payment and state of every refund in the shop's books."""
    return [
        (row["psp_payment_ref"], row["state"]) for row in tx.rows("SELECT psp_payment_ref, state FROM refund_intent")
    ]


def _ledger(where: Place, cases: Sequence[Case]) -> Notes:
    with Report(where.journal) as report:
        return notes.from_ledger(report, where.run, [case.request.id for case in cases])


def _spent(where: Place) -> Spent:
    with Spending(where.journal) as ledger:
        total = ledger.total(where.run)
    return Spent(least_pico=total.usd_pico, most_pico=total.usd_pico + total.unknown_pico, unknown_calls=total.unknown)


__all__ = ["DemoFailed", "Options", "Outcome", "show"]
