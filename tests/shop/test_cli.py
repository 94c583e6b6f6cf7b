from __future__ import annotations

import json
import os
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from here import command
from paysim import running_payments
from siafu.apps.support.shop import stock, tickets
from siafu.apps.support.shop.database import ShopDatabase
from siafu.apps.support.shop.money.payments import Call, HttpPayments
from siafu.apps.support.shop.money.policy import NO_RULES
from siafu.apps.support.shop.money.records import RefundAsk
from siafu.apps.support.shop.money.refunds import Refunds
from siafu.apps.support.shop.orders import money_text
from siafu.apps.support.shop.server import AUDIENCE
from siafu.border.identity import verify
from siafu.border.secrets import Secret
from siafu.pace.clock import SystemClock

KEY = "k3y" * 20


def siafu(folder: Path, *arguments: str, key: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SIAFU_HOME": str(folder / "home"), "SIAFU_IDENTITY_KEY": key}
    return command(folder, "shop", *arguments, environment=env)


def test_orders_are_listed_for_people_and_programs(tmp_path: Path) -> None:
    table = siafu(tmp_path, "orders", "--customer", "kim").stdout.splitlines()
    assert table[0].split() == ["customer", "order", "status", "total", "ordered"]
    assert table[1].split()[:4] == ["kim", "1001", "shipped", "배송중"]
    assert all(len(line) <= 80 for line in table)
    found = json.loads(siafu(tmp_path, "orders", "--json").stdout)
    assert len(found) >= 240 and found[0]["customer"] == "kim" and found[0]["items"]
    assert (tmp_path / "home" / "shop.db").exists()
    wrong = siafu(tmp_path, "orders", "--customer", "kimm")
    assert wrong.returncode == 2 and "customers are kim, lee" in wrong.stderr and wrong.stdout == ""


def test_a_token_proves_its_customer(tmp_path: Path) -> None:
    made = siafu(tmp_path, "token", "--customer", "김", "--minutes", "1", key=KEY)
    identity = verify(made.stdout.strip(), Secret(KEY), AUDIENCE, time.time())
    assert identity.subject == "김" and "get_order_status" in identity.scopes
    assert identity.expires <= time.time() + 60
    narrow = siafu(tmp_path, "token", "--customer", "kim", "--tool", "check_inventory", key=KEY)
    assert verify(narrow.stdout.strip(), Secret(KEY), AUDIENCE, time.time()).scopes == {"check_inventory"}


@pytest.mark.parametrize(
    ("arguments", "key", "words"),
    [
        (("token", "--customer", "kim"), "", "SIAFU_IDENTITY_KEY is not set"),
        (("token", "--customer", "kim", "--minutes", "61"), KEY, "at most 60"),
        (("token", "--customer", "kim", "--tool", "refund"), KEY, "no tool 'refund'"),
        (("serve", "--ready-file", "x"), "", "--transport http"),
        (("calls", "--database", "."), "", "is a folder: name a file in it"),
        (("orders", "--database", "mysql://x/y"), "", "postgresql://"),
        (("serve", "--payments", "ftp://x"), "", "payments address"),
        (("off", "refund"), "", "no tool 'refund'"),
        (("cap", "search_products", "calls", "1"), "", "process_refund"),
        (("cap", "open_ticket", "hours", "1"), "", "calls, KRW, USD"),
        (("cap", "open_ticket", "calls", "1.5"), "", "whole number"),
        (("stock", "--release", "rsv-1"), "", "--reservations"),
        (("tickets", "--close", "tkt-1"), "", "siafu shop tickets"),
        (("resolve", "5f1c"), "", "--paid NAME or --not-paid"),
        (("resolve", "5f1c", "--not-paid", "--paid", "re_1"), "", "--paid NAME or --not-paid"),
        (("resolve", "5f1c", "--not-paid", "--as", "min"), "", "siafu shop refunds"),
        (("reconcile",), "", "--payments URL"),
        (("settle",), "", "--payments URL"),
        (("settle", "--for", "soon", "--payments", "http://127.0.0.1:9"), "", "no duration"),
        (("reconcile", "--payments", "http://127.0.0.1:9"), "", "cannot be asked what it can do"),
    ],
)
def test_wrong_use_is_explained(tmp_path: Path, arguments: tuple[str, ...], key: str, words: str) -> None:
    done = siafu(tmp_path, *arguments, key=key)
    assert done.returncode in (1, 2) and words in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == "" and (not key or key not in done.stderr)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "serve",
        "token",
        "orders",
        "calls",
        "stock",
        "tickets",
        "switches",
        "off",
        "on",
        "cap",
        "refunds",
        "settle",
        "resolve",
        "reconcile",
    ],
)
def test_help_has_examples_and_fits_a_terminal(tmp_path: Path, words: str) -> None:
    shown = siafu(tmp_path, *words.split(), "--help").stdout
    assert "Examples:" in shown and "siafu shop" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert not (tmp_path / "home").exists()


