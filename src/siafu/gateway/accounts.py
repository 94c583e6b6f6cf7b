"""The money of runs while they run: reserve before sending, settle after. Exact under concurrency: nothing is awaited
between looking at a balance and changing it.
"""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from siafu.border.money import show_usd
from siafu.errors import BudgetReached


class Account(msgspec.Struct):
    """One run's money in pico-dollars. `limit`: None = no budget. `spent` includes what attempts with unknown usage
    were charged. `unpriced`: attempts without a price; `unknown`: attempts whose usage is not known.
    """

    limit: int | None = None
    spent: int = 0
    reserved: int = 0
    unpriced: int = 0
    unknown: int = 0
    allow_unpriced: bool = False


class Accounts:
    """The accounts of all runs of this process."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}

    def of(self, run: str) -> Account:
        """The account of a run; without `set`, one without a limit."""
        account = self._accounts.get(run)
        if account is None:
            account = self._accounts[run] = Account()
        return account

    def set(self, run: str, *, limit: int | None, spent: int = 0, allow_unpriced: bool = False) -> Account:
        """Give a run its budget; `spent`: by its earlier sessions. `allow_unpriced`: models without a price may run
        although there is a limit; what they cost is then not counted.
        """
        account = self._accounts[run] = Account(limit=limit, spent=spent, allow_unpriced=allow_unpriced)
        return account

    def close(self, run: str) -> Account:
        """Take a finished run's account out and return it."""
        return self._accounts.pop(run, None) or Account()

    async def reserve(self, run: str, amount: int) -> None:
        """Set `amount` aside. While it only fits once other calls return what they reserved, wait for them, first come
        first served.

        Raises: BudgetReached when it does not fit in what is left of the budget. Cancelling reserves nothing.
        """
        account = self.of(run)
        queue = self._waiting.get(run)
        if not queue and _take(run, account, amount):
            return
        queue = self._waiting.setdefault(run, deque())
        entry = (amount, asyncio.get_running_loop().create_future())
        queue.append(entry)
        try:
            await entry[1]
        except asyncio.CancelledError:
            future = entry[1]
            if not future.cancelled() and future.exception() is None:  # given and cancelled in the same moment
                account.reserved -= amount
            self._wake(run, account)
            raise

    def settle(self, run: str, reserved: int, cost: int) -> None:
        """Replace a reservation by the cost."""
        account = self.of(run)
        account.reserved -= reserved
        account.spent += cost
        self._wake(run, account)

    def _wake(self, run: str, account: Account) -> None:
        queue = self._waiting.get(run)
        while queue:
            amount, future = queue[0]
            if not future.done():
                try:
                    if not _take(run, account, amount):
                        return
                    future.set_result(None)
                except BudgetReached as error:
                    future.set_exception(error)
            queue.popleft()
        self._waiting.pop(run, None)


def _take(run: str, account: Account, amount: int) -> bool:
    if account.limit is not None and account.spent + account.reserved + amount > account.limit:
        if account.spent + amount > account.limit:
            raise BudgetReached(
                f"the budget of {show_usd(account.limit)} is reached: {show_usd(account.spent)} are spent and the next "
                f"call could cost {show_usd(amount)}; raise the budget, or lower max_tokens"
            )
        return False
    account.reserved += amount
    return True
