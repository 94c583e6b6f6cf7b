"""Processes that make refunds, killed with SIGKILL and stopped for longer than their leases, and what is left of it."""

from __future__ import annotations

import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg

from nursery import Child, Nursery
from paysim import Payments
from siafu.apps.support.shop.money.payments import HttpPayments, Paid
from siafu.apps.support.shop.money.reconcile import reconcile
from siafu.store.database import Database

from .kit import LEASE, intents, let_time_pass, open_db, shop, states

WINDOWS = ("refund_claimed", "refund_dispatching", "refund_called", "refund_finalised")
OPEN = ("reserved", "dispatching", "unknown")
PROCESSES = 3
ASLEEP = 2  # of them at once; one that was stopped within a transaction of SQLite goes on at once
LONGEST_SLEEP = 3.0  # whose end is not counted, when nobody went on with what it held


class Storm:
    """`run` does it. What it counts:

    kills: processes killed at some moment that left a refund unfinished which they had begun.
    stops: processes stopped in the middle of a refund, until their lease was over and another one had gone on with it.
    windows: processes that died at the window they were born for, on one of their first refunds.
    """

    def __init__(self, nursery: Nursery, database: str, payments: Payments, *, seed: int = 0, mutant: str = "") -> None:
        self.kills = self.stops = 0
        self.windows: Counter[str] = Counter()
        self._nursery, self._database, self._payments, self._mutant = nursery, database, payments, mutant
        self._rng = random.Random(seed)
        self._began, self._born = time.time(), 0
        self._awake: dict[str, Child] = {}
        self._doomed: dict[str, tuple[str, Child]] = {}
        self._asleep: dict[str, tuple[float, set[str], Child]] = {}

    def run(self, kills: int, stops: int, seconds: float, tick: Callable[[], None] = lambda: None) -> None:
        """Until there were so many, and each window was hit; at most for so long. The processes end with it. tick:
        called again and again.
        """
        deadline = time.monotonic() + seconds
        open_db(self._database).close()
        self._rows = onlooker(self._database)
        try:
            while time.monotonic() < deadline and (
                self.kills < kills or self.stops < stops or len(self.windows) < len(WINDOWS)
            ):
                self._fill()
                time.sleep(self._rng.uniform(0.01, 0.06))
                self._collect()
                self._wake()
                tick()
                busy = [name for name in self._holders() if name in self._awake]
                if not busy:
                    continue
                name = self._rng.choice(busy)
                if self.stops + len(self._asleep) < stops and len(self._asleep) < ASLEEP:
                    self._stop(name)
                elif self.kills < kills:
                    self._kill(name)
        finally:
            for child in (*self._awake.values(), *(entry[-1] for entry in self._others())):
                child.send(signal.SIGCONT)
                child.end()
            self._rows.close()

    def _others(self) -> list[tuple[Any, ...]]:
        return [*self._doomed.values(), *self._asleep.values()]

    def _fill(self) -> None:
        while len(self._awake) + len(self._asleep) < PROCESSES:
            name, child = self._bear()
            self._awake[name] = child
        if not self._doomed:
            window = min(WINDOWS, key=lambda window: (self.windows[window], self._rng.random()))
            name, child = self._bear(f"{window}:{self._rng.randint(1, 8)}")
            self._doomed[name] = (window, child)

    def _bear(self, crash_at: str = "") -> tuple[str, Child]:
        self._born += 1
        name = f"{self._began}-{self._born}"
        words = (self._database, self._payments.url, "many", name)
        return name, self._nursery.bear(*words, crash_at=crash_at, mutant=self._mutant)

    def _collect(self) -> None:
        """Those that have met their window. Nothing else ends a process by itself."""
        for name, (window, child) in list(self._doomed.items()):
            if child.status() is not None:
                assert child.wait(5) == -signal.SIGKILL, "a process failed"
                self.windows[window] += 1
                del self._doomed[name]
        for child in self._awake.values():
            assert child.status() is None, "a process failed"

    def _kill(self, name: str) -> None:
        status = self._awake.pop(name).end()
        assert status == -signal.SIGKILL, "a process failed"
        self.kills += bool(self._held(name) or self._claimed(name))

    def _stop(self, name: str) -> None:
        """Its siblings go on meanwhile, also with what it held."""
        child = self._awake.pop(name)
        child.send(signal.SIGSTOP)
        child.wait_stopped(5)
        if self._writable():
            self._asleep[name] = (time.monotonic(), self._held(name), child)
        else:  # in a transaction: nobody could go on before it does
            child.send(signal.SIGCONT)
            self._awake[name] = child

    def _wake(self) -> None:
        for name, (since, held, child) in list(self._asleep.items()):
            slept = time.monotonic() - since
            taken_over = bool(held - self._held(name)) and slept > 1.5 * LEASE
            if taken_over or not held or slept > LONGEST_SLEEP:
                child.send(signal.SIGCONT)
                self.stops += taken_over
                self._awake[name] = child
                del self._asleep[name]

    def _writable(self) -> bool:
        """Whether others can begin a transaction; on SQLite one that was stopped within one holds up all."""
        if not isinstance(self._rows, sqlite3.Connection):
            return True
        try:
            self._rows.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        self._rows.execute("ROLLBACK")
        return True

    def _holders(self) -> list[str]:
        """The processes that carry out a refund just now."""
        sql = "SELECT DISTINCT lease_owner FROM refund_intent WHERE state = 'dispatching' ORDER BY 1"
        return [owner for (owner,) in self._rows.execute(sql).fetchall()]

    def _held(self, owner: str) -> set[str]:
        """The refunds that a process has begun to carry out, as far as nobody else has gone on with them."""
        sql = "SELECT refund_id FROM refund_intent WHERE state = 'dispatching' AND lease_owner = '{}'"
        return {refund_id for (refund_id,) in self._rows.execute(sql.format(owner)).fetchall()}

    def _claimed(self, run: str) -> bool:
        sql = "SELECT 1 FROM refund_intent WHERE state = 'reserved' AND lease_epoch = 0 AND run = '{}'"
        return bool(self._rows.execute(sql.format(run)).fetchall())