def test_no_calls_yet(tmp_path: Path) -> None:
    assert json.loads(siafu(tmp_path, "calls", "--json").stdout) == []


def test_people_see_what_agents_did_and_stop_them(tmp_path: Path) -> None:
    with closing(ShopDatabase(tmp_path / "home" / "shop.db")) as shop:
        made = shop.transact(lambda tx: stock.reserve(tx, "", "kim", "SKU-2001", 2))
        opened = shop.transact(lambda tx: tickets.open_ticket(tx, "", "kim", "포장 불만", "찢어져 왔어요"))
        assert isinstance(made, stock.Reservation) and isinstance(opened, tickets.Ticket)

    def shown(*arguments: str) -> Any:
        done = siafu(tmp_path, *arguments)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        return json.loads(done.stdout) if "--json" in arguments else done.stdout

    first = shown("stock", "--json")[0]
    assert (first["sku"], first["stock"], first["held"]) == ("SKU-2001", 40, 2)
    assert made.reservation_id in shown("stock", "--reservations")
    assert "released" in shown("stock", "--release", made.reservation_id)
    assert shown("stock").splitlines()[1].split()[-2:] == ["42", "0"]

    assert "포장 불만" in shown("tickets") and shown("tickets", "--json")[0]["summary"] == "찢어져 왔어요"
    assert shown("tickets", "--close", opened.ticket_id, "--json") == []
    assert shown("tickets", "--all", "--json")[0]["state"] == "closed"

    assert shown("off", "*", "--reason", "점검", "--by", "min", "--json")["switches"][0]["state"] == "off"
    shown("cap", "process_refund", "KRW", "5000000", "--tenant", "a")
    found = shown("switches", "--json")
    assert [(s["tool"], s["state"], s["by_whom"], s["reason"]) for s in found["switches"]] == [
        ("*", "off", "min", "점검")
    ]
    assert found["caps"] == [{"tool": "process_refund", "tenant_id": "a", "unit": "KRW", "most": 5_000_000, "used": 0}]
    states = [line.split()[:3] for line in shown("on", "process_refund").splitlines()]
    assert ["*", "*", "off"] in states and ["process_refund", "*", "on"] in states
    shown("on", "*")
    shown("cap", "process_refund", "KRW", "none", "--tenant", "a")
    found = shown("switches", "--json")
    assert {s["state"] for s in found["switches"]} == {"on"} and found["caps"] == []
    assert all(len(line) <= 80 for line in shown("switches").splitlines())


async def test_people_find_out_what_became_of_a_refund(tmp_path: Path) -> None:
    """Two answers are lost by a provider that cannot say what it paid; one of the two was paid."""
    database = tmp_path / "home" / "shop.db"
    with running_payments(tmp_path / "paid.jsonl", mode="neither") as sim:
        sim.set_faults({"kind": "lost"}, {"kind": "lost_before"})
        with closing(ShopDatabase(database)) as shop:
            client = HttpPayments(sim.url)
            refunds = Refunds(shop, client, NO_RULES, clock=SystemClock(), owner="a")
            for order in shop.orders("", "kim")[:2]:
                await refunds.refund(RefundAsk(tenant="", customer="kim", order=order, amount_minor=500))
            await client.aclose()
        (paid,) = sim.effects()

    def shown(*arguments: str) -> Any:
        done = siafu(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first, second = shown("refunds", "--state", "manual_review", "--json")
    assert (first["reference"], first["order_id"], first["amount_minor"]) == (paid["reference"], "1001", 500)
    assert "manual_review" in first["last"]
    table = siafu(tmp_path, "refunds").stdout
    assert first["refund_id"][:8] in table and money_text(500, first["currency"]) in table
    wrong = siafu(tmp_path, "resolve", first["refund_id"], "--paid", paid["id"], "--as", "ＫＩＭ")
    assert wrong.returncode == 2 and "somebody else" in wrong.stderr
    (now,) = shown("resolve", first["refund_id"][:8], "--paid", paid["id"], "--as", "min", "--json")
    assert (now["state"], now["paid_as"]) == ("succeeded", paid["id"])
    (now,) = shown("resolve", second["refund_id"], "--not-paid", "--as", "min", "--json")
    assert now["state"] == "declined"
    with running_payments(tmp_path / "paid.jsonl", mode="lookup") as sim:
        agreed = siafu(tmp_path, "reconcile", "--payments", sim.url)
        assert (agreed.returncode, "agree" in agreed.stdout) == (0, True)
        client = HttpPayments(sim.url)
        await client.refund(Call(key="by hand", payment="pay_9", amount=7, currency="KRW"), 5.0)
        await client.aclose()
        differs = siafu(tmp_path, "reconcile", "--payments", sim.url, "--json")
        assert differs.returncode == 1
        assert [one["kind"] for one in json.loads(differs.stdout)] == ["no_intent", "total"]
