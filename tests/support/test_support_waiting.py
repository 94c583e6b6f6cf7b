"""Refunds that a person decides, with all real parts: the command, the shop over stdio, `siafu approvals`, the payment
simulator's ledger; in two lives with a kill -9 between, and in one that waits.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from paysim import Payments, running_payments
from sim import Sim, running_sim
from support.commands import SECONDS, environment, processes, records, siafu, until, write

ASKS = {"r1": ("park", "1003"), "r2": ("jung", "1005"), "r3": ("shin", "1014"), "r4": ("hwang", "1016")}
ABOVE = ("r1", "r2", "r3")  # more than the shop pays back by itself


class Shop:
    """A folder with a file of requests, and every command that is run there."""

    def __init__(self, folder: Path, sim: Sim, payments: Payments) -> None:
        self.folder, self.sim, self.payments = folder, sim, payments
        self.more = {"SIAFU_PAYMENTS_URL": payments.url}
        rows = [{"id": id, "customer": who, "text": f"주문 {order} 환불해 주세요"} for id, (who, order) in ASKS.items()]
        write(folder / "문의.jsonl", rows)
        self.words = ("support", "run", "문의.jsonl", "--out", "out.jsonl", "--base-url", sim.url, "--json")

    def siafu(self, *words: str) -> subprocess.CompletedProcess[str]:
        return siafu(self.folder, *words, **self.more)

    def run(self, *words: str, code: int = 0) -> dict[str, Any]:
        ended = self.siafu(*self.words, *words)
        assert ended.returncode == code, ended.stderr
        found: dict[str, Any] = json.loads(ended.stdout)
        return found

    @contextmanager
    def running(self, *words: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "siafu", *self.words, *words],
            cwd=self.folder,
            env=environment(**self.more, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    @contextmanager
    def running_shop(self) -> Iterator[None]:
        """The shop by itself, with no run that calls it."""
        process = subprocess.Popen(
            [sys.executable, "-m", "siafu", "shop", "serve"],
            cwd=self.folder,
            env=environment(**self.more),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.communicate(timeout=SECONDS)

    def outcomes(self) -> dict[str, str]:
        """The outcome of each id, which has one record, with `(waiting)` where it is not the last."""
        found = records(self.folder / "out.jsonl")
        assert max(Counter(record["id"] for record in found).values()) == 1
        return {r["id"]: r["outcome"] + " (waiting)" * r.get("waiting", False) for r in found}

    def answer(self, id: str) -> str:
        (text,) = [r["answer"] for r in records(self.folder / "out.jsonl") if r["id"] == id]
        return str(text)

    def decide(self, word: str, id: str) -> None:
        customer = ASKS[id][0]
        waiting = json.loads(self.siafu("approvals", "list", "--json").stdout)
        (approval,) = [each["id"] for each in waiting if each["requester"] == customer]
        decided = self.siafu("approvals", word, approval, "--as", "lee", "--note", "통화함")
        assert decided.returncode == 0, decided.stderr

    def expire(self, id: str) -> None:
        """Let the time pass in which a person could have decided."""
        with closing(sqlite3.connect(self.folder / ".siafu" / "shop.db")) as db:
            db.execute("UPDATE approval SET expires_at = 1 WHERE requester = ?", (ASKS[id][0],))
            db.commit()

    def paid(self) -> dict[str, int]:
        """How often each payment was paid back, as the one who paid says."""
        return dict(Counter(effect["payment"] for effect in self.payments.effects()))

    def asked(self) -> int:
        """Requests that a model got."""
        return int(self.sim.stats()["requests"])

    def waits(self) -> bool:
        """Whether all is done that can be done without a person."""
        path = self.folder / "out.jsonl"
        data = path.read_bytes() if path.exists() else b""
        return (data.count(b"\n"), data.count(b'"waiting":true')) == (len(ASKS), len(ABOVE))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with running_sim(seed=3, latency="none") as sim, running_payments(tmp_path / "paid.jsonl") as payments:
        yield Shop(tmp_path, sim, payments)


PENDING = dict.fromkeys(ABOVE, "pending_approval (waiting)") | {"r4": "answered"}
DECIDED = {"r1": "answered", "r2": "refused", "r3": "refused", "r4": "answered"}


@pytest.mark.timeout(180)
def test_approved_denied_and_expired_refunds_go_on_in_the_next_run(shop: Shop) -> None:
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
def test_a_run_killed_while_it_waits_goes_on_after_the_decision(shop: Shop) -> None:
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
def test_a_run_that_waits_goes_on_as_people_decide(shop: Shop) -> None:
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
def test_the_time_for_waiting_ends_and_a_signal_ends_it_too(shop: Shop) -> None:
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
def test_effects_that_nobody_asks_about_again_follow_the_shops_people(shop: Shop) -> None:
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
