"""The money of runs while they run: reserve before sending, settle after. Budgets form a tree: an agent's within its
item's, within the run's, within one that processes share. A call must fit into each that it belongs to.

Exact under concurrency: nothing is awaited between looking at the balances and changing them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from siafu.border.money import show_least, show_usd
from siafu.errors import BudgetReached, ItemBudgetReached

if TYPE_CHECKING:
    from siafu.store.budgets import Budget  # SQLAlchemy, 140 ms

MOST_ITEMS = 100_000  # accounts of items kept at once; as many can run at once


class Lease(Protocol):
    """What a budget that processes share says of the part of it that this process may spend: its account's limit."""

    def over(self) -> bool:
        """Whether the part is held no longer, so that nothing may be taken from it before it is filled."""
        ...

    def closed(self) -> bool:
        """Whether others wait for it to be filled; whoever comes waits behind them."""
        ...

    async def fill(self, amount: int) -> None:
        """Returns when `amount` fits into the part. Raises: BudgetReached when it never will; StoreError."""
        ...

    def freed(self) -> None:
        """Some of the part was given back."""
        ...

    def used(self) -> tuple[int, int]:
        """What all processes have used of the whole budget, as far as is known here, and that budget."""
        ...


class Share(Protocol):
    """Of a budget that processes share, of today."""

    def today(self) -> Account:
        """The account that is this process's part of it."""
        ...

    def change(self, limit: int) -> None:
        """Keep another budget from now on."""
        ...


class Account(msgspec.Struct, eq=False):
    """Money in pico-dollars. `limit`: None = no budget. `spent` includes what attempts with unknown usage were charged.
    `unpriced`: attempts without a price; `unknown`: attempts whose usage is not known. hedged: the part of `spent` for
    attempts that were given up, as another one for the same call was quicker. kind: whose budget it is. lease:
    of an account that is a part of a budget shared by processes.
    """

    limit: int | None = None
    spent: int = 0
    reserved: int = 0
    unpriced: int = 0
    unknown: int = 0
    hedged: int = 0
    allow_unpriced: bool = False
    kind: Literal["run", "item", "agent", "shared"] = "run"
    lease: Lease | None = None
    waiting: deque[_Waiting] | None = None

    def used(self) -> tuple[int, int] | None:
        """What is spent or reserved, and the limit; None without one."""
        if self.lease is not None:
            return self.lease.used()
        return None if self.limit is None else (self.spent + self.reserved, self.limit)


class Hold(msgspec.Struct, frozen=True):
    """What is set aside for one attempt, in every account of `path`."""

    path: tuple[Account, ...]
    amount: int = 0


_Waiting = tuple[Hold, asyncio.Future[bool]]
Earlier = Callable[[str], Awaitable[Mapping[str, int]]]


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The budgets within a run, in pico-dollars, None = no limit. earlier: what the agents of an item have spent in
    earlier sessions, by agent; None = nothing.
    """

    per_item: int | None = None
    per_agent: int | None = None
    earlier: Earlier | None = None


class _Run(msgspec.Struct, eq=False):
    """A run's money. beside, rules: as in `Accounts.set`; no rule without a limit."""

    account: Account = msgspec.field(default_factory=Account)
    beside: tuple[Account, ...] = ()
    rules: Rules | None = None


class _Item(msgspec.Struct, eq=False):
    account: Account
    agents: dict[str, Account]

    def idle(self) -> bool:
        return not self.account.reserved and not self.account.waiting


