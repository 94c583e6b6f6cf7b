"""The budgets of client keys, kept by the gateway's accounts: one account a key and UTC day. Where several servers may
have the keys in common (`Accounts.lend`), it is within budgets that they share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from siafu.config.client_keys import RUN
from siafu.gateway.accounts import Accounts
from siafu.gateway.shared import client_budgets
from siafu.pace.clock import Clock
from siafu.store.client_keys import ClientKey

DAY = 86_400.0

# (key id, a time) -> what the key has been charged before and since then, in pico-dollars
Spent = Callable[[str, float], Awaitable[tuple[int, int]]]


class Budgets:
    """Opens a key's account when it is first needed on a day, with what the ledger says was spent so far."""

    def __init__(self, accounts: Accounts, spent: Spent, clock: Clock) -> None:
        self._accounts = accounts
        self._spent = spent
        self._clock = clock
        self._days: dict[str, float] = {}  # key id -> the day of its account
        self._lock = asyncio.Lock()

    async def account(self, key: ClientKey | None) -> str:
        """The name of the account that pays: the ledger's run is that of everybody without a budget.

        Raises: StoreError.
        """
        if key is None or not key.terms.has_budget:
            return RUN
        day = self._clock.wall() // DAY * DAY
        if self._days.get(key.id) != day:
            async with self._lock:
                if self._days.get(key.id) != day:
                    await self._open(key, day)
        return _name(key.id, day)

    async def _open(self, key: ClientKey, day: float) -> None:
        terms, name, accounts = key.terms, _name(key.id, day), self._accounts
        # Of several servers' ledgers one at most knows of the key from before: keys with a `keys.db` are one server's.
        spent = before, today = await self._spent(key.id, day)
        if accounts.lend is not None:
            budgets = client_budgets(day, key.id, day=terms.day_pico, total=terms.total_pico, spent=spent)
            beside = [accounts.lend(each) for each in budgets]
            accounts.set(name, limit=None, allow_unpriced=terms.allow_unpriced, beside=beside)
        else:
            limits = [] if terms.day_pico is None else [terms.day_pico]
            if terms.total_pico is not None:
                limits.append(max(0, terms.total_pico - before))
            accounts.set(name, limit=min(limits), spent=today, allow_unpriced=terms.allow_unpriced)
        self._days[key.id] = day


def _name(id: str, day: float) -> str:
    return f"{id} {datetime.fromtimestamp(day, tz=UTC):%Y-%m-%d}"


def task_name(key: ClientKey | None, request_id: str) -> str:
    """Under which a request stands in the ledger; so all of a key's stand together."""
    return request_id if key is None else f"{key.id}/{request_id}"
