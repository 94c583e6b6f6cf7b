"""A call cancelled at any of its awaits gives everything back, once."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from siafu.gateway.chat import ChatRequest
from siafu.gateway.limits import Limits
from siafu.gateway.pricing import Price, Prices

from .conftest import ASK
from .fake_upstream import OK, error, http, piece, sse, trickle, upstream

STREAM = ChatRequest(model="m", messages=ASK.messages, stream=True)
PRICES = Prices([Price(model="m", input=Decimal(1), output=Decimal(2))], table=False)
WHOLE = http(OK)
SLOW = trickle(*[WHOLE[i : i + 40] for i in range(0, len(WHOLE), 40)], gap=0.001)


@pytest.mark.parametrize(
    ("request_", "script"),
    [
        (ASK, [SLOW]),
        (ASK, [error(500), error(429, retry_after="0.01"), SLOW]),
        (STREAM, [sse(piece("a"), piece("b", finish="stop"), "[DONE]")]),
    ],
)
async def test_cancelled_after_any_number_of_steps(bench: Any, request_: ChatRequest, script: list[Any]) -> None:
    ended = {"cancelled": 0, "done": 0}
    for steps in (*range(40), *range(40, 400, 15)):
        async with upstream(script) as gw, bench(gw.base_url, prices=PRICES, limits=Limits(concurrency=1)) as b:
            b.accounts.set("run", limit=10**12)
            task = asyncio.create_task(b.ask(request_))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            outcome = (await asyncio.gather(task, return_exceptions=True))[0]
            ended["cancelled" if isinstance(outcome, asyncio.CancelledError) else "done"] += 1
            assert b.accounts.of("run").reserved == 0
            assert not b.ledger.lines, "a line that was opened is settled"
            assert len(b.ledger.opened) == len(b.ledger.ended)
            assert b.accounts.of("run").spent == sum(line.usd_pico for line in b.ledger.ended)
            await asyncio.wait_for(b.ask(request_), 5)  # the one permit is free
        await gw.all_closed()
    assert ended["cancelled"] > 5, "the check sees both ends"
