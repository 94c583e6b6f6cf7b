"""Second requests for slow calls: when, how many, at whose cost, and what the ledger says; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from siafu.apps.costs.report import cost_report
from siafu.errors import BudgetReached, ModelError, Overloaded, QuotaExhausted, UpstreamFault
from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatAnswer, ChatRequest, Usage
from siafu.gateway.endpoint import PlainReply, Reply
from siafu.gateway.guard import Guard, Guarded, Patience
from siafu.gateway.hedge import ENOUGH, Hedge, Hedging, Times
from siafu.gateway.limits import Limited, Limits
from siafu.gateway.meter import Books, Metered
from siafu.gateway.pricing import Price, Prices
from siafu.gateway.retry import Retrying, RetryRules
from siafu.gateway.wire import encode
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, Hedged
from siafu.pace.clock import VirtualClock
from siafu.store.records import HEDGE_LOST
from siafu.store.sqlite import SqliteStore

from .conftest import LineLedger

PRICES = Prices([Price(model="m", input=Decimal(1), output=Decimal(2))], table=False)
ASK = ChatRequest(model="m", messages=[{"role": "user", "content": "안녕"}], max_tokens=10)
RATES = PRICES.rates("m", 0.0)
assert RATES is not None
WORST = RATES.ceiling(len(encode(ASK)), 10)
Plays = Callable[[int], float | ModelError]


class Line:
    """Retrying > Hedging > Guarded > Limited > Metered > an upstream that plays `script`: for the n-th request, seconds
    until it is answered, or what it fails with at once. It answers in one second before `warm` is called.
    """

    def __init__(
        self,
        script: Plays,
        *,
        share: str = "0.5",
        limit: int | None = None,
        prices: Prices = PRICES,
        limits: Limits | None = None,
    ) -> None:
        self.clock, self.events, self.accounts = VirtualClock(), list[Event](), Accounts()
        self.ledger = LineLedger()
        self.account = self.accounts.set("r", limit=limit, allow_unpriced=True)
        self.sent: list[CallContext] = []
        self.in_flight = 0
        self._script: Plays = lambda number: 1.0
        self._after = script
        common: dict[str, Any] = {"clock": self.clock, "observer": self.events.append}
        books = Books(prices=prices, ledger=self.ledger, accounts=self.accounts)
        metered = Metered(self, books, upstream="u", **common)
        limited = Limited(metered, limits or Limits(), rng=Random(1), upstream="u", **common)
        guarded = Guarded(limited, Guard(Patience(), **common), upstream="u", lane="u")
        worst = partial(self._worst, prices)
        hedge = Hedge(share=Decimal(share))
        self.hedging = Hedging(guarded, hedge, worst=worst, accounts=self.accounts, **common)
        self.retrying = Retrying(self.hedging, RetryRules(), rng=Random(1), upstream="u", **common)

    def _worst(self, prices: Prices, request: ChatRequest) -> int | None:
        return None if prices.rates("m", 0.0) is None else WORST

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        self.sent.append(context)
        self.in_flight += 1
        try:
            played = self._script(len(self.sent))
            if isinstance(played, ModelError):
                raise played
            await self.clock.sleep(played)
        finally:
            self.in_flight -= 1
        answer = ChatAnswer(message={"role": "assistant"}, content="ok", usage=Usage(input=10, output=5), model="m")
        return PlainReply(answer)

    async def ask(self, step: str = "", **context: Any) -> Any:
        return await (await self.retrying.open(ASK, CallContext(run="r", task="t", step=step, **context))).message()

    async def warm(self, calls: int = 200) -> None:
        """All take equally long here, so one that is a moment longer under way would be slow: no hedges yet."""
        hedge, self.hedging._hedge = self.hedging._hedge, Hedge(share=Decimal(0))
        for number in range(calls):
            await self.ask(f"w{number}")
        self.hedging._hedge = hedge
        self.sent.clear()
        self._script = self._after

    @property
    def hedges(self) -> int:
        return sum(isinstance(event, Hedged) for event in self.events)

    async def settled(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        assert self.in_flight == 0


def first_is_slow(number: int) -> float:
    return 60.0 if number == 1 else 1.0


def test_slow_is_slower_than_95_of_100_calls() -> None:
    times = Times()
    for seconds in range(1, ENOUGH):
        times.add(float(seconds))
    known: list[float | None] = [times.slow]
    times.add(float(ENOUGH))
    known.append(times.slow)
    assert known == [None, 19.0]
    for seconds in range(1, 201):
        times.add(float(seconds))
    assert times.slow == 190.0


async def test_a_slow_call_is_asked_a_second_time_and_the_first_answer_is_taken() -> None:
    line = Line(first_is_slow)
    await line.warm()
    start = line.clock.now()
    answer = await line.ask("s")
    assert line.clock.now() - start == pytest.approx(2.0)
    assert [(c.attempts, c.step) for c in line.sent] == [(0, "s"), (1, "s")] and answer.attempts == 2
    await line.settled()
    won, lost = line.ledger.ended[-2:]
    assert (lost.outcome, lost.code, lost.usage_known, lost.usd_pico) == ("abandoned", HEDGE_LOST, False, WORST)
    assert (won.outcome, won.usd_pico) == ("ok", 20_000_000)
    assert line.account.hedged == WORST and line.account.reserved == 0
    assert [(e.model, e.task, e.seconds) for e in line.events if isinstance(e, Hedged)] == [("m", "t", 1.0)]


async def test_the_first_request_may_still_win() -> None:
    line = Line(lambda number: 1.5 if number == 1 else 60.0)
    await line.warm()
    answer = await line.ask()
    assert len(line.sent) == 2 and answer.attempts == 1
    await line.settled()
    assert [each.code for each in line.ledger.ended[-2:]] == ["", HEDGE_LOST]


@pytest.mark.parametrize(("calls", "script"), [(ENOUGH - 1, first_is_slow), (200, lambda number: 1.0)])
async def test_without_measurements_or_slowness_there_is_none(calls: int, script: Plays) -> None:
    line = Line(script)
    await line.warm(calls)
    await line.ask()
    assert line.hedges == 0 and len(line.sent) == 1


async def test_a_failure_is_asked_again_and_what_is_asked_again_is_not_hedged() -> None:
    line = Line(lambda number: UpstreamFault("x") if number == 1 else 60.0)
    await line.warm()
    assert (await line.ask()).attempts == 2
    assert line.hedges == 0 and len(line.sent) == 2


async def test_g4_both_failing_are_two_of_the_three_attempts() -> None:
    line = Line(lambda number: 5.0)

    class Fails:
        """In front of the upstream: all its answers are lost on the way."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        async def open(self, request: ChatRequest, context: CallContext) -> Reply:
            await self.inner.open(request, context)
            raise UpstreamFault("cut")

    await line.warm()
    line.hedging.inner = Fails(line.hedging.inner)
    with pytest.raises(UpstreamFault) as caught:
        await line.ask()
    assert line.hedges == 1 and len(line.sent) == 3 == caught.value.attempts
    assert [c.attempts for c in line.sent] == [0, 1, 2]


