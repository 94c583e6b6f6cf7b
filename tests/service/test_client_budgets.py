"""Budgets of client keys where several servers have the keys in common."""

from __future__ import annotations

import asyncio
from pathlib import Path

from siafu.errors import BudgetReached
from siafu.gateway.accounts import Accounts
from siafu.gateway.shared import Slices
from siafu.pace.clock import SystemClock
from siafu.service.budgets import Budgets
from siafu.store.budgets import MIGRATIONS, SCHEMA
from siafu.store.budgets import Budgets as SharedBudgets
from siafu.store.client_keys import ClientKey, KeyTerms
from siafu.store.database import Database


async def test_g16_servers_over_one_database_keep_a_key_s_budgets_together(tmp_path: Path) -> None:
    """And one that is stopped and started goes on from there."""
    clock = SystemClock()
    terms = KeyTerms(name="web", day_pico=1000, total_pico=900)
    key = ClientKey(id="key_1", hash="", hint="", terms=terms, created_at=0.0)

    async def nothing(key: str, since: float) -> tuple[int, int]:
        return 0, 0

    async def spend(name: str) -> int:
        database = Database(tmp_path / "all.db", MIGRATIONS, what="budgets", schema=SCHEMA)
        slices = Slices(SharedBudgets(database, name, None), clock)
        accounts = Accounts(lend=slices.lend)
        account, spent = await Budgets(accounts, nothing, clock).account(key), 0
        assert accounts.limited(account)
        try:
            while True:
                try:
                    accounts.settle(await accounts.reserve(account, 7), 5)
                except BudgetReached as error:
                    assert (error.budget, "for this client key" in error.message) == ("client", True)
                    return spent
                spent += 5
        finally:
            await slices.release()
            await database.aclose()

    spent = sum(await asyncio.gather(spend("one"), spend("two")))
    assert 900 - 7 < spent <= 900
    assert await spend("three") == 0
