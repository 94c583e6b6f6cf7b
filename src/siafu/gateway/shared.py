"""A budget a day that processes share, and the slice of it that this process holds.

Taking from the slice is as quick as from any account. When it is used up, or its lease is over, whoever comes first
fills it for all who wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from siafu.border.money import show_least, show_usd
from siafu.errors import BudgetReached, StoreError
from siafu.gateway.accounts import Account
from siafu.pace.clock import Clock
from siafu.store.budgets import Budget, Loan

DAY = 86_400.0  # seconds, of UTC as Unix counts it
PARTS = 100  # of the budget; a slice is one of these beyond what is asked for
CROWD = 5  # of these are leased at once for many that wait, and no more: others wait too
POLL_SECONDS = 0.25  # between two looks whether other processes have given something back
SAFE = 0.7  # of a lease; what is left of it is for clocks that run apart and commits that take long


class Lender(Protocol):
    """As `store.budgets.Budgets`."""

    seconds: float

    async def sync(self, budget: Budget, *, spent: int, held: int, need: int, want: int) -> Loan: ...


class Slice:
    """The `Lease` of this process in one budget."""

    def __init__(self, budget: Budget, lender: Lender, clock: Clock) -> None:
        self.account = Account(limit=0, kind="shared", lease=self)
        self._budget = budget
        self._lender = lender
        self._clock = clock
        self._lock = asyncio.Lock()
        self._news = asyncio.Event()
        self._until = clock.now()
        self._wanted = 0  # by all who wait
        self._elsewhere = 0  # spent by others, as last told
        self._taken = False  # since the last renewal

    def over(self) -> bool:
        return self._clock.now() >= self._until

    def closed(self) -> bool:
        return self._lock.locked()

    def freed(self) -> None:
        self._taken = True
        self._news.set()

    def used(self) -> tuple[int, int]:
        account = self.account
        return self._elsewhere + account.spent + account.reserved, self._budget.limit

    def change(self, limit: int) -> None:
        """The whole budget is another from now on; the slice is made anew by it when it is filled next."""
        self._budget = msgspec.structs.replace(self._budget, limit=limit)

    async def fill(self, amount: int) -> None:
        """As `Lease.fill`. While others hold what they may give back, waits for them."""
        self._wanted += amount
        try:
            async with self._lock:
                while not self._has(amount):
                    part = self._budget.limit // PARTS
                    loan = await self._sync(amount, part + min(self._wanted, CROWD * part))
                    if self._has(amount):
                        return
                    if loan.left < amount:
                        raise self._reached(loan.left, amount)
                    self._news.clear()
                    await _either(self._news.wait(), self._clock.sleep(POLL_SECONDS))
        finally:
            self._wanted -= amount

    async def renew(self, *, release: bool = False) -> None:
        """Tell what was spent, and hold the slice on; one from which nothing was taken since, or with `release`, only
        as far as calls are on their way. Raises: StoreError.
        """
        async with self._lock:
            idle = release or not self._taken
            self._taken = False
            await self._sync(0, 0 if idle else self._budget.limit // PARTS)

    @property
    def empty(self) -> bool:
        """Nothing of it is on its way, and it is not used."""
        return not self.account.reserved and not self._taken and not self._wanted

    def _has(self, amount: int) -> bool:
        account = self.account
        return not self.over() and account.spent + account.reserved + amount <= (account.limit or 0)

    async def _sync(self, need: int, want: int) -> Loan:
        account, began = self.account, self._clock.now()
        spent, held = account.spent, account.reserved
        account.limit = spent + held  # nobody takes meanwhile, and if this is cut off, not afterwards
        loan = await self._lender.sync(self._budget, spent=spent, held=held, need=need, want=want)
        account.limit = spent + loan.amount
        self._until = began + SAFE * self._lender.seconds
        self._elsewhere = self._budget.limit - loan.left - spent
        return loan

    def _reached(self, left: int, amount: int) -> BudgetReached:
        limit, role = self._budget.limit, self._budget.role
        whose, place = ("", "[budgets] day") if role is None else (f" for the role {role}", "[budgets] roles")
        return BudgetReached(
            f"the budget of {show_usd(limit)} a day{whose}, for all processes together, is reached: "
            f"{show_usd(limit - left)} are spent today and the next call could cost {show_usd(amount)}; raise it "
            f"({place}) to at least {show_least(limit - left + amount)}, or go on tomorrow (UTC)",
            budget="day" if role is None else "role",
            needs_pico=amount,
        )


class Daily:
    """The slices of this process in the budgets of the days on which it works (UTC); `today` is for `Accounts`. role:
    whose budgets these are; None = everybody's.

    Keep `run` running while calls are made, and call `release` after the last.
    """

    def __init__(self, limit: int, lender: Lender, clock: Clock, role: str | None = None) -> None:
        self._role = role
        self._limit = limit
        self._lender = lender
        self._clock = clock
        self._slices: dict[float, Slice] = {}

    def today(self) -> Account:
        """The account of this day."""
        wall = self._clock.wall()
        since = _midnight(wall)
        found = self._slices.get(since)
        if found is None:
            budget = day_budget(wall, self._limit, self._role)
            found = self._slices[since] = Slice(budget, self._lender, self._clock)
        return found.account

    def change(self, limit: int) -> None:
        """Keep another budget, from today on."""
        self._limit = limit
        for each in self._slices.values():
            each.change(limit)

    async def run(self) -> None:
        """Renew the leases until cancelled. When the database cannot be reached they end, and the next call is told."""
        while True:
            await self._clock.sleep(self._lender.seconds / 4)
            for since, each in list(self._slices.items()):
                try:
                    await each.renew()
                except StoreError:  # who takes from it next meets the same, and has somebody to tell
                    continue
                if since + DAY <= self._clock.wall() and each.empty:
                    del self._slices[since]

    async def release(self) -> None:
        """Give back what is left. Raises: StoreError."""
        for each in self._slices.values():
            await each.renew(release=True)


def day_budget(wall: float, limit: int, role: str | None = None) -> Budget:
    """The budget of the day (UTC) in which `wall` lies."""
    since, day = _midnight(wall), datetime.fromtimestamp(wall, UTC).date()
    name = f"day {day.isoformat()}" + ("" if role is None else f" role {role}")
    return Budget(name=name, limit=limit, since=since, until=since + DAY, role=role)


def _midnight(wall: float) -> float:
    return wall - wall % DAY


async def _either(*waits: Awaitable[object]) -> None:
    """Wait for the first of `waits`; the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
