"""Budgets of keys of upstreams: a key whose budget is used up rests until midnight, and others take over."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import siafu
from siafu.config.budgets import keys_today
from siafu.config.settings import load
from siafu.errors import BudgetReached, ModelError, RateLimited, UnpricedModel
from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatAnswer, ChatRequest, Usage
from siafu.gateway.day_budgets import DAY, DayBudgeted
from siafu.gateway.endpoint import PlainReply, Reply
from siafu.gateway.guard import Guard, Guarded, Patience
from siafu.gateway.limits import Limited, Limits
from siafu.gateway.meter import Books, Metered
from siafu.gateway.pricing import Price, Prices
from siafu.gateway.retry import Retrying, RetryRules
from siafu.gateway.routed import Lane, Routed
from siafu.gateway.shared import Daily, Slices
from siafu.observe.calls import CallContext, Heat
from siafu.observe.events import Event, LaneClosed
from siafu.pace.clock import SystemClock, VirtualClock

from .conftest import KEY, LineLedger
from .fake_upstream import OK, http, upstream
from .test_shared_budget import Bank

PRICES = Prices([Price(model="m", input=Decimal(1), output=Decimal(1))], table=False)
ASK = ChatRequest(model="m", messages=[{"role": "user", "content": "안녕하세요"}], max_tokens=10)
MICRO = 10**6  # pico-dollars a token


class Ring:
    """Retrying > Routed > keys `a#1`, `a#2` ... of one upstream, each with its budget in tokens (None = none). A call
    costs 10 tokens and may cost about a hundred.
    """

    def __init__(self, *budgets: int | None) -> None:
        self.clock, self.ledger, self.events = VirtualClock(), LineLedger(), list[Event]()
        self.errors: dict[str, ModelError] = {}  # by key, for its next call
        slices = Slices(Bank(), self.clock)
        limits = {f"a#{number}": tokens for number, tokens in enumerate(budgets, 1)}
        self.days = {id: Daily(tokens * MICRO, slices, key=id) for id, tokens in limits.items() if tokens is not None}
        self.books = Books(prices=PRICES, ledger=self.ledger, accounts=Accounts(keys=self.days))
        guard = Guard(Patience(), clock=self.clock, observer=self.events.append)
        common: dict[str, Any] = {"clock": self.clock, "rng": Random(3), "observer": self.events.append}
        lanes = []
        for id in limits:
            metered = Metered(
                Answering(self, id), self.books, clock=self.clock, upstream="a", observer=self.events.append, key=id
            )
            days = DayBudgeted(metered, self.books, self.clock, id)
            lane = Lane(
                Guarded(Limited(days, Limits(), upstream="a", **common), guard, upstream="a", lane=id),
                id=id,
                upstream="a",
            )
            lane.lacks = days.lacks
            lanes.append(lane)
        routed = Routed(lanes, (), clock=self.clock, observer=self.events.append)
        self.top = Retrying(routed, RetryRules(), upstream="", **common)

    async def ask(self, request: ChatRequest = ASK, **context: Any) -> Reply:
        return await self.top.open(request, CallContext(run="r", **context))

    def calls(self, id: str) -> int:
        return sum(line.key == id for line in self.ledger.opened)

    def spent(self, id: str) -> tuple[int, int]:
        """Tokens spent and reserved."""
        account = self.days[id].today()
        return account.spent // MICRO, account.reserved // MICRO


class Answering:
    def __init__(self, ring: Ring, id: str) -> None:
        self._ring = ring
        self._id = id

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        await asyncio.sleep(0)
        if self._id in self._ring.errors:
            raise self._ring.errors.pop(self._id)
        return PlainReply(ChatAnswer(message={}, content="ok", usage=Usage(input=5, output=5), model="m"))


async def test_when_a_key_is_used_up_the_next_one_goes_on_and_then_the_run_ends() -> None:
    ring = Ring(300, 300)
    done = await asyncio.gather(*(ring.ask() for _ in range(200)), return_exceptions=True)
    failed = [each for each in done if isinstance(each, BaseException)]
    assert failed and all(isinstance(each, BudgetReached) and each.budget == "key" for each in failed), failed
    assert "[budgets] keys" in str(failed[0]) and len(done) - len(failed) == len(ring.ledger.opened)
    for id in ring.days:
        spent, reserved = ring.spent(id)
        assert 150 < spent <= 300 and not reserved and spent == 10 * ring.calls(id)
    with pytest.raises(BudgetReached):
        await ring.ask()
    closed = sorted((event.lane, event.reason) for event in ring.events if isinstance(event, LaneClosed))
    assert closed == [("a#1", "budget_reached"), ("a#2", "budget_reached")]  # each is told once


async def test_with_a_key_without_a_budget_nobody_fails() -> None:
    ring = Ring(300, None)
    await asyncio.gather(*(ring.ask() for _ in range(300)))
    assert ring.calls("a#1") + ring.calls("a#2") == 300 and 15 < ring.calls("a#1") <= 30


async def test_a_call_that_is_too_large_for_a_key_leaves_it_to_others() -> None:
    """Else one client could take a key from everybody until midnight."""
    ring = Ring(2_000, None)
    for _ in range(4):
        await ring.ask(msgspec.structs.replace(ASK, max_tokens=100_000))
    assert (ring.calls("a#1"), ring.calls("a#2")) == (0, 4)
    for _ in range(8):
        await ring.ask()
    assert ring.calls("a#1") >= 4


async def test_who_could_still_go_on_elsewhere_waits_for_that() -> None:
    ring = Ring(1, None)
    ring.errors["a#2"] = RateLimited("x", status=429, wait=30.0)
    began = ring.clock.now()
    await asyncio.gather(*(ring.ask() for _ in range(5)))
    assert ring.clock.now() - began >= 30.0 and ring.calls("a#1") == 0


async def test_at_midnight_it_is_back() -> None:
    ring = Ring(150, None)
    await asyncio.gather(*(ring.ask() for _ in range(30)))
    before = ring.calls("a#1")
    await asyncio.gather(*(ring.ask() for _ in range(30)))
    assert ring.calls("a#1") == before
    await ring.clock.sleep(DAY - ring.clock.wall() % DAY)
    await asyncio.gather(*(ring.ask() for _ in range(30)))
    assert ring.calls("a#1") > before


async def test_what_has_no_price_is_asked_where_no_budget_is() -> None:
    strange = msgspec.structs.replace(ASK, model="strange")
    ring = Ring(10**6, None)
    for _ in range(4):
        await ring.ask(strange)
    assert (ring.calls("a#1"), ring.calls("a#2")) == (0, 4)
    with pytest.raises(UnpricedModel, match="the key a#1 has a budget"):
        await Ring(10**6).ask(strange)


async def test_a_second_request_does_not_wait_for_a_budget() -> None:
    ring = Ring(10**6)
    with pytest.raises(ModelError, match="no room in a budget"):
        await ring.ask(heat=Heat(spare=True))  # nothing is leased yet


async def test_a_run_uses_up_its_keys_ends_and_what_it_spent_is_known(tmp_path: Path) -> None:
    file = tmp_path / "siafu.toml"
    async with upstream([http(OK)]) as fake:
        file.write_text(
            f'home = "{tmp_path}"\n[upstreams.a]\nbase_url = "{fake.base_url}"\napi_keys = ["file:{tmp_path}/k", '
            f'"file:{tmp_path}/k2"]\n[budgets]\nkeys = {{ "a#1" = "0.0002 USD", "a#2" = "0.0004 USD" }}\n'
            '[prices.m]\ninput = "1"\noutput = "1"\ndate = 2026-01-01\n'
        )
        (tmp_path / "k").write_text(KEY)
        (tmp_path / "k2").write_text(KEY + "2")

        def run() -> Any:
            return siafu.map("{text}", ({"text": "x"} for _ in range(80)), model="m", config=file, max_tokens=10)

        first = run()
        done = [each async for each in first]
        assert (first.summary.stopped, first.summary.budget, first.summary.failed) == ("budget_reached", "key", 0)
        told = keys_today(load(config=file), SystemClock().wall())
        spent = {id: used for id, (used, _) in told.items()}
        assert sum(spent.values()) == 12 * MICRO * len(done) and 20 < len(done) < 80
        assert 100 * MICRO < spent["a#1"] <= 200 * MICRO and 250 * MICRO < spent["a#2"] <= 400 * MICRO
        later = run()
        assert [each async for each in later] == [] or later.summary.stopped == "budget_reached"
