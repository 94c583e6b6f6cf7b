from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from siafu.errors import (
    AccessRefused,
    BudgetReached,
    CallTimeout,
    DeadlineReached,
    MalformedReply,
    ModelError,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    StoreError,
    UnpricedModel,
    Unreachable,
    UpstreamFault,
)
from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatAnswer, ChatRequest, Usage
from siafu.gateway.meter import Books, MemoryLedger, Metered
from siafu.gateway.pricing import Price, Prices
from siafu.gateway.scripted import Scripted, say
from siafu.gateway.wire import encode
from siafu.observe.calls import CallContext
from siafu.observe.events import AttemptEnded, Event
from siafu.pace.clock import VirtualClock

from .conftest import LineLedger

PRICES = Prices(
    [
        Price(model="m", input=Decimal("0.60"), cached=Decimal("0.15"), output=Decimal("2.50"), date="2026-01-01"),
        Price(model="dear", input=Decimal(6), output=Decimal(25)),
    ],
    table=False,
)
ASK = ChatRequest(model="m", messages=[{"role": "user", "content": "안녕"}], max_tokens=100)
WORST = len(encode(ASK)) * 600_000 + 100 * 2_500_000
CONTEXT = CallContext(run="r", task="t", step="#3", agent="a", role="order", attempts=1)


class Line:
    def __init__(self, script: Any, *, limit: int | None = None, **account: Any) -> None:
        self.ledger = LineLedger()
        self.accounts = Accounts()
        self.account = self.accounts.set("r", limit=limit, **account)
        self.events: list[Event] = []
        self.script = Scripted(script)
        books = Books(prices=PRICES, ledger=self.ledger, accounts=self.accounts, max_output=4096)
        self.metered = Metered(self.script, books, clock=VirtualClock(), upstream="u", observer=self.events.append)

    async def ask(self, request: ChatRequest = ASK, context: CallContext = CONTEXT) -> ChatAnswer:
        return await (await self.metered.open(request, context)).message()


def answer(usage: Usage | None = None, model: str = "m") -> ChatAnswer:
    return ChatAnswer(message={"role": "assistant", "content": "ok"}, content="ok", usage=usage, model=model)


async def test_f39_an_answer_carries_its_cost_and_so_does_its_line() -> None:
    line = Line([answer(Usage(input=2006, cached=1920, output=300, reasoning=40))])
    got = await line.ask()
    assert got.usd_pico == 1_089_600_000 and got.attempts == 2
    (opened,), (settled,) = line.ledger.opened, line.ledger.ended
    assert opened.attempt == settled.attempt
    assert (opened.run, opened.task, opened.step, opened.agent, opened.role) == ("r", "t", "#3", "a", "order")
    assert (opened.upstream, opened.model, opened.reserved_pico) == ("u", "m", WORST)
    assert (settled.outcome, settled.usage_known, settled.usd_pico) == ("ok", True, 1_089_600_000)
    assert (settled.input_tokens, settled.cached_tokens, settled.output_tokens) == (2006, 1920, 300)
    assert (settled.reasoning_tokens, settled.served_model, settled.status) == (40, "m", 200)
    assert (settled.price_source, settled.price_date) == ("configured", "2026-01-01")
    assert (line.account.spent, line.account.reserved) == (1_089_600_000, 0)
    (event,) = line.events
    assert isinstance(event, AttemptEnded) and event.usd_pico == 1_089_600_000 and event.outcome == "ok"


async def test_f16_without_usage_the_cost_is_unknown_and_the_reservation_is_charged() -> None:
    line = Line([answer(None)])
    assert (await line.ask()).usd_pico is None
    (settled,) = line.ledger.ended
    assert (settled.outcome, settled.usage_known, settled.usd_pico) == ("ok", False, WORST)
    assert (line.account.spent, line.account.unknown) == (WORST, 1)


async def test_f41_every_attempt_is_booked() -> None:
    line = Line([answer(Usage(input=100, output=o)) for o in (50, 60, 40)])
    for _ in range(3):
        await line.ask()
    assert len(line.ledger.ended) == 3 and len({e.attempt for e in line.ledger.ended}) == 3
    assert sum(e.input_tokens for e in line.ledger.ended) == 300
    assert sum(e.output_tokens for e in line.ledger.ended) == 150