def onlooker(database: str) -> Any:
    """A connection that waits for no lock: the shop's own door begins every transaction as a writer."""
    if database.startswith("sqlite"):
        return sqlite3.connect(database.removeprefix("sqlite:///"), isolation_level=None, timeout=0.3)
    return psycopg.connect(database, autocommit=True)


async def settle(database: str, payments: Payments) -> dict[str, Any]:
    """Let the completer finish what is left, then say how it came out."""
    db, client = open_db(database), HttpPayments(payments.url)
    refunds = shop(db, client, lease=10.0)
    for _ in range(2000):
        if not any(states(db)[state] for state in OPEN):
            break
        let_time_pass(db)
        await refunds.complete()
    name = (await client.capabilities()).name
    left = [row for row in intents(db) if row["state"] == "manual_review"]
    statement = [
        Paid(**{name: effect[name] for name in ("id", "payment", "amount", "currency", "reference")})
        for effect in payments.effects()
    ]
    calls = [request for request in payments.requests() if request["what"] == "refund"]
    events = db.transact(lambda tx: tx.rows("SELECT refund_id, kind, at FROM refund_event ORDER BY refund_id, seq"))
    reserved = db.transact(lambda tx: tx.row("SELECT sum(reserved_minor) AS reserved FROM payment"))
    found = {
        "states": states(db),
        "effects": len(statement),
        "requests_paid_twice": len(statement) - len({(paid.payment, paid.amount) for paid in statement}),
        "dispatched_after_the_end": _after_the_end(events),
        "arrived_after_the_end": _arrived_after_the_end(db, calls),
        "most_calls_of_one": max(Counter(request["reference"] for request in calls).values(), default=0),
        "fenced": sum(event["kind"] == "fenced" for event in events),
        "reserved": reserved["reserved"] if reserved else 0,
        "under_review": sum(row["amount_minor"] for row in left),
        "reviewed": len(left),
    }
    paid = {made.reference: made.id for made in statement}
    for row in left:  # a person looks at the ledger; then the books are complete
        await refunds.resolve(row["refund_id"], psp_refund_id=paid.get(row["psp_key"]), by="park")
    found["differences"] = [difference.kind for difference in await reconcile(db, name, statement)]
    await client.aclose()
    db.close()
    return found


def _after_the_end(events: list[Any]) -> int:
    """How often a refund was begun to be carried out that had ended before."""
    over: set[str] = set()
    found = 0
    for event in events:
        found += event["kind"] == "dispatching" and event["refund_id"] in over
        if event["kind"] in ("succeeded", "declined"):
            over.add(event["refund_id"])
    return found


def _arrived_after_the_end(db: Database, calls: list[dict[str, Any]]) -> int:
    """How many calls came to the provider after the end of their refund was written down. Both have one clock."""
    ended = db.transact(
        lambda tx: tx.rows(
            """SELECT psp_key, min(at) AS at FROM refund_event JOIN refund_intent USING (refund_id)
               WHERE kind = 'succeeded' GROUP BY psp_key"""
        )
    )
    over = {row["psp_key"]: row["at"] for row in ended}
    return sum(request["at"] > over.get(request["reference"], float("inf")) + 0.05 for request in calls)


def violations(found: dict[str, Any], mode: str) -> list[str]:
    """What must not be in what `settle` found; empty = it held."""
    wrong = [name for name in ("requests_paid_twice", "dispatched_after_the_end", "differences") if found[name]]
    # A process that is stopped between its last look at the clock and the socket sends when it wakes up. The provider's
    # key makes that nothing; without one a second call is never begun.
    wrong += ["arrived_after_the_end"] if found["arrived_after_the_end"] > found["fenced"] else []
    wrong += ["reserved"] if found["reserved"] != found["under_review"] else []
    wrong += ["states"] if not set(found["states"]) <= {"succeeded", "manual_review"} else []
    if mode == "idempotent":
        wrong += ["manual_review"] if found["states"]["manual_review"] else []
    else:
        wrong += ["most_calls_of_one"] if found["most_calls_of_one"] > 1 else []
    return wrong
