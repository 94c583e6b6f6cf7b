"""Processes that make refunds, killed with SIGKILL and stopped for longer than their leases, and what is left of it.

In the suite a few; for a long one:  PYTHONPATH=src:tests python -m money.storm DATABASE MODE KILLS STOPS
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from paysim import Payments, running_payments
from siafu.apps.support.shop.money.payments import HttpPayments, Paid
from siafu.apps.support.shop.money.reconcile import reconcile
from siafu.store.database import Database

from .kit import LEASE, intents, let_time_pass, open_db, shop, states

TESTS, SRC = Path(__file__).parents[1], Path(__file__).parents[2] / "src"
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{SRC}:{TESTS}"}
OPEN = ("reserved", "dispatching", "unknown")
PROCESSES = 3


def child(database: str, payments: str, *words: str, crash_at: str = "") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "money.child", database, payments, *words]
    return subprocess.Popen(command, env={**ENVIRONMENT, "SIAFU_CRASH_AT": crash_at})


def in_flight(db: Database, owner: str) -> bool:
    """Whether a process holds a lease at this moment."""
    return bool(
        db.transact(
            lambda tx: tx.rows(
                """SELECT 1 FROM refund_intent
                   WHERE state = 'dispatching' AND lease_owner = :owner AND lease_until > {now}""",
                owner=owner,
            )
        )
    )


class Storm:
    """`run` does it; then `kills` and `stops` say how often a process had work in flight when it was hit."""

    def __init__(self, database: str, payments: Payments, seed: int = 0) -> None:
        self.database, self.payments, self.rng = database, payments, random.Random(seed)
        self.kills = self.stops = 0
        self._epoch, self._born = time.time(), 0
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def run(self, kills: int, stops: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        db = open_db(self.database)
        try:
            while (self.kills < kills or self.stops < stops) and time.monotonic() < deadline:
                while len(self._children) < PROCESSES:
                    self._bear()
                time.sleep(self.rng.uniform(0.02, 0.1))
                name = self.rng.choice(list(self._children))
                if not in_flight(db, name):
                    continue
                if self.stops < stops and self.rng.random() < 0.5:
                    self._stop(name)
                elif self.kills < kills:
                    self.kills += 1
                    self._end(name)
        finally:
            for name in list(self._children):
                self._end(name)
            db.close()

    def _bear(self) -> None:
        self._born += 1
        name = f"{self._epoch}-{self._born}"
        self._children[name] = child(self.database, self.payments.url, "many", name)

    def _stop(self, name: str) -> None:
        """Its siblings go on meanwhile, also with what it held."""
        process = self._children[name]
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.5 * LEASE)
        process.send_signal(signal.SIGCONT)
        self.stops += 1

    def _end(self, name: str) -> None:
        process = self._children.pop(name)
        process.kill()
        process.wait(10)


async def settle(database: str, payments: Payments) -> dict[str, Any]:
    """Let the completer finish what is left, then say how it came out."""
    db, client = open_db(database), HttpPayments(payments.url)
    refunds = shop(db, client, lease=10.0)
    for _ in range(40):
        if not any(states(db)[state] for state in OPEN):
            break
        let_time_pass(db)
        await refunds.complete()
    statement = [
        Paid(**{name: effect[name] for name in ("id", "payment", "amount", "currency", "reference")})
        for effect in payments.effects()
    ]
    ended = db.transact(
        lambda tx: tx.rows(
            """SELECT psp_key, min(at) AS at FROM refund_event JOIN refund_intent USING (refund_id)
               WHERE kind = 'succeeded' GROUP BY psp_key"""
        )
    )
    over = {row["psp_key"]: row["at"] for row in ended}
    calls = [request for request in payments.requests() if request["what"] == "refund"]
    reserved = db.transact(lambda tx: tx.rows("SELECT sum(reserved_minor) AS reserved FROM payment"))[0]["reserved"]
    found = {
        "states": states(db),
        "effects": len(statement),
        "duplicate_effects": len(statement) - len({paid.reference for paid in statement}),
        "late_dispatches": sum(
            request["at"] > over.get(request["reference"], float("inf")) + 0.05 for request in calls
        ),
        "most_dispatches": max(Counter(request["reference"] for request in calls).values()),
        "differences": [difference.kind for difference in await reconcile(db, "payments", statement)],
        "reserved": reserved,
        "reserved_expected": sum(row["amount_minor"] for row in intents(db) if row["state"] == "manual_review"),
    }
    await client.aclose()
    db.close()
    return found


if __name__ == "__main__":
    where, mode, kills, stops = sys.argv[1:]
    with (
        tempfile.TemporaryDirectory() as folder,
        running_payments(Path(folder) / "paid.jsonl", mode=mode, slow=30) as sim,
    ):
        storm = Storm(where, sim, seed=int(time.time()))
        storm.run(int(kills), int(stops), seconds=86_400)
        sys.stdout.write(f"{storm.kills} kills, {storm.stops} stops: {asyncio.run(settle(where, sim))}\n")
