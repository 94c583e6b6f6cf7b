"""`siafu shop settle`: refunds are carried out although no shop runs, once, and people see what waits for what."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from here import command
from money.kit import ask, books, let_time_pass, order, shop, states
from money.test_approvals import large
from paysim import Payments, running_payments
from processes import wait_until
from siafu.apps.support.shop import brakes
from siafu.apps.support.shop.database import ShopDatabase
from siafu.apps.support.shop.money.approvals import ShopApprovals
from siafu.apps.support.shop.money.payments import HttpPayments
from siafu.apps.support.shop.money.policy import NO_RULES, RefundPolicy
from siafu.pace.clock import SystemClock
from support.commands import environment

SECONDS = 60.0


class Counter:
    """A shop's database, filled by a shop that runs no more, and the command beside it."""

    def __init__(self, folder: Path, url: str, payments: Payments) -> None:
        self.folder, self.url, self.payments = folder, url, payments
        self.shop = ShopDatabase(url)
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-m", "siafu", "shop", "settle", *words],
            env=self._environment(), cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.running.append(child)
        return child

    def command(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return command(self.folder, *words, environment=self._environment(**env))

    def settle(self, *words: str, code: int = 0, **env: str) -> Any:
        done = self.command("shop", "settle", "--json", *words, **env)
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def _environment(self, **env: str) -> dict[str, str]:
        known = {"SIAFU_SHOP_DATABASE_URL": self.url, "SIAFU_PAYMENTS_URL": self.payments.url}
        return environment(SIAFU_HOME=str(self.folder / "home"), **(known | env))

    def ask(self, *asks: Any, policy: RefundPolicy = NO_RULES) -> None:
        asyncio.run(self._ask(asks, policy))

    async def _ask(self, asks: Sequence[Any], policy: RefundPolicy) -> None:
        provider = HttpPayments(self.payments.url)
        refunds = shop(self.shop, provider, policy, owner="before", lease=15.0)
        for each in asks:
            await refunds.refund(each)
        await refunds.aclose()
        await provider.aclose()


@pytest.fixture
def counter(tmp_path: Path, sql_url: str) -> Iterator[Counter]:
    with running_payments(tmp_path / "paid.jsonl", slow=50) as payments:
        opened = Counter(tmp_path, sql_url, payments)
        yield opened
        for child in opened.running:
            if child.poll() is None:
                child.kill()
                child.communicate(timeout=SECONDS)
        opened.shop.close()


def test_an_approved_refund_is_carried_out_without_a_shop(counter: Counter) -> None:
    counter.ask(large("1"), large("2", order=order("1002", 200_000)), policy=RefundPolicy(by_status=False))
    desk = ShopApprovals(counter.shop)
    first, second = asyncio.run(desk.approvals("pending"))
    asyncio.run(desk.decide(first.id, approve=True, by="park"))
    told = counter.settle()
    assert [(one["order_id"], one["state"]) for one in told["done"]] == [("1001", "succeeded")]
    (waits,) = told["waiting"]
    assert (waits["refund"]["state"], waits["refund"]["until"]) == (
        "pending_approval",
        pytest.approx(second.expires_at),
    )
    assert "siafu approvals list" in waits["waits_for"]
    assert len(counter.payments.effects()) == 1
    again = counter.settle()
    assert (again["done"], len(again["waiting"])) == ([], 1)


def test_two_at_once_beside_each_other_pay_once(counter: Counter) -> None:
    """Each refund is carried out by one of them; together they did all."""
    counter.payments.set_faults({"kind": "error_before", "times": 12})
    counter.ask(*(ask(f"n{n}", 100 + n, order=order(str(3000 + n))) for n in range(12)))
    assert states(counter.shop) == {"unknown": 12}
    let_time_pass(counter.shop)
    children = [counter.start("--json", "--for", "20s") for _ in range(2)]
    told = [json.loads(child.communicate(timeout=SECONDS)[0]) for child in children]
    assert [child.returncode for child in children] == [0, 0]
    done = [one["order_id"] for each in told for one in each["done"]]
    assert sorted(done) == [str(3000 + n) for n in range(12)]
    assert all(each["waiting"] == [] for each in told)
    stats = counter.payments.stats()
    assert (states(counter.shop), stats["effects"], stats["duplicates"]) == ({"succeeded": 12}, 12, 0)


def test_it_waits_only_as_long_as_it_was_told(counter: Counter) -> None:
    """A refund whose pause is not over is left alone, and told until when; with time, it is waited for."""
    counter.payments.set_faults({"kind": "error_before"})
    counter.ask(ask("1", 3_000))
    later = "UPDATE refund_intent SET next_attempt_at = {now} + :seconds"
    counter.shop.transact(lambda tx: tx.change(later, seconds=3000.0))
    (waits,) = counter.settle()["waiting"]
    assert waits["waits_for"] == "its next attempt" and waits["refund"]["until"] > SystemClock().wall() + 2000
    counter.shop.transact(lambda tx: tx.change(later, seconds=3.0))
    told = counter.settle("--for", "50s")
    assert ([one["state"] for one in told["done"]], told["waiting"]) == (["succeeded"], [])


def test_it_says_what_holds_a_refund_up(counter: Counter, tmp_path: Path) -> None:
    counter.payments.set_faults({"kind": "error_before", "times": 2})
    counter.ask(ask("1", 3_000), ask("2", 2_000))
    let_time_pass(counter.shop)
    counter.shop.transact(lambda tx: brakes.switch(tx, "off", "process_refund", "*", by="park", reason="test"))
    waits = counter.settle()["waiting"]
    assert len(waits) == 2 and all("siafu shop on process_refund" in one["waits_for"] for one in waits)
    counter.shop.transact(lambda tx: brakes.switch(tx, "on", "process_refund", "*", by="park", reason="test"))
    let_time_pass(counter.shop)
    waits = counter.settle("--payments-name", "another bank")["waiting"]
    assert [one["waits_for"] for one in waits] == [f"its provider, {one['refund']['provider']}" for one in waits]
    assert (len(waits), states(counter.shop)) == (2, {"unknown": 2})
    let_time_pass(counter.shop)
    done = counter.settle("--for", "20s", SIAFU_PAYMENTS_NAME=waits[0]["refund"]["provider"])["done"]
    assert [one["state"] for one in done] == ["succeeded", "succeeded"]
    assert books(counter.shop) == (5_000, 0)


def test_a_provider_that_is_away_is_told_with_what_waits(counter: Counter) -> None:
    counter.payments.set_faults({"kind": "error_before"})
    counter.ask(ask("1", 3_000))
    told = counter.settle("--payments", "http://127.0.0.1:9", code=1)
    assert told["done"] == [] and told["waiting"][0]["waits_for"].startswith("its provider")


def test_ctrl_c_ends_it_in_good_order(counter: Counter) -> None:
    """The call that is under way is waited for, so its end is known."""
    counter.payments.set_faults({"kind": "error_before"})
    counter.ask(ask("1", 3_000))
    let_time_pass(counter.shop)
    counter.payments.set_faults({"kind": "slow", "wait": 2.0})
    child = counter.start("--for", "5m")
    assert wait_until(lambda: states(counter.shop) == {"dispatching": 1}, SECONDS)
    child.send_signal(signal.SIGTERM)
    out, said = child.communicate(timeout=SECONDS)
    assert (child.returncode, states(counter.shop), "succeeded" in out) == (130, {"succeeded": 1}, True), said
    assert "same command" in said and "Traceback" not in said


def test_people_read_it_on_a_terminal(counter: Counter) -> None:
    counter.ask(large("1"), policy=RefundPolicy(by_status=False))
    desk = ShopApprovals(counter.shop)
    done = counter.command("shop", "settle")
    assert "no refund was due" in done.stderr and "approvals list" in done.stdout
    (waits,) = asyncio.run(desk.approvals("pending"))
    assert "siafu shop settle" in counter.command("approvals", "approve", waits.id, "--as", "park").stderr
    done = counter.command("shop", "settle")
    assert "150,000" in done.stderr and "succeeded" in done.stderr and "succeeded" in done.stdout
