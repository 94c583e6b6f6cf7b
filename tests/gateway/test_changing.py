"""A gateway whose limits, prices, rules and soft limit change while calls are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from random import Random
from typing import Any

import msgspec
import pytest

from siafu.border.secrets import Secret
from siafu.errors import ConfigError
from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatAnswer, ChatRequest
from siafu.gateway.client import Gateway, Way, assemble
from siafu.gateway.limits import Limits
from siafu.gateway.prefix import PromptCache
from siafu.gateway.pricing import Price, Prices
from siafu.gateway.reuse import ReuseRule
from siafu.gateway.routing import Rule, target
from siafu.gateway.thrift import Thrift
from siafu.gateway.upstream import Upstream
from siafu.observe.calls import CallContext
from siafu.observe.events import nobody
from siafu.pace.clock import SystemClock

from .conftest import ASK, KEY, LineLedger
from .fake_upstream import OK, Arrival, http, upstream
from .test_limits import Line, most_within

DEAR, CHEAP = (
    Prices([Price(model="m", input=Decimal(each), output=Decimal(each), source=str(each))], table=False)
    for each in (8, 2)
)


def way(base_url: str, *, prices: Prices = DEAR, id: str = "", **limits: Any) -> Way:
    return Way(
        upstream=Upstream(name=id or "u", base_url=base_url, key=Secret(KEY)),
        limits=Limits(**limits),
        prices=prices,
        id=id,
    )


def made(ways: Sequence[Way], ledger: LineLedger, accounts: Accounts | None = None, **more: Any) -> Gateway:
    return assemble(
        ways,
        ledger=ledger,
        accounts=accounts or Accounts(),
        clock=SystemClock(),
        rng=Random(7),
        observer=nobody,
        **more,
    )


async def ask(gateway: Gateway, model: str = "m") -> ChatAnswer:
    request = msgspec.structs.replace(ASK, model=model)
    return await (await gateway.open(request, CallContext(run="r"))).message()


class Gate:
    """Answers are held back until `go`."""

    def __init__(self, served: str = "m") -> None:
        self.go = asyncio.Event()
        self.served = served

    def __call__(self, arrival: Arrival) -> Any:
        async def send(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
            await self.go.wait()
            writer.write(http({**OK, "model": self.served}))

        return send


# ---- limits, in virtual time ----------------------------------------------------------------------------------------


async def changed_after(line: Line, seconds: float, limits: Limits, crowd: int) -> list[Any]:
    calls = asyncio.ensure_future(line.crowd(crowd))
    await line.clock.sleep(seconds)
    line.limited.change(limits)
    return await calls


async def test_more_at_once_lets_those_who_wait_go_at_once() -> None:
    line = Line(Limits(concurrency=10), seconds=100)
    answers = await changed_after(line, 50, Limits(concurrency=30), 30)
    assert [answer.content for answer in answers] == ["ok"] * 30
    assert line.upstream.arrivals == [0.0] * 10 + [50.0] * 20 and line.limited.in_flight == 0


async def test_fewer_at_once_disturbs_no_call_under_way() -> None:
    line = Line(Limits(concurrency=30), seconds=100)
    answers = await changed_after(line, 50, Limits(concurrency=10), 60)
    assert [answer.content for answer in answers] == ["ok"] * 60
    assert line.upstream.arrivals == [0.0] * 30 + [100.0] * 10 + [200.0] * 10 + [300.0] * 10


@pytest.mark.parametrize("old", [60.0, None, 6_000.0])
async def test_a_new_rate_holds_from_the_change_on(old: float | None) -> None:
    line = Line(Limits(rpm=old, concurrency=5), seconds=1)
    await changed_after(line, 10.5, Limits(rpm=120, concurrency=5), 100)
    after = [at for at in line.upstream.arrivals if at >= 10.5]
    assert most_within(after, 1.0) <= 2 + 2 and line.limited.in_flight == 0


async def test_tokens_begin_to_be_counted() -> None:
    line = Line(Limits(concurrency=100))
    await line.crowd(10)
    line.limited.change(Limits(concurrency=100, tpm=600.0))
    began = line.clock.now()
    await line.crowd(2)
    assert line.clock.now() - began > 5.0


async def test_random_changes_under_load_lose_no_permit_and_no_call() -> None:
    rng = Random(11)
    line = Line(Limits(concurrency=3), seconds=0.5)
    calls = asyncio.ensure_future(line.crowd(300))
    for _ in range(40):
        await line.clock.sleep(rng.uniform(0.0, 1.0))
        line.limited.change(
            Limits(
                concurrency=rng.randint(1, 40),
                rpm=rng.choice([None, 600, 6_000]),
                tpm=rng.choice([None, 60_000.0, 600_000.0]),
            )
        )
    assert [answer.content for answer in await calls] == ["ok"] * 300
    assert len(line.upstream.arrivals) == 300 and line.limited.in_flight == 0


# ---- prices, rules, the soft limit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("served", ["m", "n"])
async def test_a_call_is_priced_by_the_table_it_was_reserved_under(served: str) -> None:
    """The call is under way while the table changes. Its model, and the one that answers instead, have new prices."""
    new = [Price(model=name, input=Decimal(2), output=Decimal(2), source="new") for name in ("m", "n")]
    gate, ledger, accounts = Gate(served), LineLedger(), Accounts()
    accounts.set("r", limit=10**12)
    async with upstream(gate) as fake:
        gateway = made([way(fake.base_url)], ledger, accounts)
        call = asyncio.create_task(ask(gateway))
        assert await fake.until(lambda: bool(fake.arrivals))
        await gateway.change([way(fake.base_url, prices=Prices(new, table=False))])
        gate.go.set()
        old = await call
        after = await ask(gateway)
        await gateway.aclose()
    assert (old.usd_pico, after.usd_pico) == (12 * 8 * 10**6, 12 * 2 * 10**6)
    assert [(line.usd_pico, line.price_source) for line in ledger.ended] == [(96 * 10**6, "8"), (24 * 10**6, "new")]
    account = accounts.of("r")
    assert (account.spent, account.reserved) == (120 * 10**6, 0)


async def test_a_way_that_stays_keeps_its_queue_and_its_calls() -> None:
    gate, ledger = Gate(), LineLedger()
    async with upstream(gate) as fake:
        gateway = made([way(fake.base_url, concurrency=2)], ledger)
        calls = [asyncio.create_task(ask(gateway)) for _ in range(5)]
        assert await fake.until(lambda: len(fake.arrivals) == 2)
        await gateway.change([way(fake.base_url, concurrency=4, prices=CHEAP)])
        assert await fake.until(lambda: len(fake.arrivals) == 4)
        gate.go.set()
        await asyncio.gather(*calls)
        await gateway.aclose()
    assert len(fake.arrivals) == 5, "nothing is asked twice"
    assert sorted(line.price_source for line in ledger.ended) == ["2", "2", "2", "8", "8"]


async def test_another_prompt_cache_keeps_the_limits_and_who_waits() -> None:
    gate = Gate()
    marks, lead = PromptCache(lead=False, marks="5m", min_tokens=1), PromptCache(lead=True, min_tokens=1)
    async with upstream(gate) as fake:

        def cached(wanted: PromptCache | None) -> Way:
            return msgspec.structs.replace(way(fake.base_url, concurrency=1), prompt_cache=wanted)

        gateway = made([cached(lead)], LineLedger())
        long = ChatRequest(model="m", messages=[{"role": "system", "content": "x" * 400}, *ASK.messages])
        calls = [asyncio.create_task(_whole(gateway, long)) for _ in range(3)]
        assert await fake.until(lambda: len(fake.arrivals) == 1)
        await gateway.change([cached(marks)])
        calls.append(asyncio.create_task(_whole(gateway, long)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(fake.arrivals) == 1, "a new limiter would let one more leave"
        gate.go.set()
        await asyncio.gather(*calls)
        await gateway.change([cached(None)])
        await _whole(gateway, long)
        await gateway.aclose()
    assert [b"cache_control" in arrival.body for arrival in fake.arrivals] == [False] * 3 + [True, False]


async def _whole(gateway: Gateway, request: ChatRequest) -> ChatAnswer:
    return await (await gateway.open(request, CallContext(run="r"))).message()


async def test_what_is_not_used_any_more_is_closed_with_its_last_call() -> None:
    gate = Gate()
    async with upstream(gate) as old, upstream([http(OK)]) as new:
        gateway = made([way(old.base_url)], LineLedger())
        calls = [asyncio.create_task(ask(gateway)) for _ in range(2)]
        assert await old.until(lambda: len(old.arrivals) == 2)
        await gateway.change([way(new.base_url)])
        assert len(old.connections) == 2, "calls under way go on"
        gate.go.set()
        await asyncio.gather(*calls)
        assert await old.all_closed()
        await ask(gateway)
        await gateway.aclose()


async def test_new_rules_hold_for_the_next_call_and_go_again() -> None:
    async with upstream([http(OK)]) as one, upstream([http(OK)]) as two:
        ways = [way(one.base_url, id="one"), way(two.base_url, id="two")]
        gateway = made(ways, LineLedger(), rules=[Rule(use=(target("m@one"),))])
        await ask(gateway)
        await gateway.change(ways, [Rule(use=(target("big@two"),))])
        await ask(gateway)
        await gateway.change(ways[:1])
        await ask(gateway)
        await gateway.aclose()
    assert [arrival.json["model"] for arrival in one.arrivals] == ["m", "m"]
    assert [arrival.json["model"] for arrival in two.arrivals] == ["big"]


async def test_a_soft_limit_that_is_set_later() -> None:
    accounts = Accounts()
    accounts.set("r", limit=10**12, spent=9 * 10**11, allow_unpriced=True)
    async with upstream([http(OK)]) as fake:
        ways = [way(fake.base_url)]
        gateway = made(ways, LineLedger(), accounts)
        await ask(gateway)
        await gateway.change(ways, thrift=Thrift(soft=Decimal("0.5"), cheaper={"m": "small"}))
        await ask(gateway)
        await gateway.aclose()
    assert [arrival.json["model"] for arrival in fake.arrivals] == ["m", "small"]


async def test_a_change_that_fails_changes_nothing(tmp_path: Any) -> None:
    async with upstream([http(OK)]) as fake:
        first = way(fake.base_url)
        gateway = made([first], LineLedger())
        rekeyed = msgspec.structs.replace(
            first, upstream=msgspec.structs.replace(first.upstream, key=Secret("another"))
        )
        broken = way("https://x.example/v1", id="x")
        broken = msgspec.structs.replace(
            broken, upstream=msgspec.structs.replace(broken.upstream, ca_file=tmp_path / "none.pem")
        )
        with pytest.raises(ConfigError, match="ca_file"):
            await gateway.change([rekeyed, broken])
        await ask(gateway)
        await gateway.aclose()
    assert fake.arrivals[0].headers["authorization"] == f"Bearer {KEY}"


async def test_answers_that_are_used_again_stay_when_limits_change() -> None:
    asked = msgspec.structs.replace(ASK, temperature=0.0)
    async with upstream([http(OK)]) as fake:
        gateway = made([way(fake.base_url)], LineLedger(), reuse=[ReuseRule(seconds=60.0)])
        for most in (5, 7):
            await (await gateway.open(asked, CallContext(run="r"))).message()
            await gateway.change([way(fake.base_url, concurrency=most)])
        await gateway.aclose()
    assert len(fake.arrivals) == 1
