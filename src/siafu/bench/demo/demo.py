"""The whole show: one endpoint, one shop, the glue and then siafu, and what the records say about both."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import AsyncIterator, Hashable, Sequence
from pathlib import Path

import aiohttp
import msgspec

from siafu.apps.filerun.place import Place, place
from siafu.apps.support.shop.database import MAX_CALLS, ShopDatabase
from siafu.bench.demo import notes
from siafu.bench.demo.account import Column, Evidence, Notes, judge
from siafu.bench.demo.phases import Listener, Program, Ran, Watch, run
from siafu.bench.demo.place import Case, Folder, clean_environment, new_key, write_cases, write_settings
from siafu.bench.demo.seen import Reader
from siafu.bench.demo.servers import SIAFU, DemoFailed, Endpoint, server
from siafu.bench.demo.summary import Category, Parallel, by_category, parallel
from siafu.gateway.chat import Usage
from siafu.gateway.pricing import Prices
from siafu.store.report import Report, Tally

GLUE = Path(__file__).with_name("glue.py")
STRONG, CHEAP = "kimi-k2.5", "deepseek-v3.2"
CONCURRENCY = 50


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """seed: of the requests and of the endpoint. rpm: the endpoint's limit, requests a minute. latency: a
    `siafu sim --latency`. glue: the other program. seconds: the longest each run of a program may take.
    """

    requests: int = 100
    seed: int = 7
    rpm: float = 1500.0
    latency: str = "default"
    glue: Path = GLUE
    seconds: float = 120.0


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

    Raises: DemoFailed, InputError, StoreError.
    """
    cases = write_cases(folder, options.requests, options.seed)
    key = new_key()
    reader = Reader({case.request.id: case.request.text for case in cases})
    async with _stage(options, folder, key) as (endpoint, shop):
        write_settings(
            folder,
            {
                "models": {"strong": STRONG, "cheap": CHEAP},
                "limits": {"concurrency": CONCURRENCY},
                "mcp_servers.shop": {"url": shop, "identity": "siafu"},
            },
        )
        reach = {"OPENAI_BASE_URL": endpoint.url, "OPENAI_API_KEY": "any-key-will-do"}
        glue = Program(
            name="glue" if options.glue == GLUE else options.glue.name[:24],
            command=[sys.executable, options.glue.absolute(), folder.requests.name, "glue-results.jsonl"],
            environment=clean_environment(**reach, SHOP_URL=shop, SHOP_KEY=key),
            log=folder.path / "glue.log",
            output=folder.path / "glue-output.jsonl",
        )
        siafu = Program(
            name="siafu",
            command=[*SIAFU, "support", "run", folder.requests.name, "--out", folder.results.name, "--quiet"],
            environment=clean_environment(**reach, SIAFU_IDENTITY_KEY=key),
            log=folder.path / "siafu.log",
            output=folder.path / "siafu-output.txt",
        )
        ran_glue = await _run(glue, endpoint, reader, options, folder, listen)
        before = len(_tool_calls(folder))
        await endpoint.reset()
        ran_siafu = await _run(siafu, endpoint, reader, options, folder, listen)
        peak = await endpoint.peak()
        prices = Prices(base_url=endpoint.url)
    tool_calls = _tool_calls(folder)
    where = place(folder.requests, folder.results, None, folder.path / ".siafu")
    told = notes.results(folder.results)
    return Outcome(
        glue=_judge(
            cases,
            ran_glue,
            notes.results(folder.path / "glue-results.jsonl"),
            tool_calls[:before],
            notes.from_log(glue.output),
            prices,
        ),
        siafu=_judge(cases, ran_siafu, told, tool_calls[before:], _ledger(where, cases), prices),
        categories=by_category(told),
        parallel=parallel(ran_siafu.calls, ran_siafu.wall, peak),
        spent=_spent(where),
        glue_exit=ran_glue.exit_code,
        siafu_exit=ran_siafu.exit_code,
    )


@contextlib.asynccontextmanager
async def _stage(options: Options, folder: Folder, key: str) -> AsyncIterator[tuple[Endpoint, str]]:
    """The endpoint and the shop's URL; both processes end with the block."""
    faults = folder.path / "faults.json"
    faults.write_bytes(msgspec.json.encode(storm(options.requests)))
    sim = [*SIAFU, "sim", "--seed", str(options.seed), "--latency", options.latency, "--keep-bodies"]
    limits = ["--rpm", str(options.rpm), "--burst", "2", "--faults", faults.name]
    shop = [*SIAFU, "shop", "serve", "--transport", "http", "--database", folder.database.name]
    clean = clean_environment()
    async with contextlib.AsyncExitStack() as stack:
        ready = await stack.enter_async_context(
            server("endpoint", [*sim, *limits], folder=folder.path, environment=clean)
        )
        url = await stack.enter_async_context(
            server("shop", shop, folder=folder.path, environment={**clean, "SIAFU_IDENTITY_KEY": key})
        )
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)))
        yield Endpoint(msgspec.json.decode(ready)["url"], session), url


def storm(requests: int) -> dict[str, object]:
    """The endpoint's bad days: now and then a 500, rarely a 503, and once a storm: no matter how slowly one asks,
    every call is refused for a while.
    """
    rule = {"kind": "429", "skip": requests // 4, "times": max(3, requests // 8), "form": "seconds", "wait": 1}
    return {"rates": "500:1%,503:0.3%", "rules": [rule]}


async def _run(
    program: Program, endpoint: Endpoint, reader: Reader, options: Options, folder: Folder, listen: Listener
) -> Ran:
    watch = Watch(endpoint, reader)
    return await run(program, watch, listen, total=options.requests, folder=folder.path, seconds=options.seconds)


def _judge(
    cases: Sequence[Case],
    ran: Ran,
    lines: Sequence[notes.ResultLine],
    tool_calls: Sequence[Hashable],
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
        tool_calls=tool_calls,
        notes=own,
        wall=ran.wall,
    )
    return judge(found, price)


def _tool_calls(folder: Folder) -> list[Hashable]:
    """Every tool call that the shop has recorded, oldest first."""
    with contextlib.closing(ShopDatabase(folder.database)) as shop:
        return [(call.customer, call.tool, call.arguments_sha256) for call in shop.calls(MAX_CALLS)]


def _ledger(where: Place, cases: Sequence[Case]) -> Notes:
    with Report(where.journal) as report:
        return notes.from_ledger(report, where.run, [case.request.id for case in cases])


def _spent(where: Place) -> Spent:
    with Report(where.journal) as report:
        total: Tally = report.totals(where.run).all
    return Spent(least_pico=total.usd_pico, most_pico=total.usd_pico + total.unknown_pico, unknown_calls=total.unknown)


__all__ = ["DemoFailed", "Options", "Outcome", "show"]
