"""Refunds that cannot be made now, with all real parts: each is made once when it can be, by the same command, and no
model is asked again for what it has answered.
"""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paysim import running_payments
from sim import running_sim
from support.commands import SECONDS, SHORT_LEASE, processes, records, until
from support.counter import Shop

# The first two are due; a person decides the third; the shop never refunds the fourth.
ASKS = {"r1": ("hwang", "1016"), "r2": ("choi", "1048"), "r3": ("park", "1003"), "r4": ("kim", "1001")}
DUE = {"r1": ASKS["r1"], "r2": ASKS["r2"]}
PAID = {"pay_1016": 1, "pay_1048": 1}
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Shop]]:
    with running_sim(seed=3, latency="none") as sim, running_payments(tmp_path / "paid.jsonl") as payments:
        yield lambda asks=DUE: Shop(tmp_path, sim, payments, asks)


def waits_for(shop: Shop) -> dict[str, str]:
    return {r["id"]: r["waits_for"] for r in records(shop.folder / "out.jsonl") if r.get("waiting")}


def refunds(shop: Shop) -> dict[str, tuple[str, str]]:
    found = records(shop.folder / "out.jsonl")
    return {r["id"]: (r["refunds"][0]["state"], r["refunds"][0]["code"]) for r in found}


@pytest.mark.timeout(180)
def test_a_refund_waits_while_payments_are_away_and_is_made_once(opened: Callable[..., Shop]) -> None:
    shop = opened(ASKS)
    up, shop.more = shop.more, {"SIAFU_PAYMENTS_URL": NOWHERE}
    first = shop.siafu(*shop.words[:-1])
    assert first.returncode == 0
    assert "could not be settled yet (payments_unavailable: 4), and go on with the same command" in first.stdout
    assert "siafu: to go on: " in first.stderr
    assert refunds(shop) == dict.fromkeys(ASKS, ("not_yet", "payments_unavailable"))
    assert shop.outcomes() == dict.fromkeys(ASKS, "unknown (waiting)")
    assert "아직 환불되지 않았습니다. 거절된 것은 아니니" in shop.answer("r1")
    before, asked = (shop.folder / "out.jsonl").read_bytes(), shop.asked()
    summary = shop.run()  # still away: no model is asked, nothing changes
    assert (summary["waiting"], summary["waits_for"]) == (4, {"payments_unavailable": 4})
    assert ((shop.folder / "out.jsonl").read_bytes(), shop.asked()) == (before, asked)

    shop.more = up
    second = shop.run()
    assert (second["finished"], second["waiting"], second["failed"]) == (3, 1, 0)
    assert shop.outcomes() == {
        "r1": "answered",
        "r2": "answered",
        "r3": "pending_approval (waiting)",  # it waits for something else now, and its record says so
        "r4": "refused",
    }
    assert refunds(shop)["r4"] == ("refused", "not_refundable")
    assert (waits_for(shop), shop.paid()) == ({"r3": "pending_approval"}, PAID)
    assert shop.asked() == asked + 4  # what each new answer of the shop has changed
    shop.decide("approve", "r3")
    assert shop.run()["finished"] == 4
    assert shop.paid() == PAID | {"pay_1003": 1}
    ended, asked = (shop.folder / "out.jsonl").read_bytes(), shop.asked()
    assert shop.run("--retry-failed")["finished"] == 4  # what is refused stays so
    assert ((shop.folder / "out.jsonl").read_bytes(), shop.asked()) == (ended, asked)


