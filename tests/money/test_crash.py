"""Processes at once, processes that die at each window or sleep through their leases. The provider's ledger judges."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mutants
from nursery import Nursery
from paysim import running_payments
from siafu.apps.support.shop.money.payments import HttpPayments
from siafu.store.database import Database

from .chaos import SLOW
from .kit import ask, books, code, done, let_time_pass, order, shop, states
from .storm import OPEN, WINDOWS, Storm, settle, violations

# A call may have been made, and nothing tells.
UNCLEAR = {("lookup", "refund_dispatching"), ("neither", "refund_dispatching"), ("neither", "refund_called")}
# The door of both databases under one kind of provider, and each kind under a database.
WORLDS = pytest.mark.parametrize(
    ("sql_url", "mode"),
    [("sqlite", "idempotent"), ("postgresql", "idempotent"), ("sqlite", "lookup"), ("postgresql", "neither")],
    indirect=["sql_url"],
)
pytestmark = pytest.mark.kill


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    folder = tmp_path / "processes"
    folder.mkdir()
    with Nursery(folder, "money.child") as opened:
        yield opened


@WORLDS
async def test_t4_a_crash_at_each_window_has_one_effect(
    db: Database, sql_url: str, tmp_path: Path, nursery: Nursery, mode: str
) -> None:
    """Where the provider cannot tell a repetition, it is at most one, and a person is told."""
    with running_payments(tmp_path / "paid.jsonl", mode=mode) as sim:
        client = HttpPayments(sim.url)
        refunds = shop(db, client)
        for order_id, window in zip(("2001", "2002", "2003", "2004"), WINDOWS, strict=True):
            assert nursery.bear(sql_url, sim.url, "one", order_id, crash_at=window).wait(60) == -signal.SIGKILL
            asked = ask(order_id, 3_000, order=order(order_id))
            for _ in range(25):  # an unclear end is looked into twenty times
                let_time_pass(db)
                await refunds.refund(asked)
                if not states(db).keys() & set(OPEN):
                    break
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


def test_f50_two_processes_at_once_never_exceed_the_payment(
    db: Database, sql_url: str, tmp_path: Path, nursery: Nursery
) -> None:
    """Twenty requests of 6.00 on 10.00 are one refund, and so is one request asked for twenty times."""
    with running_payments(tmp_path / "paid.jsonl", slow=SLOW) as sim:
        children = [nursery.bear(sql_url, sim.url, "ten", name) for name in "ab"]
        assert [child.wait(60) for child in children] == [0, 0]
        paid = Counter(effect["payment"] for effect in sim.effects())
        assert (paid, sim.stats()["refund_requests"]) == ({"pay_1001": 1, "pay_1002": 1}, 2)
    assert [books(db, order_id) for order_id in ("1001", "1002")] == [(600, 0), (600, 0)]


@pytest.mark.slow
@WORLDS
async def test_t8_kills_and_sleeps(sql_url: str, tmp_path: Path, nursery: Nursery, mode: str) -> None:
    """In all 24 kills in the middle of a refund, 12 sleeps longer than the lease, and each window four times. `make
    chaos` does it with 1,000 and 50, over each database with each kind of provider.
    """
    with running_payments(tmp_path / "paid.jsonl", mode=mode, slow=SLOW) as sim:
        storm = Storm(nursery, sql_url, sim)
        storm.run(kills=6, stops=3, seconds=100)
        found = await settle(sql_url, sim)
    assert (storm.kills, storm.stops, set(storm.windows)) == (6, 3, set(WINDOWS))
    assert violations(found, mode) == [], found
    assert found["effects"] > 10 and found["fenced"] > 0


async def test_the_storm_can_fail(tmp_path: Path, nursery: Nursery) -> None:
    """Control: with a mistake in the processes and in who takes over from them, the windows alone show it."""
    url, mutant = f"sqlite:///{tmp_path / 'shop.db'}", "money: a key per attempt"
    with running_payments(tmp_path / "paid.jsonl") as sim, pytest.MonkeyPatch.context() as patch:
        mutants.MUTANTS[mutant](patch.setattr)
        storm = Storm(nursery, url, sim, mutant=mutant)
        storm.run(kills=0, stops=0, seconds=60)
        found = await settle(url, sim)
    assert set(storm.windows) == set(WINDOWS)
    assert {"requests_paid_twice", "differences"} <= set(violations(found, "idempotent"))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"requests_paid_twice": 1}, "requests_paid_twice"),
        ({"dispatched_after_the_end": 1}, "dispatched_after_the_end"),
        ({"arrived_after_the_end": 1}, "arrived_after_the_end"),
        ({"differences": ["total"]}, "differences"),
        ({"reserved": 100}, "reserved"),
        ({"states": Counter(unknown=1)}, "states"),
        ({"states": Counter(manual_review=1)}, "manual_review"),
        ({"most_calls_of_one": 2}, "most_calls_of_one"),
    ],
)
def test_each_violation_is_named(wrong: dict[str, Any], named: str) -> None:
    held: dict[str, Any] = {
        "states": Counter(succeeded=3), "requests_paid_twice": 0, "dispatched_after_the_end": 0, "fenced": 0,
        "arrived_after_the_end": 0, "most_calls_of_one": 1, "differences": [], "reserved": 0, "under_review": 0,
    }  # fmt: skip
    mode = "lookup" if named == "most_calls_of_one" else "idempotent"
    assert violations(held, mode) == []
    assert named in violations(held | wrong, mode)
