"""Budgets that processes share, in SQL. A process leases a slice before it spends, tells now and then what it has
spent, and gives the rest back.

    spent (told by everybody) + slices (what their holders may still spend) <= limit

A holder that no longer comes (kill -9, power cut) keeps its slice until its lease ends. Whoever wants money then
charges what that holder's ledger says it spent, and takes the rest back. Without its ledger (no journal, another
machine) nobody knows, so the whole slice is charged, as a call whose usage is not known is.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from siafu.errors import StoreError
from siafu.store.database import Database, Transaction
from siafu.store.schema import open_reader

LEASE_SECONDS = 15.0
KEPT_SECONDS = 7 * 86_400.0  # a budget of a day, beyond its end and beyond the last lease of it
FORGOTTEN = 100  # budgets at once

SCHEMA = "budgets"
MIGRATIONS = (
    (
        "CREATE TABLE budget (name TEXT PRIMARY KEY, spent {integer} NOT NULL) {strict}",
        # told: what the holder has spent since it began; amount: what it may spend beyond that
        "CREATE TABLE budget_slice (holder TEXT NOT NULL, budget TEXT NOT NULL REFERENCES budget,"
        " journal TEXT NOT NULL, told {integer} NOT NULL, amount {integer} NOT NULL CHECK (amount >= 0),"
        " lease_until {real} NOT NULL, PRIMARY KEY (budget, holder)) {strict}",
    ),
)


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """In pico-dollars, for attempts sent from `since` until before `until` (seconds since 1970). role: only of this
    role's agents; key: only with this key of an upstream; client: only for this client key of `siafu serve`; None = of
    all. name: unique, begins with `day ` when it ends. opening: what was spent of it before anybody kept it.
    """

    name: str
    limit: int
    since: float
    until: float
    role: str | None = None
    key: str | None = None
    client: str | None = None
    opening: int = 0


class Loan(msgspec.Struct, frozen=True, kw_only=True):
    """amount: what the holder may spend beyond what it told. left: of the whole budget, as if nothing were held."""

    amount: int
    left: int


class _Expired(msgspec.Struct, frozen=True):
    holder: str
    journal: str
    told: int
    amount: int
    lease_until: float


class Budgets:
    """Slices for one holder. holder: begins the names of its attempts in its ledger. journal: the file with that
    ledger, which is there from the first attempt on; None = it has none. seconds: how long a lease holds without being
    renewed.
    """

    def __init__(self, database: Database, holder: str, journal: Path | None, seconds: float = LEASE_SECONDS) -> None:
        self._database = database
        self._holder = holder
        self._journal = journal
        self.seconds = seconds

    async def sync(self, budget: Budget, *, spent: int, held: int, need: int, want: int) -> Loan:
        """Tell what this holder has spent so far in all, and lease again from now on.

        It keeps `held`, which is on its way. If `need` more is free, it gets that, and up to `want` of what is free; if
        not, nothing, so that two holders that both need more do not wait for each other for ever.

        Raises: StoreError. When cancelled, all of it may or may not have happened.
        """

        def work(transaction: Transaction) -> tuple[Loan, list[_Expired]]:
            return self._sync(transaction, budget, spent, held, need, want)

        loan, expired = await self._database.run(work)
        if not expired:
            return loan
        for each in expired:
            settle = await asyncio.to_thread(self._settling, each, budget)  # it reads all of a ledger
            await self._database.run(settle)
        loan, _ = await self._database.run(work)
        return loan

    def _sync(
        self, transaction: Transaction, budget: Budget, spent: int, held: int, need: int, want: int
    ) -> tuple[Loan, list[_Expired]]:
        name, holder = budget.name, self._holder
        if not transaction.change("UPDATE budget SET spent = spent WHERE name = :name", name=name):  # locks its row
            _forget(transaction)
            transaction.change(
                "INSERT INTO budget (name, spent) VALUES (:name, :opening) ON CONFLICT (name) DO NOTHING",
                name=name, opening=budget.opening,
            )  # fmt: skip
            transaction.change("UPDATE budget SET spent = spent WHERE name = :name", name=name)
        mine = transaction.row(
            "SELECT told FROM budget_slice WHERE budget = :name AND holder = :holder", name=name, holder=holder
        )
        news = spent - (mine["told"] if mine else 0)
        transaction.change("UPDATE budget SET spent = spent + :news WHERE name = :name", news=news, name=name)
        sums = transaction.rows(
            "SELECT spent, (SELECT COALESCE(SUM(amount), 0) FROM budget_slice"
            " WHERE budget = :name AND holder <> :holder) AS others FROM budget WHERE name = :name",
            name=name, holder=holder,
        )[0]  # fmt: skip
        left = budget.limit - sums["spent"]
        free = left - sums["others"] - held
        amount = held + (min(free, max(need, want)) if free >= need else 0)
        transaction.change(
            "INSERT INTO budget_slice (holder, budget, journal, told, amount, lease_until)"
            " VALUES (:holder, :name, :journal, :told, :amount, {now} + :seconds) ON CONFLICT (budget, holder)"
            " DO UPDATE SET told = excluded.told, amount = excluded.amount, lease_until = excluded.lease_until",
            holder=holder, name=name, journal=_mark(self._journal), told=spent, amount=amount, seconds=self.seconds,
        )  # fmt: skip
        expired = transaction.rows(
            "SELECT holder, journal, told, amount, lease_until FROM budget_slice"
            " WHERE budget = :name AND amount > 0 AND lease_until < {now}",
            name=name,
        )
        return Loan(amount=amount, left=left), [_Expired(**each) for each in expired]

    @staticmethod
    def _settling(gone: _Expired, budget: Budget) -> Callable[[Transaction], None]:
        """Charges what a holder that is gone has spent, and takes its slice back; unless it has come back. Blocks."""
        # Read outside the transaction. What is spent is told by sum, so a holder that comes back sets it right.
        told = spent_by(gone.holder, gone.journal, budget)
        told = gone.told + gone.amount if told is None else max(told, gone.told)

        def work(transaction: Transaction) -> None:
            changed = transaction.change(
                "UPDATE budget_slice SET amount = 0, told = :told"
                " WHERE budget = :name AND holder = :holder AND lease_until = :seen AND amount = :amount",
                told=told, name=budget.name, holder=gone.holder, seen=gone.lease_until, amount=gone.amount,
            )  # fmt: skip
            if changed:
                transaction.change(
                    "UPDATE budget SET spent = spent + :news WHERE name = :name",
                    news=told - gone.told, name=budget.name,
                )  # fmt: skip

        return work


def _forget(transaction: Transaction) -> None:
    """Remove budgets of days long past, a part of them if they are many. Nobody asks for them any more."""
    (clock,) = transaction.rows("SELECT {now} AS now")
    before = datetime.fromtimestamp(clock["now"] - KEPT_SECONDS, UTC).date()
    past = transaction.rows(
        "SELECT name FROM budget WHERE name >= 'day ' AND name < :before AND NOT EXISTS"
        " (SELECT 1 FROM budget_slice WHERE budget = name AND lease_until >= {now} - :kept) ORDER BY name LIMIT :most",
        before=f"day {before.isoformat()}", kept=KEPT_SECONDS, most=FORGOTTEN,
    )  # fmt: skip
    if past:
        names = [row["name"] for row in past]
        transaction.change("DELETE FROM budget_slice WHERE budget IN :names", names=names)
        transaction.change("DELETE FROM budget WHERE name IN :names", names=names)


def spent_of(database: Database, names: Sequence[str]) -> Mapping[str, int]:
    """What was told to be spent of budgets (at least one), by name; without those that nobody has used. Blocks.

    Raises: StoreError.
    """
    query = "SELECT name, spent FROM budget WHERE name IN :names"
    rows = database.transact(lambda transaction: transaction.rows(query, names=names))
    return {row["name"]: row["spent"] for row in rows}


def spent_by(holder: str, journal: str, budget: Budget) -> int | None:
    """What a holder's attempts in its ledger were charged at most, in the time of `budget`; None when there is no
    ledger to ask. Blocks.
    """
    path, client = Path(journal.partition(" ")[2]), f"{budget.client}/" if budget.client else ""
    if not journal or _mark(path) != journal:  # none, or another file is there now, as after `--fresh`
        return None
    try:
        db = open_reader(path)
    except StoreError:
        return None
    try:
        (spent,) = db.execute(
            "SELECT COALESCE(SUM(COALESCE(usd_pico, reserved_pico)), 0) FROM attempt"
            " WHERE attempt >= ? AND attempt < ? AND opened_at >= ? AND opened_at < ? AND role = COALESCE(?, role)"
            " AND key = COALESCE(?, key) AND substr(task, 1, length(?)) = ?",
            (holder, holder + "~", budget.since, budget.until, budget.role, budget.key, client, client),
        ).fetchone()
        return int(spent)
    except sqlite3.Error:
        return None
    finally:
        db.close()


def _mark(journal: Path | None) -> str:
    """The number of the file and its path; empty when there is none."""
    if journal is None or not journal.exists():
        return ""
    return f"{journal.stat().st_ino} {journal.resolve()}"