class Accounts:
    """The accounts of all runs of this process. `shared`: its part of the budget of all calls; None = there is none.
    owner: begins the names of this process's attempts in ledgers. roles, keys: its parts of the budgets of roles and of
    keys of upstreams; `day_budgets.py` reserves in them. lend: gives its part of any budget; None = nothing is shared.
    """

    def __init__(
        self,
        shared: Share | None = None,
        owner: str = "",
        *,
        roles: Mapping[str, Share] = MappingProxyType({}),
        keys: Mapping[str, Share] = MappingProxyType({}),
        lend: Callable[[Budget], Account] | None = None,
    ) -> None:
        self.owner = owner
        self.roles = roles
        self.keys = keys
        self.lend = lend
        self._runs: dict[str, _Run] = defaultdict(_Run)
        self._items: dict[tuple[str, str], _Item] = {}  # the one used longest ago first
        self._shared = shared

    def of(self, run: str) -> Account:
        """The account of a run; without `set`, one without a limit."""
        return self._runs[run].account

    def set(
        self,
        run: str,
        *,
        limit: int | None,
        spent: int = 0,
        allow_unpriced: bool = False,
        rules: Rules | None = None,
        beside: Sequence[Account] = (),
    ) -> Account:
        """Give a run its budget; `spent`: by its earlier sessions. `allow_unpriced`: models without a price may run
        although there is a limit; what they cost is then not counted. rules: budgets within the run. beside: parts of
        budgets shared by processes, in which all its calls must fit too.
        """
        if rules is not None and rules.per_item is None and rules.per_agent is None:
            rules = None
        account = Account(limit=limit, spent=spent, allow_unpriced=allow_unpriced)
        self._runs[run] = _Run(account, tuple(beside), rules)
        return account

    def close(self, run: str) -> Account:
        """Take a finished run's account out and return it."""
        for key in [key for key in self._items if key[0] == run]:
            del self._items[key]
        return self._runs.pop(run, _Run()).account

    def budgets(self) -> dict[str, tuple[int, int]]:
        """What is spent or reserved, and the whole: of the budgets of all runs together (`run`), and of the one that
        processes share (`shared`). Without those that there are not; of several beside a run, of the first.
        """
        own = [account for each in self._runs.values() for account in (each.account, *each.beside[:1])]
        runs = [used for account in own if (used := account.used()) is not None]
        found = {"run": (sum(used for used, _ in runs), sum(whole for _, whole in runs))} if runs else {}
        if self._shared is not None and (shared := self._shared.today().used()) is not None:
            found["shared"] = shared
        return found

    def change(self, *, day: int | None, roles: Mapping[str, int], keys: Mapping[str, int]) -> None:
        """Keep these amounts from now on, of the shared budgets that there are."""
        if self._shared is not None and day is not None:
            self._shared.change(day)
        for shares, limits in ((self.roles, roles), (self.keys, keys)):
            for name in shares.keys() & limits.keys():
                shares[name].change(limits[name])

    def limited(self, run: str) -> bool:
        """Whether any budget holds for the calls of a run."""
        found = self._runs[run]
        others = self._shared is not None or found.rules is not None or bool(found.beside)
        return others or found.account.limit is not None

    def pressed(self, run: str, share: Decimal, *, task: str = "", agent: str = "", role: str = "") -> bool:
        """Whether `share` of a budget that a call belongs to is used: spent, or reserved by others."""
        used = [account.used() for account in self.path(run, task, agent, role)]
        return any(each is not None and each[0] >= share * each[1] for each in used)

    async def reserve(self, run: str, amount: int, *, task: str = "", agent: str = "") -> Hold:
        """Set `amount` aside. While it only fits once other calls return what they reserved, wait for them, first come
        first served.

        Raises: BudgetReached when it does not fit in what is left of the run's or the shared budget, ItemBudgetReached
        for that of the item or the agent; StoreError. Cancelling reserves nothing.
        """
        rules = self._runs[run].rules
        if rules is not None:
            await self._open_item(run, task, rules)
        return await self.reserve_in(self.path(run, task, agent), amount)

    async def reserve_in(self, path: tuple[Account, ...], amount: int) -> Hold:
        """The same in the accounts of `path`."""
        hold = Hold(path, amount)
        blocked: Account | None
        while True:
            for blocked in path:
                if _crowded(blocked):
                    break
            else:
                blocked = _take(hold)
                if blocked is None:
                    return hold
            if blocked.lease is not None:
                await blocked.lease.fill(amount)
                blocked = _take(hold)
                if blocked is None:
                    return hold
            elif await self._turn(blocked, hold):
                return hold

    def room(self, run: str, amount: int, *, task: str = "", agent: str = "", role: str = "") -> bool:
        """Whether `amount` would be set aside at once."""
        return self.room_in(self.path(run, task, agent, role), amount)

    def room_in(self, path: tuple[Account, ...], amount: int) -> bool:
        """The same in the accounts of `path`."""
        return not any(_crowded(each) or _short(each, amount) for each in path)

    def settle(self, hold: Hold, cost: int) -> None:
        """Replace a reservation by the cost."""
        for account in hold.path:
            account.reserved -= hold.amount
            account.spent += cost
        for account in hold.path:
            if account.waiting:
                _wake(account)
            if account.lease is not None:
                account.lease.freed()

    async def _turn(self, account: Account, hold: Hold) -> bool:
        """Wait behind others for `account`; True when `hold` was taken, False when to look again."""
        if account.waiting is None:
            account.waiting = deque()
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        account.waiting.append((hold, future))
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None and future.result():  # given in the same moment
                self.settle(hold, 0)
            _wake(account)
            raise

    def path(self, run: str, task: str, agent: str, role: str = "") -> tuple[Account, ...]:
        """The accounts of a call, the innermost first; with `role`, that of its budget too."""
        found = self._runs[run]
        path = (found.account, *found.beside)
        if role in self.roles:
            path = (*path, self.roles[role].today())
        if self._shared is not None:
            path = (*path, self._shared.today())
        rules = found.rules
        item = None if rules is None else self._items.get((run, task))
        if rules is None or item is None:
            return path
        limit = rules.per_agent
        if limit is None:
            return (item.account, *path)
        return (item.agents.setdefault(agent, Account(limit=limit, kind="agent")), item.account, *path)

    async def _open_item(self, run: str, task: str, rules: Rules) -> None:
        """Have the item's account at hand."""
        key = run, task
        if key not in self._items:
            before = {} if rules.earlier is None else await rules.earlier(task)
            agents = {name: Account(limit=rules.per_agent, spent=cost, kind="agent") for name, cost in before.items()}
            account = Account(limit=rules.per_item, spent=sum(before.values()), kind="item")
            self._items.setdefault(key, _Item(account, agents))
            if len(self._items) > MOST_ITEMS:
                del self._items[next(key for key, item in self._items.items() if item.idle())]
        self._items[key] = self._items.pop(key)


