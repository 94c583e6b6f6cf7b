"""Where the parts of a gateway meet: settings and keys that change while calls wait, are hedged, or lead; in virtual
time, over upstreams that play a part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from random import Random
from typing import Any

import msgspec
import pytest

from siafu.border.secrets import Secret
from siafu.errors import AccessRefused, ModelError, QuotaExhausted, UpstreamFault
from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatRequest
from siafu.gateway.client import Gateway, Way, assemble
from siafu.gateway.endpoint import PlainReply, Reply, ReplyHead
from siafu.gateway.guard import Patience
from siafu.gateway.hedge import Hedge, Hedging
from siafu.gateway.limits import Limits
from siafu.gateway.prefix import PromptCache
from siafu.gateway.pricing import Price, Prices
from siafu.gateway.reuse import ReuseRule
from siafu.gateway.routing import Rule, target
from siafu.gateway.scripted import say
from siafu.gateway.upstream import Upstream
from siafu.observe.calls import CallContext
from siafu.observe.events import Event
from siafu.pace.clock import Clock, VirtualClock

from .conftest import LineLedger

ASK = ChatRequest(model="m", messages=[{"role": "user", "content": "주문 1001은 어디에 있나요?"}], max_tokens=10)
PRICES = Prices([Price(model="m", input=Decimal(1), output=Decimal(2))], table=False)
PATIENT = Patience(outage=600.0, quota=600.0)
Play = Callable[[str, str], Awaitable[None]]  # by address and key: how a request fares; None = it is answered


def way(name: str = "u", key: str = "sk-one", *, address: str = "", id: str = "", **more: Any) -> Way:
    upstream = Upstream(name=name, base_url=f"https://{address or name}.example/v1", key=Secret(key))
    return Way(upstream=upstream, limits=more.pop("limits", Limits()), prices=PRICES, id=id, models={"m": "m"}, **more)


class House:
    """A whole gateway over transports that play `play`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, play: Play, ways: Sequence[Way], **more: Any) -> None:
        self.clock, self.events, self.ledger = VirtualClock(), list[Event](), LineLedger()
        self.accounts = Accounts()
        self.sent: list[tuple[str, str]] = []
        house = self

        class Played:
            def __init__(self, upstream: Upstream, clock: Clock) -> None:
                self._upstream = upstream

            def rekey(self, key: Secret | None) -> None:
                self._upstream = msgspec.structs.replace(self._upstream, key=key)

            async def open(self, request: ChatRequest, context: CallContext) -> Reply:
                key, began = self._upstream.key, house.clock.now()
                where = self._upstream.base_url, "" if key is None else key.reveal()
                house.sent.append(where)
                await play(*where)
                answer = msgspec.structs.replace(say("ok"), model=request.model)
                return PlainReply(answer, ReplyHead(began=began))

            async def aclose(self) -> None:
                return None

        monkeypatch.setattr("siafu.gateway.client.Transport", Played)
        self.gateway: Gateway = assemble(
            ways,
            ledger=self.ledger,
            accounts=self.accounts,
            clock=self.clock,
            rng=Random(7),
            observer=self.events.append,
            **{"patience": PATIENT, **more},
        )

    async def ask(self, task: str = "t", request: ChatRequest = ASK, **context: Any) -> str:
        reply = await self.gateway.open(request, CallContext(run="r", task=task, **context))
        return (await reply.message()).text


REFUSED = [
    lambda: AccessRefused("this key was revoked", status=401),
    lambda: QuotaExhausted("no credit", status=429, provider_code="insufficient_quota"),
]


@pytest.mark.parametrize("refusal", REFUSED)
async def test_what_the_former_key_is_told_says_nothing_of_the_new_one(
    monkeypatch: pytest.MonkeyPatch, refusal: Callable[[], ModelError]
) -> None:
    async def play(address: str, key: str) -> None:
        await house.clock.sleep(10.0)
        if key == "sk-old":
            raise refusal()

    house = House(monkeypatch, play, [way(key="sk-old")])
    calls = asyncio.gather(*(house.ask(str(n)) for n in range(5)))
    await house.clock.sleep(5.0)
    await house.gateway.change([way(key="sk-new")])
    start = house.clock.now()
    assert await calls == ["ok"] * 5
    assert house.clock.now() - start == pytest.approx(15.0)
    assert await house.ask() == "ok"


