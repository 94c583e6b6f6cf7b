"""Budgets of roles: which calls they hold, what is charged there, and what is known of a process that is gone."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest

import siafu
from siafu.errors import BudgetReached, CallTimeout, ModelError, RateLimited, UnpricedModel
from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatAnswer, ChatRequest, Usage
from siafu.gateway.day_budgets import DayBudgeted
from siafu.gateway.endpoint import PlainReply, Reply
from siafu.gateway.meter import Books, Metered
from siafu.gateway.pricing import Price, Prices
from siafu.gateway.shared import Daily, Slices, client_budgets, day_budget
from siafu.observe.calls import CallContext, Heat
from siafu.observe.events import nobody
from siafu.pace.clock import SystemClock, VirtualClock
from siafu.store.budgets import MIGRATIONS, SCHEMA, Budget, Budgets
from siafu.store.database import Database
from siafu.store.records import AttemptOpened, AttemptSettled
from siafu.store.sqlite import SqliteStore

from .conftest import KEY, LineLedger
from .fake_upstream import OK, http, upstream
from .test_shared_budget import Bank

PRICES = Prices([Price(model="m", input=Decimal(1), output=Decimal(1))], table=False)
ASK = ChatRequest(model="m", messages=[{"role": "user", "content": "환불"}], max_tokens=10)
MICRO = 10**6  # pico-dollars a token


class Line:
    """DayBudgeted > Metered > an upstream that answers with 5 tokens of input and 5 of output, or fails so."""

    def __init__(self, limit: int) -> None:
        self.clock, self.ledger, self.sent = VirtualClock(), LineLedger(), 0
        self.error: ModelError | None = None
        self.hangs = False
        self.last = ASK
        bank = Bank()
        self.day = Daily(limit, Slices(bank, self.clock), role="refund")
        accounts = Accounts(roles={"refund": self.day})
        self.books = Books(prices=PRICES, ledger=self.ledger, accounts=accounts)
        metered = Metered(self, self.books, clock=self.clock, upstream="u", observer=nobody)
        self.top = DayBudgeted(metered, self.books, self.clock)

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        self.sent += 1
        self.last = request
        await asyncio.sleep(0)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return PlainReply(ChatAnswer(message={}, content="ok", usage=Usage(input=5, output=5), model=request.model))

    async def ask(self, role: str = "refund", request: ChatRequest = ASK) -> Any:
        return await self.top.open(request, CallContext(run="r", role=role))

    @property
    def spent(self) -> tuple[int, int]:
        account = self.day.today()
        return account.spent, account.reserved


async def test_a_role_keeps_its_budget_and_others_do_not_feel_it() -> None:
    line = Line(limit=200 * MICRO)
    results = await asyncio.gather(*(line.ask() for _ in range(60)), return_exceptions=True)
    reached = [result for result in results if isinstance(result, BudgetReached)]
    assert reached and reached[0].budget == "role" and "[budgets] roles" in reached[0].message
    assert 0 < line.spent[0] <= 200 * MICRO and line.spent == (10 * MICRO * line.sent, 0)
    before = line.sent
    await asyncio.gather(*(line.ask("desk") for _ in range(5)))
    assert line.sent == before + 5 and line.spent == (10 * MICRO * before, 0)


@pytest.mark.parametrize(
    "error",
    [None, RateLimited("x", status=429), CallTimeout("x", phase="first_byte"), CallTimeout("x", phase="connect")],
)
async def test_what_is_charged_is_what_the_ledger_charges(error: ModelError | None) -> None:
    line = Line(limit=10**12)
    line.error = error
    await asyncio.gather(line.ask(), return_exceptions=True)
    assert line.spent == (sum(each.usd_pico or 0 for each in line.ledger.ended), 0)


async def test_a_call_that_is_cancelled_is_charged_what_it_may_have_cost() -> None:
    line = Line(limit=10**12)
    line.hangs = True
    call = asyncio.create_task(line.ask())
    while not line.sent:
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    (ended,) = line.ledger.ended
    assert line.spent == (ended.usd_pico, 0) and not ended.usage_known


@pytest.mark.parametrize("heat", [None, Heat()])
async def test_a_call_that_is_cancelled_before_it_is_sent_is_charged_nothing_as_in_the_ledger(
    heat: Heat | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, written = Line(limit=10**12), asyncio.Event()
    if heat is not None:
        heat.left_at = 1.0  # at another upstream, before

    write = line.ledger.open

    async def slowly(opened: AttemptOpened) -> None:
        await write(opened)
        written.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(line.ledger, "open", slowly)
    call = asyncio.create_task(line.top.open(ASK, CallContext(run="r", role="refund", heat=heat)))
    await written.wait()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert [each.usd_pico for each in line.ledger.ended] == [0]
    assert line.spent == (0, 0)


async def test_without_a_price_nothing_is_sent_unless_that_is_allowed() -> None:
    line = Line(limit=10**12)
    strange = msgspec.structs.replace(ASK, model="strange", max_tokens=None)
    with pytest.raises(UnpricedModel, match="the role refund has a budget"):
        await line.ask(request=strange)
    assert len(line.ledger.opened) == 0
    line.books.accounts.set("r", limit=None, allow_unpriced=True)
    await line.ask(request=strange)
    assert line.sent == 1 and line.spent == (0, 0) and line.last.max_tokens is None  # nothing to be bounded by
    await line.ask(request=msgspec.structs.replace(ASK, max_tokens=None))
    assert line.last.max_tokens == line.books.max_output


async def test_near_its_budget_a_role_asks_the_cheaper_model() -> None:
    line = Line(limit=1000 * MICRO)
    await line.ask()
    pressed = [
        line.books.accounts.pressed("r", Decimal(share), role=role)
        for share, role in (("0.01", "refund"), ("0.01", "x"))
    ]
    assert pressed == [True, False]


async def test_of_a_process_that_is_gone_only_what_belongs_to_a_budget_is_charged(tmp_path: Path) -> None:
    journal = tmp_path / "run.db"
    store = SqliteStore(journal).run("r")
    await store.begin("")
    now = SystemClock().wall()
    calls = (("refund", "u#1", "key_1/t"), ("desk", "u#2", "key_12/t"), ("refund", "u#2", "t"))
    for number, (who, key, task) in enumerate(calls):
        name = f"gone-{number}"
        await store.ledger.open(
            AttemptOpened(
                attempt=name, run="r", task=task, step="", agent="a", role=who, model="m", upstream="u", opened_at=now,
                key=key,
            )
        )  # fmt: skip
        store.ledger.settle(AttemptSettled(attempt=name, outcome="ok", settled_at=now, usd_pico=10**number))
    await store.aclose()
    database = Database(tmp_path / "budgets.db", MIGRATIONS, what="budgets", schema=SCHEMA)
    try:
        (of_day, of_all) = client_budgets(now, "key_1", day=1000, total=1000, spent=(30, 500))
        cases: list[tuple[Budget, int]] = [
            (day_budget(now, 1000), 111),
            (day_budget(now, 1000, role="refund"), 101),
            (day_budget(now, 1000, key="u#2"), 110),
            (of_day, 501),  # what the day began with, and what was charged since
            (of_all, 531),
        ]
        for budget, spent in cases:
            await Budgets(database, "gone", journal, 0.001).sync(budget, spent=0, held=0, need=400, want=400)
            await asyncio.sleep(0.01)
            loan = await Budgets(database, "here", None).sync(budget, spent=0, held=0, need=1, want=1)
            assert loan.left == 1000 - spent
    finally:
        await database.aclose()


async def test_a_run_ends_when_a_role_has_used_its_budget(tmp_path: Path) -> None:
    settings = tmp_path / "siafu.toml"
    settings.write_text(
        f'home = "{tmp_path}"\n[budgets]\nroles = {{ writer = "0.0001 USD" }}\n'
        '[prices.m]\ninput = "1"\noutput = "1"\ndate = 2026-01-01\n'
    )
    agent = siafu.Agent(name="a", role="writer", max_tokens=10)
    async with upstream([http(OK)]) as fake:
        run = siafu.map(
            agent, range(60), base_url=fake.base_url, api_key=KEY, model="m", config=settings, concurrency=1
        )
        done = [result async for result in run]
        summary = run.summary
    assert (summary.stopped, summary.budget, summary.failed) == ("budget_reached", "role", 0)
    assert 0 < len(done) < 60 and summary.left > 0
