from __future__ import annotations

import asyncio
from random import Random

import pytest

from siafu.errors import BudgetReached
from siafu.gateway.accounts import Accounts


async def test_g16_a_thousand_racing_calls_never_overspend() -> None:
    accounts, rng = Accounts(), Random(1)
    account = accounts.set("r", limit=1_000_000)
    refused = 0
    highest = 0

    async def call() -> None:
        nonlocal refused, highest
        amount = rng.randrange(1, 5000)
        try:
            hold = await accounts.reserve("r", amount)
        except BudgetReached:
            refused += 1
            return
        highest = max(highest, account.spent + account.reserved)
        for _ in range(rng.randrange(5)):
            await asyncio.sleep(0)
        accounts.settle(hold, rng.randrange(amount + 1))

    await asyncio.gather(*(call() for _ in range(1000)))
    assert account.reserved == 0
    assert account.spent <= highest <= 1_000_000
    assert refused > 0 and account.spent > 900_000


async def test_a_call_waits_while_others_hold_what_they_may_give_back() -> None:
    accounts = Accounts()
    accounts.set("r", limit=100)
    hold = await accounts.reserve("r", 80)
    waiting = asyncio.create_task(accounts.reserve("r", 50))
    await asyncio.sleep(0)
    assert not waiting.done()
    accounts.settle(hold, 10)
    await waiting
    assert (accounts.of("r").spent, accounts.of("r").reserved) == (10, 50)


async def test_a_waiting_call_is_refused_once_it_can_no_longer_fit() -> None:
    accounts = Accounts()
    accounts.set("r", limit=100)
    hold = await accounts.reserve("r", 80)
    waiting = asyncio.create_task(accounts.reserve("r", 50))
    await asyncio.sleep(0)
    accounts.settle(hold, 80)
    with pytest.raises(BudgetReached, match=r"\$0\.0000 are spent"):
        await waiting
    assert accounts.of("r").reserved == 0


async def test_first_come_first_served() -> None:
    accounts = Accounts()
    accounts.set("r", limit=100)
    first = await accounts.reserve("r", 90)
    order: list[int] = []

    async def call(number: int, amount: int) -> None:
        hold = await accounts.reserve("r", amount)
        order.append(number)
        accounts.settle(hold, 0)

    async with asyncio.TaskGroup() as group:
        group.create_task(call(1, 60))
        group.create_task(call(2, 5))  # would fit now, but must not starve the one before it
        await asyncio.sleep(0)
        assert order == []
        accounts.settle(first, 0)
    assert order == [1, 2]


@pytest.mark.parametrize("late", [False, True], ids=["waiting", "just admitted"])
async def test_a_cancelled_wait_reserves_nothing(late: bool) -> None:
    accounts = Accounts()
    accounts.set("r", limit=100)
    hold = await accounts.reserve("r", 80)
    waiting = asyncio.create_task(accounts.reserve("r", 50))
    behind = asyncio.create_task(accounts.reserve("r", 60))
    await asyncio.sleep(0)
    if late:
        accounts.settle(hold, 0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    if not late:
        accounts.settle(hold, 0)
    await behind
    assert accounts.of("r").reserved == 60


async def test_runs_have_their_own_money() -> None:
    accounts = Accounts()
    accounts.set("a", limit=10, spent=8)
    with pytest.raises(BudgetReached):
        await accounts.reserve("a", 3)
    accounts.settle(await accounts.reserve("b", 10**15), 5)
    assert accounts.of("b").spent == 5
    assert accounts.close("b").spent == 5 and accounts.of("b").spent == 0
