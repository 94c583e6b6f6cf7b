"""Refunds that a person decides, with all real parts: the command, the shop over stdio, `siafu approvals`, the payment
simulator's ledger; in two lives with a kill -9 between, and in one that waits.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from paysim import running_payments
from sim import running_sim
from support.commands import SECONDS, processes, siafu, until, write
from support.counter import Shop

ASKS = {"r1": ("park", "1003"), "r2": ("jung", "1005"), "r3": ("shin", "1014"), "r4": ("hwang", "1016")}
ABOVE = ("r1", "r2", "r3")  # more than the shop pays back by itself


class Waiting(Shop):
    def waits(self) -> bool:
        """Whether all is done that can be done without a person."""
        path = self.folder / "out.jsonl"
        data = path.read_bytes() if path.exists() else b""
        return (data.count(b"\n"), data.count(b'"waiting":true')) == (len(ASKS), len(ABOVE))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Waiting]:
    with running_sim(seed=3, latency="none") as sim, running_payments(tmp_path / "paid.jsonl") as payments:
        yield Waiting(tmp_path, sim, payments, ASKS)


PENDING = dict.fromkeys(ABOVE, "pending_approval (waiting)") | {"r4": "answered"}
DECIDED = {"r1": "answered", "r2": "refused", "r3": "refused", "r4": "answered"}


@pytest.mark.timeout(180)
def test_approved_denied_and_expired_refunds_go_on_in_the_next_run(shop: Waiting) -> None:
    first = shop.run()
    assert (first["finished"], first["waiting"], first["failed"], first["left"]) == (1, 3, 0, 0)
    assert shop.outcomes() == PENDING
    assert "아직 환불되지 않았습니다" in shop.answer("r1")
    assert shop.paid() == {"pay_1016": 1}
    before, asked = (shop.folder / "out.jsonl").read_bytes(), shop.asked()
    again = shop.siafu(*shop.words[:-1])  # nobody has decided: nothing is asked of a model, nothing changes
    assert again.returncode == 0
    assert "3 of these wait for a person's decision" in again.stdout
    assert "siafu approvals list; then, to go on: " in again.stderr
    assert ((shop.folder / "out.jsonl").read_bytes(), shop.asked()) == (before, asked)

    shop.decide("approve", "r1")
    shop.decide("deny", "r2")
    shop.expire("r3")
    last = shop.run()
    assert (last["finished"], last["waiting"], last["failed"]) == (4, 0, 0)
    assert shop.outcomes() == DECIDED
    assert "119,000원 환불이 처리되었습니다" in shop.answer("r1")
    assert "환불되지 않았습니다" in shop.answer("r2")
    assert "환불되지 않았습니다" in shop.answer("r3")
    assert shop.asked() == asked + 3  # what each decision has changed
    assert shop.paid() == {"pay_1016": 1, "pay_1003": 1}
    ended = (shop.folder / "out.jsonl").read_bytes()
    assert shop.run()["finished"] == 4
    assert ((shop.folder / "out.jsonl").read_bytes(), shop.asked()) == (ended, asked + 3)
    assert shop.siafu("support", "status", "out.jsonl", "--json").returncode == 0


@pytest.mark.kill
@pytest.mark.timeout(240)
def test_a_run_killed_while_it_waits_goes_on_after_the_decision(shop: Waiting) -> None:
    with shop.running("--wait-approvals", "5m") as process:
        until(shop.waits, "nothing waits")
        process.send_signal(signal.SIGKILL)
        assert process.wait(SECONDS) == -signal.SIGKILL
    until(lambda: not processes(str(shop.folder / ".siafu" / "shop.db")), "a shop has outlived its client")
    asked = shop.asked()
    shop.decide("approve", "r1")
    shop.decide("deny", "r2")
    shop.expire("r3")
    # Killed again: when the journal has a tool's new answer, and when it has a new result that the file lacks.
    for point in ("after_append:1", "after_record:1"):
        with shop.running(SIAFU_CRASH_AT=point) as process:
            assert process.wait(SECONDS) == -signal.SIGKILL
        assert set(shop.outcomes()) == set(ASKS)  # nobody is lost at any time
    assert shop.run()["finished"] == 4
    assert shop.outcomes() == DECIDED
    assert shop.paid() == {"pay_1016": 1, "pay_1003": 1}
    assert shop.asked() <= asked + 3 + 2 * 3  # the calls under way at a kill are made again, and nothing else


@pytest.mark.timeout(180)
def test_a_run_that_waits_goes_on_as_people_decide(shop: Waiting) -> None:
    shop.payments.set_faults({"kind": "slow", "wait": 2, "times": 9})
    with shop.running("--wait-approvals", "5m") as process:
        until(shop.waits, "nothing waits")
        asked = shop.asked()
        shop.decide("approve", "r1")
        until(lambda: shop.outcomes()["r1"] == "answered", "an approval is not noticed")  # seen while others wait
        assert process.poll() is None
        assert shop.outcomes() == {**PENDING, "r1": "answered"}
        shop.decide("deny", "r2")
        shop.decide("approve", "r3")
        told, noted = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, noted
    assert shop.outcomes() == {**DECIDED, "r3": "answered"}
    summary = json.loads(told)
    assert (summary["finished"], summary["waiting"], summary["left"]) == (4, 0, 0)
    assert "3 wait for a person's decision: siafu approvals list" in noted.decode()
    assert shop.asked() == asked + 3
    assert shop.paid() == {"pay_1016": 1, "pay_1003": 1, "pay_1014": 1}


@pytest.mark.timeout(120)
def test_the_time_for_waiting_ends_and_a_signal_ends_it_too(shop: Waiting) -> None:
    assert shop.run("--wait-approvals", "1s")["waiting"] == 3
    assert shop.outcomes() == PENDING
    with shop.running("--wait-approvals", "5m") as process:
        os.set_blocking(process.stderr.fileno(), False)  # type: ignore[union-attr]
        noted = b""

        def told() -> bool:
            nonlocal noted
            noted += process.stderr.read() or b""  # type: ignore[union-attr]
            return b"siafu approvals list" in noted

        until(told, "it does not say how to decide")
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
    assert shop.outcomes() == PENDING


@pytest.mark.timeout(180)
def test_effects_that_nobody_asks_about_again_follow_the_shops_people(shop: Waiting) -> None:
    """Single questions are asked once; the shop pays, or does not, without anybody asking it again."""
    for id in ABOVE:
        customer, order = ASKS[id]
        asked = shop.siafu("support", "ask", f"주문 {order} 환불해 주세요", "--customer", customer, *shop.words[-3:])
        assert asked.returncode == 0, asked.stderr

    def effects() -> dict[str, str]:
        found = json.loads(shop.siafu("effects", "list", "--json").stdout)
        return {each["customer"]: each["state"] for each in found if each["tool"] == "shop.process_refund"}

    assert effects() == {"park": "waiting", "jung": "waiting", "shin": "waiting"}
    shop.decide("approve", "r1")
    shop.decide("deny", "r2")
    assert effects() == {"park": "waiting", "jung": "refused", "shin": "waiting"}
    with shop.running_shop():
        until(lambda: shop.paid() == {"pay_1003": 1}, "the shop does not pay what was approved")
        until(lambda: effects()["park"] == "succeeded", "what was paid still waits")
    assert effects() == {"park": "succeeded", "jung": "refused", "shin": "waiting"}
    # Where the shop's books cannot be read, its effects are shown as they were.
    unknown = siafu(shop.folder, "effects", "list", "--json", SIAFU_SHOP_DATABASE_URL="postgresql://x@127.0.0.1:9/x")
    assert unknown.returncode == 0
    assert "may be out of date" in unknown.stderr


def test_a_duration_must_be_one(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [{"id": "r1", "customer": "kim", "text": "네"}])
    ended = siafu(tmp_path, "support", "run", "in.jsonl", "--out", "out.jsonl", "--wait-approvals", "soon")
    assert ended.returncode == 2
    assert "'soon' is no duration" in ended.stderr
    assert not (tmp_path / "out.jsonl").exists()