async def test_the_second_request_stays_within_its_share_of_the_calls() -> None:
    line = Line(lambda number: 60.0 if number % 2 else 1.0, share="0.05", prices=Prices(table=False))
    await line.warm(100)
    for _ in range(20):
        await line.ask()
    assert 3 <= line.hedges <= 0.05 * 120


async def test_and_within_its_share_of_the_money() -> None:
    line = Line(lambda number: 60.0 if number % 2 else 1.0, share="0.25")
    await line.warm(200)
    for _ in range(40):
        await line.ask()
    assert line.account.hedged <= Decimal("0.25") * line.account.spent
    assert 10 <= line.hedges <= 20


async def test_there_is_none_when_most_of_a_budget_is_used() -> None:
    line = Line(first_is_slow, limit=6_000_000_000)
    await line.warm()
    line.account.spent = 4_800_000_000
    await line.ask()
    assert line.hedges == 0
    line = Line(first_is_slow, limit=60_000_000_000)
    await line.warm()
    await line.ask()
    assert line.hedges == 1, "the control"


async def test_it_does_not_wait_for_room_in_a_budget() -> None:
    """Other calls hold what is left, so the second request could leave only when one of them has ended."""
    line = Line(lambda number: 60.0 if number == 1 else 1.0, limit=10**12)
    await line.warm()
    start = line.clock.now()
    call = asyncio.create_task(line.ask("s"))
    await line.clock.sleep(0.5)
    line.account.limit = line.account.spent + line.account.reserved + WORST - 1
    line.hedging._hedge = Hedge(share=Decimal("0.5"), soft=Decimal(2))
    await call
    assert line.clock.now() - start == pytest.approx(60.0) and len(line.sent) == 1
    assert line.hedges == 1 and not line.account.waiting, "it was tried, and given up at once"


async def test_there_is_none_while_the_limits_leave_no_room() -> None:
    line = Line(first_is_slow, limits=Limits(concurrency=1))
    await line.warm()
    start = line.clock.now()
    await line.ask()
    assert len(line.sent) == 1 and line.clock.now() - start == pytest.approx(60.0)


async def test_there_is_none_for_a_call_that_still_waits_for_its_turn() -> None:
    line = Line(lambda number: 1.0, limits=Limits(concurrency=1))
    await line.warm()
    await asyncio.gather(*(line.ask() for _ in range(20)))
    assert line.hedges == 0 and len(line.sent) == 20


@pytest.mark.parametrize("error", [Overloaded("x", status=503), QuotaExhausted("x"), BudgetReached("x")])
async def test_a_second_request_that_fails_leaves_the_first_alone(error: Exception) -> None:
    class Refuses:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        async def open(self, request: ChatRequest, context: CallContext) -> Reply:
            if context.heat is not None and context.heat.spare:
                raise error
            reply: Reply = await self.inner.open(request, context)
            return reply

    line = Line(lambda number: 10.0)
    await line.warm()
    line.hedging.inner = Refuses(line.hedging.inner)
    assert (await line.ask()).content == "ok" and len(line.sent) == 1


async def test_cancelling_the_call_cancels_both_and_neither_is_told_as_lost() -> None:
    line = Line(lambda number: 60.0)
    await line.warm()
    call = asyncio.create_task(line.ask())
    await line.clock.sleep(5.0)
    assert line.in_flight == 2
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await line.settled()
    assert [each.code for each in line.ledger.ended[-2:]] == ["cancelled"] * 2
    assert line.account.hedged == 0 and line.account.reserved == 0


async def test_the_cost_report_shows_what_second_requests_cost(tmp_path: Path) -> None:
    line = Line(first_is_slow)
    await line.warm(60)
    await line.ask("s")
    await line.settled()
    path = tmp_path / "run.db"
    store = SqliteStore(path).run("r")
    try:
        await store.begin("")
        for opened in line.ledger.opened:
            await store.ledger.open(opened)
        for ended in line.ledger.ended:
            store.ledger.settle(ended)
    finally:
        await store.aclose()
    report = cost_report([path], ("model",))
    (waste,) = report.waste
    assert waste.key == ("hedged", HEDGE_LOST)
    assert (waste.sums.calls, waste.sums.wasted_pico, waste.sums.wasted_unknown_pico) == (1, 0, WORST)
    assert (report.total.calls, report.total.answers, report.total.wasted) == (62, 61, 1)
