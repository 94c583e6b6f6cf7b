"""Processes that die at each window, or sleep through their leases. Judged from the provider's ledger."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from paysim import running_payments
from siafu.apps.support.shop.money.payments import HttpPayments
from siafu.store.database import Database

from .kit import ask, books, code, done, let_time_pass, order, shop
from .storm import Storm, child, settle

WINDOWS = ("refund_claimed", "refund_dispatching", "refund_called", "refund_finalised")
# A call may have been made, and nothing tells.
UNCLEAR = {("lookup", "refund_dispatching"), ("neither", "refund_dispatching"), ("neither", "refund_called")}
pytestmark = pytest.mark.kill


@pytest.mark.parametrize("mode", ["idempotent", "lookup", "neither"])
async def test_t4_a_crash_at_each_window_has_one_effect(db: Database, sql_url: str, tmp_path: Path, mode: str) -> None:
    """Where the provider cannot tell a repetition, it is at most one, and a person is told."""
    with running_payments(tmp_path / "paid.jsonl", mode=mode) as sim:
        client = HttpPayments(sim.url)
        refunds = shop(db, client)
        for order_id, window in zip(("2001", "2002", "2003", "2004"), WINDOWS, strict=True):
            assert child(sql_url, sim.url, "one", order_id, crash_at=window).wait(60) == -signal.SIGKILL
            asked = ask(order_id, 3_000, order=order(order_id))
            for _ in range(25):  # an unclear end is looked into twenty times
                let_time_pass(db)
                outcome = await refunds.refund(asked)
            requests = [request for request in sim.requests() if request["what"] == "refund"]
            paid = [effect["amount"] for effect in sim.effects() if effect["payment"] == f"pay_{order_id}"]
            assert len([1 for request in requests if request["body"]["payment"] == f"pay_{order_id}"]) <= 1
            if (mode, window) in UNCLEAR:
                assert (code(outcome), books(db, order_id)) == ("unknown_outcome", (0, 3_000))
                assert paid == ([3_000] if window == "refund_called" else [])
            else:
                assert (done(outcome).replayed, books(db, order_id), paid) == (True, (3_000, 0), [3_000])
        await client.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["idempotent", "lookup"])
async def test_t8_kills_and_sleeps(sql_url: str, tmp_path: Path, mode: str) -> None:
    with running_payments(tmp_path / "paid.jsonl", mode=mode, slow=30) as sim:
        storm = Storm(sql_url, sim)
        storm.run(kills=6, stops=3, seconds=90)
        found = await settle(sql_url, sim)
    assert (storm.kills, storm.stops) == (6, 3)
    assert found["effects"] > 10
    assert (found["duplicate_effects"], found["late_dispatches"]) == (0, 0), found
    assert found["reserved"] == found["reserved_expected"]
    assert set(found["states"]) <= {"succeeded", "manual_review"}
    if mode == "idempotent":
        assert (found["states"]["manual_review"], found["differences"]) == (0, [])
    else:
        assert found["most_dispatches"] == 1