SWITCHES = {
    "siafu": (("effects", "off", "shop.process_refund"), ("effects", "on", "shop.process_refund")),
    "shop": (("shop", "off", "process_refund"), ("shop", "on", "process_refund")),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("whose", SWITCHES)
def test_a_refund_waits_while_its_tool_is_off(opened: Callable[..., Shop], whose: str) -> None:
    shop = opened()
    off, on = SWITCHES[whose]
    assert shop.siafu(*off, "--as", "lee").returncode == 0
    shop.run()
    assert (waits_for(shop), shop.paid()) == (dict.fromkeys(DUE, "tool_disabled"), {})
    assert shop.siafu(*on, "--as", "lee").returncode == 0
    assert shop.run()["finished"] == 2
    assert (shop.outcomes(), shop.paid()) == (dict.fromkeys(DUE, "answered"), PAID)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("whose", ["siafu", "shop"])
def test_a_refund_above_a_days_limit_waits_for_a_higher_one(opened: Callable[..., Shop], whose: str) -> None:
    shop = opened()

    def limit(calls: str) -> None:
        if whose == "shop":
            assert shop.siafu("shop", "cap", "process_refund", "calls", calls).returncode == 0
            return
        rule = 'key = ["request", "order_id"]\nignore = ["reason"]\nhonours_key = true\n'
        most = "" if calls == "none" else f"daily_calls = {calls}\n"
        text = f'[tools.effects."shop.process_refund"]\n{rule}{most}'
        (shop.folder / "siafu.toml").write_text(text)

    limit("1")
    shop.run()
    assert list(waits_for(shop).values()) == ["daily_limit"]
    assert len(shop.paid()) == 1
    limit("none")
    assert shop.run()["finished"] == 2
    assert (shop.outcomes(), shop.paid()) == (dict.fromkeys(DUE, "answered"), PAID)


@pytest.mark.kill
@pytest.mark.timeout(240)
def test_a_run_killed_around_what_waits_pays_once(opened: Callable[..., Shop]) -> None:
    shop = opened()
    (shop.folder / "siafu.toml").write_text(SHORT_LEASE)
    up, shop.more = shop.more, {"SIAFU_PAYMENTS_URL": NOWHERE}
    with shop.running(SIAFU_CRASH_AT="effect_finished:2") as process:  # refused by the shop, and not yet in the journal
        assert process.wait(SECONDS) == -signal.SIGKILL
    until(lambda: not processes(str(shop.folder / ".siafu" / "shop.db")), "a shop has outlived its client")
    assert shop.run()["waiting"] == 2
    asked = shop.asked()
    shop.more = up
    # Killed again: before the call, after it, when the journal has its answer, and when the file lacks the record.
    for point in ("effect_dispatching:1", "effect_called:1", "after_append:1", "after_record:1"):
        with shop.running(SIAFU_CRASH_AT=point) as process:
            assert process.wait(SECONDS) == -signal.SIGKILL
        assert set(shop.outcomes()) == set(DUE)
    assert shop.run()["finished"] == 2
    assert (shop.outcomes(), shop.paid()) == (dict.fromkeys(DUE, "answered"), PAID)
    assert shop.asked() <= asked + 2 + 4 * 2  # the calls under way at a kill are made again, and nothing else


@pytest.mark.timeout(120)
def test_a_run_that_waits_looks_again(opened: Callable[..., Shop]) -> None:
    shop = opened()
    assert shop.siafu("effects", "off", "shop.process_refund", "--as", "lee").returncode == 0
    with shop.running("--wait", "5m") as process:
        path = shop.folder / "out.jsonl"
        until(lambda: path.exists() and path.read_bytes().count(b'"waiting":true') == 2, "nothing waits")
        assert shop.siafu("effects", "on", "shop.process_refund", "--as", "lee").returncode == 0
        told, noted = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, noted
    assert "2 could not be settled yet and are tried again" in noted.decode()
    assert (json.loads(told)["finished"], shop.paid()) == (2, PAID)


@pytest.mark.timeout(120)
def test_a_refund_of_unknown_outcome_waits_for_who_finds_out(tmp_path: Path) -> None:
    with (
        running_sim(seed=3, latency="none") as sim,
        running_payments(tmp_path / "paid.jsonl", mode="neither") as payments,
    ):
        payments.set_faults({"kind": "lost", "times": 1})
        shop = Shop(tmp_path, sim, payments, {"r1": ASKS["r1"]})
        shop.run()
        assert (shop.outcomes(), shop.paid()) == ({"r1": "unknown (waiting)"}, {"pay_1016": 1})
        again = shop.siafu(*shop.words[:-1])
        assert "could not be settled yet (outcome_unknown: 1)" in again.stdout
        assert "to see what is unknown: siafu effects list; then, to go on: " in again.stderr
        (refund,) = _json(shop, "shop", "refunds", "--state", "manual_review", "--json")
        (effect,) = payments.effects()
        resolved = shop.siafu("shop", "resolve", refund["refund_id"], "--paid", effect["id"], "--as", "lee")
        assert resolved.returncode == 0, resolved.stderr
        assert shop.run()["finished"] == 1
        assert (shop.outcomes(), shop.paid()) == ({"r1": "answered"}, {"pay_1016": 1})
        assert "27,000원 환불이 처리되었습니다" in shop.answer("r1")


def _json(shop: Shop, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shop.siafu(*words).stdout)
    return found


@pytest.mark.timeout(240)
def test_a_shop_that_is_away_loses_no_request(tmp_path: Path) -> None:
    """Before the run: nothing is begun. While it goes on: a refund that may have been made is asked for again, and what
    could only not be looked up is run again when that is asked for.
    """
    with (
        running_sim(seed=3, latency="fixed:1000ms") as sim,
        running_payments(tmp_path / "paid.jsonl") as payments,
    ):
        shop = Shop(tmp_path, sim, payments, {"r1": ASKS["r1"]})
        with (tmp_path / "문의.jsonl").open("a", encoding="utf-8") as file:
            file.write('{"id": "s1", "customer": "hwang", "text": "주문 1016 어디쯤 왔나요?"}\n')
        assert shop.siafu("shop", "orders").returncode == 0  # it makes the database
        with closing(sqlite3.connect(tmp_path / ".siafu" / "shop.db", isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            away = shop.siafu(*shop.words)
            db.execute("ROLLBACK")
            assert (away.returncode, shop.asked()) == (1, 0)
            assert "MCP server shop" in away.stderr
            assert not (tmp_path / "out.jsonl").exists()
            with shop.running() as process:
                until(shop.asked, "no model is asked")
                db.execute("BEGIN IMMEDIATE")
                assert process.wait(SECONDS) == 1
            db.execute("ROLLBACK")
        found = {record["id"]: record for record in records(tmp_path / "out.jsonl")}
        assert (found["r1"]["outcome"], found["r1"]["waits_for"]) == ("unknown", "outcome_unknown")
        assert found["s1"]["error"]["code"] == "tool_unavailable"
        assert (
            "nothing could be looked up, as the tools were away (shop_unavailable)" in found["s1"]["error"]["message"]
        )
        again = shop.siafu(*shop.words[:-1])  # the refund goes on, and it says how the other one does
        assert again.returncode == 1
        assert "1 failed, see out.jsonl; --retry-failed runs requests again that failed" in again.stdout
        assert shop.paid() == {"pay_1016": 1}
        assert shop.run("--retry-failed")["finished"] == 2
        assert (shop.outcomes(), shop.paid()) == ({"r1": "answered", "s1": "answered"}, {"pay_1016": 1})
