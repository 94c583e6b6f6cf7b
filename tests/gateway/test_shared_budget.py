"""One budget for several processes: real ones, on SQLite and on PostgreSQL, one of them ended with SIGKILL."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from siafu.errors import BudgetReached, StoreError
from siafu.gateway.accounts import Accounts
from siafu.gateway.shared import Daily, Slices, day_budget
from siafu.pace.clock import VirtualClock
from siafu.store.budgets import Budget, Loan

CHILD = Path(__file__).with_name("budget_child.py")
CALL = 130_000_000  # pico-dollars, a little more than a call of the child reserves
LIMIT = 600 * 10**8


def charged(journal: Path) -> tuple[int, int]:
    """Lines of a ledger, and what they may have cost at most."""
    if not journal.exists():
        return 0, 0
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(journal)) as db:
        query = "SELECT COUNT(*), COALESCE(SUM(COALESCE(usd_pico, reserved_pico)), 0) FROM attempt"
        found: tuple[int, int] = db.execute(query).fetchone()
        return found
    return 0, 0


def until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.kill
@pytest.mark.timeout(300)
def test_g16_a_thousand_agents_in_three_processes_overspend_nothing(sql_url: str, tmp_path: Path) -> None:
    """And what a killed one held is spent by the others: all but less than one call is used in the end."""
    journals = [tmp_path / f"실행{number}.db" for number in range(3)]

    def start(journal: Path, agents: int, answers: int) -> subprocess.Popen[bytes]:
        words = [str(LIMIT), str(agents), str(answers)]
        return subprocess.Popen([sys.executable, CHILD, sql_url, journal, *words], stderr=subprocess.PIPE)

    processes = [start(journals[0], 40, 60)]  # its calls hang in the end, so it never ends by itself
    until(lambda: charged(journals[0])[0] > 20)
    processes += [start(journal, 480, 10**6) for journal in journals[1:]]
    until(lambda: sum(charged(journal)[0] for journal in journals[1:]) > 20)
    processes[0].kill()
    errors = [process.communicate(timeout=200)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [-9, 0, 0], errors
    spent = [charged(journal)[1] for journal in journals]
    assert LIMIT - CALL < sum(spent) <= LIMIT
    assert spent[0]


class Bank:
    """A Lender for one holder, with a fault switch."""

    seconds = 10.0

    def __init__(self, *, elsewhere: int = 0) -> None:
        self.elsewhere = elsewhere
        self.down = False
        self.asked: list[tuple[str, int, int, int, int]] = []

    async def sync(self, budget: Budget, *, spent: int, held: int, need: int, want: int) -> Loan:
        await asyncio.sleep(0)
        if self.down:
            raise StoreError("the budgets' database cannot be reached")
        self.asked.append((budget.name, spent, held, need, want))
        left = budget.limit - spent - self.elsewhere
        free = left - held
        return Loan(amount=held + (min(free, max(need, want)) if free >= need else 0), left=left)


def daily(bank: Bank, clock: VirtualClock) -> tuple[Slices, Accounts]:
    slices = Slices(bank, clock)
    return slices, Accounts(Daily(1000, slices))


async def test_a_slice_is_filled_for_many_who_wait_and_used_without_asking() -> None:
    bank = Bank()
    _, accounts = daily(bank, VirtualClock())
    await asyncio.gather(*(accounts.reserve("r", 4) for _ in range(60)))
    asked = len(bank.asked)
    assert 1 < asked < 10 and max(want for *_, want in bank.asked) == 60  # some are left for other processes
    hold = await accounts.reserve("r", 1)
    assert len(hold.path) == 2 and len(bank.asked) <= asked + 1
    await accounts.reserve("r", 1)
    assert len(bank.asked) <= asked + 1


async def test_a_day_whose_budget_is_used_says_so_and_what_would_do() -> None:
    _, accounts = daily(Bank(elsewhere=990), VirtualClock())
    with pytest.raises(BudgetReached, match=r"a day, for all processes.*\[budgets\] day") as caught:
        await accounts.reserve("r", 20)
    assert (caught.value.budget, caught.value.needs_pico) == ("day", 20)
    await accounts.reserve("r", 10)


async def test_a_lease_that_is_over_is_not_spent_from() -> None:
    """When the database cannot be reached, nothing is sent once the lease may be over; the caller is told."""
    bank, clock = Bank(), VirtualClock()
    _, accounts = daily(bank, clock)
    accounts.settle(await accounts.reserve("r", 5), 5)
    bank.down = True
    await accounts.reserve("r", 5)
    await clock.sleep(8.0)
    with pytest.raises(StoreError):
        await accounts.reserve("r", 1)
    bank.down = False
    await accounts.reserve("r", 1)


async def test_an_idle_slice_goes_back_and_a_used_one_is_held_on() -> None:
    bank, clock = Bank(), VirtualClock()
    slices, accounts = daily(bank, clock)
    own = slices.of(day_budget(clock.wall(), 1000))
    hold = await accounts.reserve("r", 5)
    await own.renew()
    assert bank.asked[-1][1:] == (0, 5, 0, 0)
    accounts.settle(hold, 3)
    await own.renew()
    assert bank.asked[-1][1:] == (3, 0, 0, 10)
    await slices.release()
    assert bank.asked[-1][1:] == (3, 0, 0, 0)


async def test_a_slice_that_was_given_back_asks_no_more_but_tells_what_it_could_not_tell() -> None:
    bank, clock = Bank(), VirtualClock()
    slices, accounts = daily(bank, clock)
    own = slices.of(day_budget(clock.wall(), 1000))
    accounts.settle(await accounts.reserve("r", 5), 3)
    bank.down = True
    for _ in range(2):
        with pytest.raises(StoreError):
            await own.renew()
    bank.down = False
    await own.renew()
    assert bank.asked[-1][1:] == (3, 0, 0, 0)
    asked = len(bank.asked)
    await own.renew()
    await slices.release()
    assert len(bank.asked) == asked


async def test_a_clock_that_is_put_back_over_midnight_takes_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, clock = Bank(), VirtualClock()
    slices, accounts = daily(bank, clock)
    renewing = asyncio.create_task(slices.run())
    accounts.settle(await accounts.reserve("r", 900), 900)
    ahead = {"seconds": 86_400.0}
    monkeypatch.setattr(clock, "wall", lambda: 1_767_225_600.0 + ahead["seconds"])
    accounts.settle(await accounts.reserve("r", 5), 5)
    await clock.sleep(60.0)
    ahead["seconds"] = 0.0
    await accounts.reserve("r", 50)
    assert bank.asked[-1][:2] == (bank.asked[0][0], 900)
    ahead["seconds"] = 3 * 86_400.0
    await clock.sleep(60.0)
    assert len(slices._slices) == 1, "what holds a reservation stays, and nothing else"
    renewing.cancel()


async def test_each_day_has_its_own_budget() -> None:
    bank, clock = Bank(), VirtualClock()
    _, accounts = daily(bank, clock)
    accounts.settle(await accounts.reserve("r", 900), 900)
    await clock.sleep(86_400.0)
    await accounts.reserve("r", 900)
    first, second = bank.asked[0][0], bank.asked[-1][0]
    assert first < second and first.startswith("day ")
    day = day_budget(1_764_460_800.0 + 5, 7)
    assert (day.name, day.since, day.until) == ("day 2025-11-30", 1_764_460_800.0, 1_764_547_200.0)
