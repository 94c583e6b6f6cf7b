"""Budgets that processes share, most of them for a day, and the slice of each that this process holds.

Taking from the slice is as quick as from any account. When it is used up, or its lease is over, whoever comes first
fills it for all who wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Literal, Protocol

import msgspec

from siafu.border.money import show_least, show_usd
from siafu.errors import BudgetReached, StoreError
from siafu.gateway.accounts import Account
from siafu.gateway.day_budgets import DAY
from siafu.pace.clock import Clock
from siafu.store.budgets import Budget, Loan

FOR_EVER = 1e12  # seconds since 1970
PARTS = 100  # of the budget; a slice is one of these beyond what is asked for
CROWD = 5  # of these are leased at once for many that wait, and no more: others wait too
POLL_SECONDS = 0.25  # between two looks whether other processes have given something back
PUT_BACK = DAY  # seconds by which a clock may be put back at most, for what was spent to be known still
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
        self._given_back = True  # nothing is held, and all that was spent is told

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
            if self._given_back and not self._taken and not self.account.reserved:
                return
            idle = release or not self._taken
            self._taken = False
            await self._sync(0, 0 if idle else self._budget.limit // PARTS)

    def ended(self, wall: float) -> bool:
        """Whether its budget is long over, nothing of it is on its way, and it is not used. A clock that was ahead may
        be put back: a slice that had been dropped would then begin anew, and take back all that it had told.
        """
        used = self.account.reserved or self._taken or self._wanted
        return self._budget.until + PUT_BACK <= wall and not used

    def _has(self, amount: int) -> bool:
        account = self.account
        return not self.over() and account.spent + account.reserved + amount <= (account.limit or 0)

    async def _sync(self, need: int, want: int) -> Loan:
        account, began = self.account, self._clock.now()
        budget, spent, held = self._budget, account.spent, account.reserved
        account.limit = spent + held  # nobody takes meanwhile, and if this is cut off, not afterwards
        self._given_back = False
        loan = await self._lender.sync(budget, spent=spent, held=held, need=need, want=want)
        account.limit = spent + loan.amount
        self._given_back = not loan.amount
        self._until = began + SAFE * self._lender.seconds
        self._elsewhere = budget.limit - loan.left - spent
        return loan

    def _reached(self, left: int, amount: int) -> BudgetReached:
        budget = self._budget
        kind, whose, advice = _words(budget)
        days, enough = budget.until < FOR_EVER, show_least(budget.limit - left + amount)
        return BudgetReached(
            f"the budget of {show_usd(budget.limit)}{' a day' if days else ''}{whose} is reached: "
            f"{show_usd(budget.limit - left)} are spent{' today' if days else ''} and the next call could cost "
            f"{show_usd(amount)}; {advice.format(enough)}{', or go on tomorrow (UTC)' if days else ''}",
            budget=kind,
            needs_pico=amount,
        )


class Slices:
    """The slices of this process in all budgets that it shares. Keep `run` running while calls are made, and call
    `release` after the last.
    """

    def __init__(self, lender: Lender, clock: Clock) -> None:
        self.clock = clock
        self._lender = lender
        self._slices: dict[str, Slice] = {}

    def lend(self, budget: Budget) -> Account:
        """The account of the slice in a budget."""
        return self.of(budget).account

    def of(self, budget: Budget) -> Slice:
        """The slice in the budget of this name."""
        found = self._slices.get(budget.name)
        if found is None:
            found = self._slices[budget.name] = Slice(budget, self._lender, self.clock)
        return found

    async def run(self) -> None:
        """Renew the leases until cancelled. When the database cannot be reached they end, and the next call is told."""
        while True:
            await self.clock.sleep(self._lender.seconds / 4)
            for name, each in list(self._slices.items()):
                try:
                    await each.renew()
                except StoreError:  # who takes from it next meets the same, and has somebody to tell
                    continue
                if each.ended(self.clock.wall()):
                    del self._slices[name]

    async def release(self) -> None:
        """Give back what is left. Raises: StoreError."""
        for each in self._slices.values():
            await each.renew(release=True)


class Daily:
    """A `Share` of a budget for each day (UTC). role, key: as in `Budget`."""

    def __init__(self, limit: int, slices: Slices, *, role: str | None = None, key: str | None = None) -> None:
        self._limit = limit
        self._slices = slices
        self._role = role
        self._key = key
        self._since = -1.0
        self._slice: Slice

    def today(self) -> Account:
        """The account of this day."""
        wall = self._slices.clock.wall()
        if _midnight(wall) != self._since:
            self._since = _midnight(wall)
            self._slice = self._slices.of(day_budget(wall, self._limit, role=self._role, key=self._key))
        return self._slice.account

    def change(self, limit: int) -> None:
        """Keep another budget, from today on."""
        self._limit = limit
        if self._since >= 0.0:
            self._slice.change(limit)


def day_budget(wall: float, limit: int, *, role: str | None = None, key: str | None = None) -> Budget:
    """The budget of the day (UTC) in which `wall` lies."""
    since = _midnight(wall)
    more = "" if role is None else f" role {role}"
    more += "" if key is None else f" key {key}"
    return Budget(name=f"{_day(wall)}{more}", limit=limit, since=since, until=since + DAY, role=role, key=key)


def client_budgets(
    wall: float, client: str, *, day: int | None, total: int | None, spent: tuple[int, int]
) -> list[Budget]:
    """The budgets of a client key: of the day in which `wall` lies, and for ever; None = it has none. spent: before
    that day and on it, as far as it was not counted in budgets.
    """
    of_day, of_all = client_budget_names(wall, client)
    since, found = _midnight(wall), []
    if day is not None:
        found.append(Budget(name=of_day, limit=day, since=since, until=since + DAY, client=client, opening=spent[1]))
    if total is not None:
        found.append(Budget(name=of_all, limit=total, since=0.0, until=FOR_EVER, client=client, opening=sum(spent)))
    return found


def client_budget_names(wall: float, client: str) -> tuple[str, str]:
    """The names of the budgets of a client key: of the day in which `wall` lies, and for ever."""
    return f"{_day(wall)} client {client}", f"client {client}"


def _words(budget: Budget) -> tuple[Literal["day", "role", "key", "client"], str, str]:
    """Which one it is, whose, and what to do when it is reached."""
    raised = "raise it ([budgets] {}) to at least {{}}"
    if budget.client is not None:
        return (
            "client",
            " for this client key, at all servers together,",
            "with {} this call would do; lower max_tokens",
        )
    if budget.key is not None:
        return "key", f" at the key {budget.key}, for all processes together,", raised.format("keys")
    if budget.role is not None:
        return "role", f" for the role {budget.role}, for all processes together,", raised.format("roles")
    return "day", ", for all processes together,", raised.format("day")


def _day(wall: float) -> str:
    return f"day {datetime.fromtimestamp(wall, UTC).date().isoformat()}"


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