async def test_the_model_that_answered_is_charged() -> None:
    line = Line([answer(Usage(input=10), model=name) for name in ("dear", "unheard-of")])
    assert (await line.ask()).usd_pico == 60_000_000
    assert (await line.ask()).usd_pico == 6_000_000
    assert [e.served_model for e in line.ledger.ended] == ["dear", "unheard-of"]


FREE = [
    (RateLimited("x", status=429), "refused"),
    (RateLimited("in a 200", status=200), "refused"),
    (RequestRefused("x", status=400), "refused"),
    (AccessRefused("x", status=401), "refused"),
    (QuotaExhausted("x", status=402), "refused"),
    (UpstreamFault("x", status=409), "refused"),
    (Overloaded("x", status=503), "failed"),
    (UpstreamFault("x", status=500), "failed"),
    (Unreachable("x"), "failed"),
    (CallTimeout("x", phase="connect"), "abandoned"),
]
UNKNOWN = [
    (UpstreamFault("reset"), "failed"),
    (MalformedReply("x", status=200), "failed"),
    (CallTimeout("x", phase="total"), "abandoned"),
    (DeadlineReached("x"), "abandoned"),
    (RuntimeError("a bug"), "failed"),
]


@pytest.mark.parametrize(("error", "outcome"), FREE)
async def test_what_did_no_work_costs_nothing(error: ModelError, outcome: str) -> None:
    line = Line([error], limit=WORST)
    with pytest.raises(type(error)):
        await line.ask()
    (settled,) = line.ledger.ended
    assert (settled.outcome, settled.usage_known, settled.usd_pico) == (outcome, True, 0)
    assert settled.code == error.code
    assert (line.account.spent, line.account.reserved) == (0, 0)


@pytest.mark.parametrize(("error", "outcome"), UNKNOWN)
async def test_what_may_have_worked_is_charged_at_its_reservation(error: Exception, outcome: str) -> None:
    line = Line([error], limit=WORST)
    with pytest.raises(type(error)):
        await line.ask()
    (settled,) = line.ledger.ended
    assert (settled.outcome, settled.usage_known, settled.usd_pico) == (outcome, False, WORST)
    assert (line.account.spent, line.account.reserved, line.account.unknown) == (WORST, 0, 1)


async def test_a_cancelled_call_is_charged_at_its_reservation() -> None:
    async def hang(request: ChatRequest, context: CallContext) -> ChatAnswer:
        await asyncio.sleep(1000)
        raise AssertionError

    line = Line(hang, limit=WORST)
    task = asyncio.create_task(line.ask())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert line.account.reserved == WORST
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (settled,) = line.ledger.ended
    assert (settled.outcome, settled.code, settled.usd_pico) == ("abandoned", "cancelled", WORST)
    assert (line.account.spent, line.account.reserved) == (WORST, 0)


async def test_f40_a_budget_and_no_price_is_refused_before_anything_is_sent() -> None:
    line = Line(["ok"], limit=10**12)
    with pytest.raises(UnpricedModel, match=r"'kimi-k2\.5-preview-x'"):
        await line.ask(ChatRequest(model="kimi-k2.5-preview-x", messages=[]))
    assert not line.script.requests and not line.ledger.opened
    allowed = Line(["ok"], limit=10**12, allow_unpriced=True)
    assert (await allowed.ask(ChatRequest(model="x", messages=[]))).usd_pico is None
    assert allowed.account.unpriced == 1
    free = Line(["ok"])
    assert (await free.ask(ChatRequest(model="x", messages=[]))).usd_pico is None
    assert free.ledger.opened[0].reserved_pico is None and free.account.unpriced == 1


async def test_a_call_that_could_exceed_the_budget_is_not_sent() -> None:
    line = Line(lambda request, context: answer(Usage(input=10, output=10)), limit=WORST - 1)
    with pytest.raises(BudgetReached, match="raise the budget"):
        await line.ask()
    assert not line.script.requests and not line.ledger.opened
    await line.ask(ChatRequest(model="m", messages=ASK.messages, max_tokens=99))