async def test_another_address_is_not_taken_for_the_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(address: str, key: str) -> None:
        if "wrong" in address and len(house.sent) > 1:
            raise UpstreamFault("broken", status=500)

    house = House(monkeypatch, play, [way(address="wrong")])
    await house.ask()
    calls = asyncio.gather(*(house.ask(str(n)) for n in range(20)))
    await house.clock.sleep(100.0)
    await house.gateway.change([way(address="right")])
    start = house.clock.now()
    assert await calls == ["ok"] * 20
    assert await house.ask() == "ok" and house.clock.now() == start


async def test_a_second_request_waits_for_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(address: str, key: str) -> None:
        await house.clock.sleep(60.0 if len(house.sent) == 101 else 1.0)

    def begins(head: int) -> ChatRequest:
        messages = [{"role": "system", "content": f"{head}" * 50}, *ASK.messages]
        return msgspec.structs.replace(ASK, messages=messages)

    cache = PromptCache(lead=True, min_tokens=0, wait=5.0)
    house = House(monkeypatch, play, [way(prompt_cache=cache)], hedge=Hedge(share=Decimal("0.5")))
    for number in range(100):
        await house.ask(request=begins(number))
    start = house.clock.now()
    assert await house.ask(request=begins(101)) == "ok"
    assert house.clock.now() - start < 3.0


@pytest.mark.parametrize("failures", [1, 3])
async def test_what_failed_long_ago_takes_no_patience_from_calls_of_now(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    broken = False

    async def play(address: str, key: str) -> None:
        await house.clock.sleep(1.0)
        if broken:
            raise UpstreamFault("broken", status=500)

    house = House(monkeypatch, play, [way()])
    await house.ask()
    broken = True
    calls = [asyncio.ensure_future(house.ask()) for _ in range(failures)]
    await house.clock.sleep(1.1)
    for each in calls:
        each.cancel()
    await house.clock.sleep(3600.0)
    crowd = asyncio.gather(*(house.ask() for _ in range(50)))
    await house.clock.sleep(30.0)
    broken = False
    assert await crowd == ["ok"] * 50


class Arriving:
    """A streamed answer of which nothing has been read."""

    head = ReplyHead()

    def __init__(self) -> None:
        self.closed = False

    async def aclose(self) -> None:
        self.closed = True


async def test_an_answer_that_nobody_takes_any_more_is_given_up() -> None:
    """The call is cancelled while the request that lost is still being put away."""
    clock, won = VirtualClock(), Arriving()

    class Played:
        calls = 0

        async def open(self, request: ChatRequest, context: CallContext) -> Any:
            self.calls += 1
            if self.calls <= 100:
                await clock.sleep(1.0)
                return PlainReply(say("ok"))
            if self.calls == 102:
                return won
            assert context.heat is not None
            context.heat.left_at = clock.now()
            try:
                await clock.sleep(60.0)
            finally:
                await clock.sleep(1.0)

    hedge = Hedge(share=Decimal("0.5"))
    hedging = Hedging(
        Played(), hedge, worst=lambda request: None, accounts=Accounts(), clock=clock, observer=lambda event: None
    )
    hedging._of(ASK).add(1.0)
    for _ in range(100):
        await hedging.open(ASK, CallContext())
        hedging._of(ASK).add(1.0)
    call = asyncio.ensure_future(hedging.open(ASK, CallContext()))
    await clock.sleep(1.5)
    assert not call.done()
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled() and won.closed


async def test_answers_of_a_model_that_is_not_asked_any_more_are_not_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(address: str, key: str) -> None:
        await house.clock.sleep(1.0)

    ways = [way("old"), way("new")]
    house = House(monkeypatch, play, ways, reuse=[ReuseRule(seconds=3600.0)])
    equal = msgspec.structs.replace(ASK, temperature=0.0)
    for rules in ((Rule(use=(target("m@new"),)),), (Rule(use=(target("m@new"),)),), (Rule(use=(target("m@old"),)),)):
        await house.gateway.change(ways, rules)
        await house.ask(request=equal)
    assert [address for address, _ in house.sent] == ["https://new.example/v1", "https://old.example/v1"]
