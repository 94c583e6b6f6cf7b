"""Breaker, pause and hedge over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from random import Random
from typing import Any

from siafu.border.secrets import Secret
from siafu.errors import DeadlineReached, UpstreamFault
from siafu.gateway.accounts import Accounts
from siafu.gateway.client import Gateway, Way, assemble
from siafu.gateway.guard import Patience
from siafu.gateway.hedge import ENOUGH, Hedge
from siafu.gateway.limits import Limits
from siafu.gateway.pricing import Prices
from siafu.gateway.upstream import Upstream
from siafu.observe.calls import CallContext
from siafu.observe.events import Event, LaneClosed, LaneOpened, Waited
from siafu.pace.clock import SystemClock
from siafu.store.records import HEDGE_LOST
from sim import running_sim

from .conftest import ASK, KEY, LineLedger
from .fake_upstream import OK, Answer, Arrival, http, trickle, upstream


class Made:
    def __init__(self, base_url: str, **options: Any) -> None:
        self.ledger, self.events = LineLedger(), list[Event]()
        way = Way(
            upstream=Upstream(name="u", base_url=base_url, key=Secret(KEY)), limits=Limits(), prices=Prices(table=False)
        )
        self.gateway: Gateway = assemble(
            [way],
            ledger=self.ledger,
            accounts=Accounts(),
            clock=SystemClock(),
            rng=Random(7),
            observer=self.events.append,
            **options,
        )

    async def ask(self, **context: Any) -> str:
        return (await (await self.gateway.open(ASK, CallContext(run="r", **context))).message()).text


@asynccontextmanager
async def made(base_url: str, **options: Any) -> AsyncIterator[Made]:
    found = Made(base_url, **options)
    try:
        yield found
    finally:
        await found.gateway.aclose()


async def test_an_outage_and_used_up_credit_lose_nothing_and_burn_no_calls() -> None:
    with running_sim(seed=1) as endpoint:
        async with made(endpoint.url, patience=Patience(outage=60.0, quota=60.0, probe=0.5)) as line:
            assert await line.ask()
            for kind, reason in (("500", "outage"), ("quota", "quota")):
                await asyncio.to_thread(endpoint.set_faults, {"kind": kind, "times": None})
                before = (await asyncio.to_thread(endpoint.stats))["requests"]
                calls = [asyncio.create_task(line.ask(task=str(number))) for number in range(300)]
                async with asyncio.timeout(30):
                    while not any(isinstance(e, Waited) and e.reason == reason for e in line.events):
                        await asyncio.sleep(0.02)
                    await asyncio.sleep(1.0)
                    sent = (await asyncio.to_thread(endpoint.stats))["requests"] - before
                    assert sent <= 100 + 20 + 3, "those under way at first, repeats that are paid for, probes"
                    assert line.gateway.waiting > 250
                    await asyncio.to_thread(endpoint.set_faults)
                    assert all(await asyncio.gather(*calls)) and line.gateway.waiting == 0
                assert [type(e) for e in line.events if isinstance(e, LaneClosed | LaneOpened)][-2:] == [
                    LaneClosed,
                    LaneOpened,
                ]


async def test_g20_an_upstream_that_hangs_holds_no_call_beyond_its_deadline() -> None:
    silence = trickle(gap=0.0, hang=30.0)

    def first_answers(arrival: Arrival) -> Answer:
        return http(OK) if len(gw.arrivals) == 1 else silence

    async with upstream(first_answers) as gw, made(gw.base_url, patience=Patience(outage=60.0)) as line:
        assert await line.ask()
        began = time.monotonic()
        asked = (line.ask(deadline=began + 1.0) for _ in range(50))
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert time.monotonic() - began <= 2.0
        assert {type(result) for result in results} <= {DeadlineReached, UpstreamFault}
        assert await gw.until(lambda: not gw.connections), "every socket is freed"
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in others if "siafu" in repr(task.get_coro())]


async def test_a_hedge_frees_the_socket_of_the_request_that_lost() -> None:
    silence = trickle(gap=0.0, hang=30.0)

    def one_is_slow(arrival: Arrival) -> Answer:
        return silence if len(gw.arrivals) == ENOUGH + 1 else http(OK)

    async with upstream(one_is_slow) as gw, made(gw.base_url, hedge=Hedge(share=Decimal("0.5"))) as line:
        for number in range(ENOUGH):
            await line.ask(task=f"warm {number}")
        sent = len(gw.arrivals)
        async with asyncio.timeout(10):
            assert await line.ask(task="slow")
        assert [each.headers["x-siafu-attempt"] for each in gw.arrivals[sent:]][-1] == "2"
        assert [each.code for each in line.ledger.ended if each.code] == [HEDGE_LOST]
        assert await gw.until(lambda: len(gw.connections) <= 1)