async def test_a_call_under_a_budget_always_has_a_maximum_of_output() -> None:
    line = Line(lambda request, context: answer(Usage()), limit=10**12)
    await line.ask(ChatRequest(model="m", messages=[]))
    await line.ask(ChatRequest(model="m", messages=[], max_tokens=7))
    await line.ask(ChatRequest(model="m", messages=[], extra={"max_completion_tokens": 9}))
    await line.ask(ChatRequest(model="m", messages=[], max_tokens=7, extra={"n": 3}))
    for endless in (-1, 0):
        await line.ask(ChatRequest(model="m", messages=[], max_tokens=endless))
    assert [r.max_tokens for r in line.script.requests] == [4096, 7, None, 7, 4096, 4096]
    reserved = [opened.reserved_pico or 0 for opened in line.ledger.opened]
    assert reserved[3] - reserved[1] >= 14 * 2_500_000, "three alternatives are three outputs"
    free = Line(["ok"])
    await free.ask(ChatRequest(model="m", messages=[]))
    assert free.script.requests[0].max_tokens is None
    assert free.ledger.opened[0].reserved_pico is None, "without a maximum there is no largest cost"


async def test_g16_a_crowd_stays_within_the_budget_and_uses_it() -> None:
    line = Line(lambda request, context: answer(Usage(input=50, output=100)), limit=20 * WORST)
    results = await asyncio.gather(*(line.ask() for _ in range(300)), return_exceptions=True)
    spent = sum(r.usd_pico or 0 for r in results if isinstance(r, ChatAnswer))
    assert spent == line.account.spent <= 20 * WORST
    assert 20 * WORST - spent < WORST, "it stops only when the next call might not fit"
    assert all(isinstance(r, ChatAnswer | BudgetReached) for r in results)


async def test_nothing_is_sent_when_the_line_cannot_be_written() -> None:
    class Broken(MemoryLedger):
        async def open(self, line: Any) -> None:
            raise StoreError("disk full")

    script = Scripted(["ok"])
    accounts = Accounts()
    books = Books(prices=PRICES, ledger=Broken(), accounts=accounts)
    metered = Metered(script, books, clock=VirtualClock(), upstream="u", observer=lambda event: None)
    with pytest.raises(StoreError):
        await metered.open(ASK, CONTEXT)
    assert not script.requests
    assert (accounts.of("r").spent, accounts.of("r").reserved) == (0, 0)


async def test_a_call_cancelled_while_its_line_is_written_costs_nothing_and_leaves_no_open_line() -> None:
    class Hanging(MemoryLedger):
        async def open(self, line: Any) -> None:
            await super().open(line)
            await asyncio.sleep(1000)

    ledger, accounts, script = Hanging(), Accounts(), Scripted(["ok"])
    books = Books(prices=PRICES, ledger=ledger, accounts=accounts)
    metered = Metered(script, books, clock=VirtualClock(), upstream="u", observer=lambda event: None)
    task = asyncio.create_task(metered.open(ASK, CONTEXT))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not script.requests and not ledger.lines and ledger.usd_pico == 0
    assert (accounts.of("r").spent, accounts.of("r").reserved) == (0, 0)


async def test_the_line_is_written_before_the_request_is_sent() -> None:
    order: list[str] = []

    class Slow(MemoryLedger):
        async def open(self, line: Any) -> None:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            order.append("durable")

    def script(request: ChatRequest, context: CallContext) -> str:
        order.append("sent")
        return "ok"

    books = Books(prices=PRICES, ledger=Slow(), accounts=Accounts())
    metered = Metered(Scripted(script), books, clock=VirtualClock(), upstream="u", observer=lambda event: None)
    await metered.open(ASK, CONTEXT)
    assert order == ["durable", "sent"]


async def test_the_memory_ledger_keeps_totals_and_not_lines() -> None:
    ledger = MemoryLedger()
    books = Books(prices=PRICES, ledger=ledger, accounts=Accounts())
    script = Scripted(lambda request, context: say("ok"))
    metered = Metered(script, books, clock=VirtualClock(), upstream="u", observer=lambda event: None)
    for _ in range(100):
        await metered.open(ASK, CONTEXT)
    assert (ledger.settled, len(ledger.lines), ledger.usd_pico) == (100, 0, 100 * (10 * 600_000 + 2 * 2_500_000))
