"""Budgets within budgets: a call fits into each that it belongs to, or is refused by the one it does not fit into."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from decimal import Decimal
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.errors import BudgetReached, ItemBudgetReached
from siafu.gateway import accounts as module
from siafu.gateway.accounts import Accounts, Rules

LIMITS = st.one_of(st.none(), st.integers(1, 300))


@given(run=LIMITS, item=LIMITS, agent=LIMITS, seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_g16_no_budget_of_the_tree_is_overspent(
    run: int | None, item: int | None, agent: int | None, seed: int
) -> None:
    asyncio.run(race(run, item, agent, Random(seed)))


async def race(run: int | None, item: int | None, agent: int | None, rng: Random) -> None:
    """Calls of 4 items x 3 agents, some cancelled, against a book of our own; all of them come to an end."""
    accounts = Accounts()
    accounts.set("r", limit=run, rules=Rules(per_item=item, per_agent=agent))
    limits = {1: run, 2: item, 3: agent}
    used: defaultdict[tuple[str, ...], int] = defaultdict(int)

    async def call(task: str, name: str, amount: int, cost: int) -> None:
        try:
            hold = await accounts.reserve("r", amount, task=task, agent=name)
        except (BudgetReached, ItemBudgetReached):
            return
        places = (("r",), ("r", task), ("r", task, name))
        for place in places:
            used[place] += amount
            limit = limits[len(place)]
            assert limit is None or used[place] <= limit
        try:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
        finally:
            for place in places:
                used[place] += cost - amount
            accounts.settle(hold, cost)

    calls = [
        asyncio.create_task(call(f"항목{rng.randrange(4)}", rng.choice("abc"), amount, rng.randrange(amount + 1)))
        for amount in (rng.randrange(60) for _ in range(60))
    ]
    for task in rng.sample(calls, 10):
        asyncio.get_running_loop().call_soon(task.cancel)
    async with asyncio.timeout(10):
        await asyncio.gather(*calls, return_exceptions=True)
    assert not [task.exception() for task in calls if not task.cancelled() and task.exception()]
    assert accounts.of("r").reserved == 0 and not accounts.of("r").waiting


async def test_an_item_that_reaches_its_own_budget_fails_alone() -> None:
    accounts = Accounts()
    accounts.set("r", limit=1000, rules=Rules(per_item=100))
    accounts.settle(await accounts.reserve("r", 80, task="가"), 80)
    with pytest.raises(ItemBudgetReached, match="the item's own budget") as caught:
        await accounts.reserve("r", 30, task="가")
    assert not isinstance(caught.value, BudgetReached)
    await accounts.reserve("r", 100, task="나")


async def test_an_agent_has_its_own_too_and_earlier_sessions_count() -> None:
    async def earlier(task: str) -> dict[str, int]:
        return {"desk": 90, "classify": 5} if task == "old" else {}

    accounts = Accounts()
    accounts.set("r", limit=None, rules=Rules(per_item=150, per_agent=100, earlier=earlier))
    with pytest.raises(ItemBudgetReached, match="the agent's own budget"):
        await accounts.reserve("r", 20, task="old", agent="desk")
    with pytest.raises(ItemBudgetReached, match="the item's own budget"):
        await accounts.reserve("r", 60, task="old", agent="other")
    await accounts.reserve("r", 20, task="new", agent="desk")


async def test_calls_that_wait_for_their_item_do_not_hold_up_others() -> None:
    accounts = Accounts()
    accounts.set("r", limit=1000, rules=Rules(per_item=100))
    hold = await accounts.reserve("r", 80, task="가")
    waiting = asyncio.create_task(accounts.reserve("r", 50, task="가"))
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await accounts.reserve("r", 50, task="나")
        assert not waiting.done()
        accounts.settle(hold, 10)
        await waiting


async def test_accounts_of_items_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ITEMS", 10)
    accounts = Accounts()
    accounts.set("r", limit=None, rules=Rules(per_item=100))
    busy = await accounts.reserve("r", 90, task="busy")
    for number in range(50):
        accounts.settle(await accounts.reserve("r", 5, task=str(number)), 5)
    assert len(accounts._items) == 10
    with pytest.raises(ItemBudgetReached):
        await accounts.reserve("r", 101, task="busy")
    accounts.settle(busy, 90)
    accounts.close("r")
    assert not accounts._items


async def test_pressed_looks_at_every_budget_of_the_call() -> None:
    accounts = Accounts()
    accounts.set("r", limit=1000, rules=Rules(per_item=100))
    share = Decimal("0.8")
    await accounts.reserve("r", 79, task="a")
    assert not accounts.pressed("r", share, task="a")
    await accounts.reserve("r", 1, task="a")
    assert accounts.pressed("r", share, task="a") and not accounts.pressed("r", share, task="b")
    assert not accounts.pressed("none", share)
