"""kill -9 of `siafu worker` over the support swarm, judged by the endpoint's and the payment provider's own records."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paysim import running_payments
from siafu.store.database import Database
from siafu.store.task_schema import MIGRATIONS
from sim import Sim, running_sim
from support.commands import environment, examples, siafu, until, write

pytestmark = [pytest.mark.kill, pytest.mark.slow]
SLOTS, KILLS = 6, (4, 9)  # requests of a life after which it is killed


@pytest.mark.timeout(180)
def test_what_was_answered_is_not_asked_again_and_refunds_are_paid_once(tmp_path: Path) -> None:
    requests = examples(16)
    write(tmp_path / "문의.jsonl", requests)
    with (
        running_sim(seed=3, latency="fixed:60ms") as sim,
        running_payments(tmp_path / "paid.jsonl", slow=20) as payments,
    ):
        more = {"SIAFU_PAYMENTS_URL": payments.url, "SIAFU_BASE_URL": sim.url}
        assert siafu(tmp_path, "submit", "support", "문의.jsonl", **more).returncode == 0
        for kill_at in KILLS:
            killed(tmp_path, sim, kill_at, more)
        ended = siafu(tmp_path, *WORKER, "--until-empty", "--json", **more)
        assert ended.returncode == 0, ended.stderr
        until(lambda: sim.stats()["in_flight"] == 0, "the endpoint still answers")
        asked, duplicates = sim.requests(), payments.stats()["duplicates"]
        effects = Counter(effect["amount"] for effect in payments.effects())
    rows = query(tmp_path, "SELECT state, result, lease_epoch FROM task ORDER BY created_at")
    records = [json.loads(row["result"]) for row in rows]
    assert [record["id"] for record in records] == [request.id for request in requests]
    assert {row["state"] for row in rows} <= {"succeeded", "waiting"}  # a person has to decide some refunds
    assert sum(row["lease_epoch"] > 1 for row in rows) >= len(KILLS), "no task was taken over"
    # The journal holds every answer that a record rests on, and calls in flight at a kill were asked again, no others.
    (journaled,) = query(tmp_path, "SELECT COUNT(*) AS n FROM task_journal WHERE kind = 'model'")
    lost = len(asked) - journaled["n"]
    assert 0 <= lost <= SLOTS * len(KILLS)
    repeated = len(asked) - len({request["sha256"] for request in asked})
    assert repeated <= lost
    assert sum(record["steps"] for record in records) <= journaled["n"]
    assert duplicates == 0
    paid = Counter(
        refund["amount_minor"] for record in records for refund in record["refunds"] if refund["state"] == "paid"
    )
    assert paid and not paid - effects


WORKER = ("worker", "--slots", str(SLOTS), "--lease", "1", "--poll", "0.05", "--database", "shop.db")


def killed(folder: Path, sim: Sim, kill_at: int, more: dict[str, str]) -> None:
    """One life of a worker, that ends after the endpoint got so many requests from it."""
    before = sim.stats()["requests"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "siafu", *WORKER],
        cwd=folder, env=environment(**more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: worker.poll() is not None or sim.stats()["requests"] >= before + kill_at, "nothing was asked")
        assert worker.poll() is None
    finally:
        worker.kill()
        worker.wait()
    until(lambda: sim.stats()["in_flight"] == 0, "the endpoint still answers")


def query(folder: Path, sql: str) -> list[dict[str, Any]]:
    database = Database(folder / ".siafu" / "tasks.db", MIGRATIONS, what="the test's tasks", schema="tasks")
    rows = [dict(row) for row in database.transact(lambda tx: tx.rows(sql))]
    database.close()
    return rows
