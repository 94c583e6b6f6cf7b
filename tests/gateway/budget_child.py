"""A process whose agents call until the budget that it shares with others is used up.

URL of the budgets, journal, limit in pico-dollars, number of agents, answers after which no call is answered
"""

from __future__ import annotations

import asyncio
import sys
from decimal import Decimal
from pathlib import Path
from random import Random

from siafu.errors import BudgetReached
from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatAnswer, ChatRequest, Usage
from siafu.gateway.endpoint import PlainReply, Reply
from siafu.gateway.meter import Books, Metered
from siafu.gateway.pricing import Price, Prices
from siafu.gateway.shared import Daily, Slices
from siafu.observe.calls import CallContext
from siafu.observe.events import nobody
from siafu.pace.clock import SystemClock
from siafu.store.budgets import MIGRATIONS, SCHEMA, Budgets
from siafu.store.database import Database
from siafu.store.sqlite import SqliteStore

OUTPUT = 50
LEASE = 1.0  # seconds


class Slow:
    """Answers after a moment, with fewer tokens than it may; after `answers` of them, never."""

    def __init__(self, rng: Random, answers: int) -> None:
        self._rng = rng
        self._left = answers

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        self._left -= 1
        await asyncio.sleep(self._rng.uniform(0.0, 0.05) if self._left >= 0 else 3600)
        usage = Usage(input=5, output=self._rng.randrange(OUTPUT))
        return PlainReply(
            ChatAnswer(message={"role": "assistant", "content": "네"}, content="네", usage=usage, model="m")
        )


async def work(url: str, journal: Path, limit: int, agents: int, answers: int) -> None:
    clock, owner = SystemClock(), journal.stem.ljust(16, "-")
    database = Database(url, MIGRATIONS, what="the budgets' database", schema=SCHEMA)
    run = SqliteStore(journal).run("r")
    await run.begin("w")
    slices = Slices(Budgets(database, owner, journal, LEASE), clock)
    prices = Prices([Price(model="m", input=Decimal(1), output=Decimal(1))], table=False)
    books = Books(prices=prices, ledger=run.ledger, accounts=Accounts(Daily(limit, slices), owner))
    metered = Metered(Slow(Random(journal.stem), answers), books, clock=clock, upstream="u", observer=nobody)
    request = ChatRequest(model="m", messages=[{"role": "user", "content": "안녕"}], max_tokens=OUTPUT)

    async def agent(number: int) -> None:
        while True:
            try:
                await metered.open(request, CallContext(run="r", task=str(number), step="#0"))
            except BudgetReached:
                return

    renewing = asyncio.create_task(slices.run())
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(agents):
                group.create_task(agent(number))
    finally:
        renewing.cancel()
        await run.aclose()
        await slices.release()
        await database.aclose()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])))
