"""A gateway and a transport on a fake upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from siafu.border.secrets import Secret
from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatRequest
from siafu.gateway.client import Gateway, Way, assemble
from siafu.gateway.limits import Limits
from siafu.gateway.meter import MemoryLedger
from siafu.gateway.pricing import Prices
from siafu.gateway.transport import Transport
from siafu.gateway.upstream import Timeouts, Upstream
from siafu.observe.calls import CallContext
from siafu.observe.events import Event
from siafu.pace.clock import SystemClock
from siafu.store.records import AttemptOpened, AttemptSettled

KEY = "sk-test-0123456789abcdefghij"
ASK = ChatRequest(model="m", messages=[{"role": "user", "content": "주문 1001은 어디에 있나요?"}])


class LineLedger(MemoryLedger):
    """A ledger that keeps every line, and checks the order and number of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[AttemptOpened] = []
        self.ended: list[AttemptSettled] = []

    async def open(self, line: AttemptOpened) -> None:
        assert line.attempt not in {other.attempt for other in self.opened}
        await super().open(line)
        self.opened.append(line)

    def settle(self, line: AttemptSettled) -> None:
        assert line.attempt in self.lines, "settled twice, or never opened"
        super().settle(line)
        self.ended.append(line)


class Hasty(Random):
    """Chance that keeps waits short."""

    def uniform(self, a: float, b: float) -> float:
        return a + 0.02 * (b - a) * self.random()


class Bench:
    """One gateway with everything it was told to write down."""

    def __init__(self, base_url: str, *, prices: Prices | None = None, **settings: Any) -> None:
        limits = settings.pop("limits", Limits())
        self.ledger = LineLedger()
        self.events: list[Event] = []
        self.accounts = Accounts()
        upstream = Upstream(name="fake", base_url=base_url, key=Secret(KEY), **settings)
        self.gateway: Gateway = assemble(
            [Way(upstream=upstream, limits=limits, prices=prices or Prices(table=False))],
            ledger=self.ledger,
            accounts=self.accounts,
            clock=SystemClock(),
            rng=Hasty(7),
            observer=self.events.append,
        )

    async def ask(self, request: ChatRequest = ASK, **context: Any) -> Any:
        return await (await self.gateway.open(request, CallContext(**context))).message()


@pytest.fixture
def bench() -> Callable[..., Any]:
    @asynccontextmanager
    async def made(base_url: str, **settings: Any) -> AsyncIterator[Bench]:
        bench = Bench(base_url, **settings)
        try:
            yield bench
        finally:
            await bench.gateway.aclose()

    return made


@asynccontextmanager
async def transport(base_url: str, **settings: Any) -> AsyncIterator[Transport]:
    timeouts = settings.pop("timeouts", Timeouts())
    made = Transport(
        Upstream(name="fake", base_url=base_url, key=Secret(KEY), timeouts=timeouts, **settings), SystemClock()
    )
    try:
        yield made
    finally:
        await made.aclose()