def _crowded(account: Account) -> bool:
    return bool(account.waiting) or (account.lease is not None and account.lease.closed())


def _take(hold: Hold) -> Account | None:
    """Set the amount aside in the whole path, or nowhere: then the first account that lacks room for now.

    Raises: BudgetReached, ItemBudgetReached when it never will have it.
    """
    blocked, amount = None, hold.amount
    for account in hold.path:
        if _short(account, amount):
            if account.lease is None and not _fits(account, amount):
                raise _reached(account, amount)
            blocked = blocked or account
    if blocked is None:
        for account in hold.path:
            account.reserved += amount
    return blocked


def _short(account: Account, amount: int) -> bool:
    """Whether the account lacks room for now."""
    over = account.lease is not None and account.lease.over()
    return over or not _fits(account, account.reserved + amount)


def _fits(account: Account, amount: int) -> bool:
    return account.limit is None or account.spent + amount <= account.limit


def _wake(account: Account) -> None:
    queue = account.waiting
    while queue:
        hold, future = queue[0]
        if not future.done():
            try:
                blocked = _take(hold)
                if blocked is account:
                    return
                future.set_result(blocked is None)
            except (BudgetReached, ItemBudgetReached) as error:
                future.set_exception(error)
        queue.popleft()


def _reached(account: Account, amount: int) -> BudgetReached | ItemBudgetReached:
    said = (
        f"{show_usd(account.limit)} is reached: {show_usd(account.spent)} are spent and the next call could cost "
        f"{show_usd(amount)}; raise the budget to at least {show_least(account.spent + amount)}, or lower max_tokens"
    )
    if account.kind == "run":
        return BudgetReached(f"the budget of {said}", needs_pico=amount)
    return ItemBudgetReached(f"the {account.kind}'s own budget of {said}")
