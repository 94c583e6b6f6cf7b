"""What a new shop holds, how products are found, and the database that keeps it."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.apps.support.shop.catalogue import opening, products
from siafu.apps.support.shop.database import Call, ShopDatabase
from siafu.apps.support.shop.finding import search
from siafu.apps.support.shop.money.policy import RefundPolicy, refused
from siafu.apps.support.shop.money.records import OrderMoney, RefundAsk
from siafu.apps.support.shop.orders import CUSTOMERS, ENGLISH, first_orders, money_text
from siafu.apps.support.shop.refusal import SHOP_ZONE
from siafu.apps.support.shop.schema import MIGRATIONS
from siafu.errors import StoreError
from siafu.pace.clock import VirtualClock
from siafu.store.database import Database

GOODS = products()


def test_a_new_shop_has_enough_to_ask_about() -> None:
    assert len(GOODS) >= 60 and len({p.sku for p in GOODS}) == len(GOODS)
    assert any(p.stock == 0 and p.restock_on for p in GOODS) and any(p.stock for p in GOODS)
    assert all(p.name_ko and p.name_en and p.price_krw > 0 and p.price_usd_cents > 0 for p in GOODS)
    found = list(first_orders(GOODS))
    assert len(found) >= 240 and len({order.order_id for _, order in found}) == len(found)
    assert {customer for customer, _ in found} == set(CUSTOMERS) and len(CUSTOMERS) >= 40
    assert {order.status for _, order in found} == {
        *("paid", "preparing", "shipped", "delivered", "cancelled", "refunded")
    }
    assert found == list(first_orders(products()))
    first = found[0]
    assert (first[0], first[1].order_id, first[1].status) == ("kim", "1001", "shipped")


def test_orders_agree_with_themselves() -> None:
    for customer, order in first_orders(GOODS):
        assert order.total_minor == sum(item.quantity * item.unit_price_minor for item in order.items) > 0
        assert order.currency == ("USD" if customer in ENGLISH else "KRW")
        assert order.total_text == money_text(order.total_minor, order.currency)
        times = [t for t in (order.ordered_at, order.shipped_at, order.delivered_at) if t]
        assert times == sorted(times)
        sent = order.status in ("shipped", "delivered", "refunded")
        assert sent == bool(order.shipped_at) == bool(order.carrier) == bool(order.tracking_number)
        assert bool(order.delivered_at) == (order.status in ("delivered", "refunded"))


DAY = 86_400.0
NEW = datetime(2026, 11, 30, 12, 0, tzinfo=SHOP_ZONE).timestamp()


def answered(now: float) -> list[tuple[str, str]]:
    """What the shop's policy says at `now` of a refund of each order of a shop that is new then."""
    opened = opening(now)
    found = []
    for customer, order in first_orders(products(opened), opened):
        for reason in ("change_of_mind", "faulty"):
            ask = RefundAsk(tenant="", customer=customer, order=order, reason=reason)
            no = refused(RefundPolicy(), ask, OrderMoney(captured_minor=order.total_minor), order.total_minor, now)
            found.append((order.order_id, str(no.details) if no and isinstance(no.details, dict) else "ok"))
    return [(order, re.sub("'(delivered|refunded)_at': '[^']*'", "", told)) for order, told in found]


@pytest.mark.parametrize("days", [0, 1, 31, 365, 400, 456, 5000])  # 456: a 29th of February
def test_a_new_shop_is_as_new_in_any_year(days: int) -> None:
    assert answered(NEW + days * DAY) == answered(NEW)
    opened = opening(NEW + days * DAY)
    assert all(order.ordered_at <= opened.isoformat() for _, order in first_orders(GOODS, opened))
    assert all(p.restock_on > f"{opened:%Y-%m-%d}" for p in products(opened) if p.restock_on)


def test_what_can_be_refunded_of_a_new_shop() -> None:
    told = [what for _, what in answered(NEW)]
    assert told.count("ok") > 150  # else the one above shows nothing
    for reason in ("return_window", "fault_window", "on_its_way", "cancelled", "already_refunded"):
        assert sum(reason in what for what in told) > 10


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("무선 이어폰", "Wireless Earphones Pro"),
        ("이어폰은 있나요?", "Wireless Earphones Pro"),
        ("EARPHONES", "Wireless Earphones Pro"),
        ("ｋｅｙｂｏａｒｄ", "Mechanical Keyboard"),
        ("가방", "Canvas Backpack"),
        ("usb c", "USB-C Hub"),
        ("SKU-2010", "USB-C Hub"),
        ("커피 원두", "Coffee Beans 1kg"),
        ("gift 선물 ginseng", "Red Ginseng Sticks, 30"),
        ("무선'; DROP TABLE product; --", "Wireless Earphones Pro"),
    ],
)
def test_search_finds(query: str, first: str) -> None:
    assert search(query, GOODS)[0].name_en == first


@pytest.mark.parametrize("query", ["%", "_", "%_%", "*", "' OR 1=1 --", "👍", "   ", "쿼크글루온", "sku"])
def test_search_finds_nothing(query: str) -> None:
    assert search(query, GOODS) == []


@given(st.text(max_size=200))
def test_search_takes_any_text(query: str) -> None:
    found = search(query, GOODS)
    assert len(found) <= 10 and len({p.sku for p in found}) == len(found)


def test_processes_that_start_at_once_share_one_new_database(sql_url: str) -> None:
    command = [sys.executable, "-m", "siafu", "shop", "orders", "--json", "--database", sql_url]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    outputs = [process.communicate(timeout=60) for process in running]
    assert [process.returncode for process in running] == [0] * 4, outputs
    assert len({out for out, _ in outputs}) == 1 and outputs[0][0].count(b'"order_id"') >= 240


def test_a_database_is_opened_again_as_it_was(sql_url: str) -> None:
    first = ShopDatabase(sql_url)
    call = Call(
        at=1.5,
        tenant_id="",
        customer=None,
        run="",
        request="",
        tool="search_products",
        arguments_sha256="0" * 64,
        outcome="ok",
    )
    first.record(call)
    before = (first.products(), first.orders("", "kim"))
    first.close()
    again = ShopDatabase(sql_url)
    assert (again.products(), again.orders("", "kim")) == before
    assert again.calls(10) == [call] and again.calls(0) == []
    assert again.order("", "kim", "1001") and not again.order("", "lee", "1001") and not again.order("t", "kim", "1001")
    again.close()


def test_files_that_are_no_shop_are_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, " * 100)
    with pytest.raises(StoreError, match="notes"):
        ShopDatabase(text)
    assert text.read_text() == "not a database, " * 100
    newer = tmp_path / "newer.db"
    Database(newer, [*MIGRATIONS, []], what="a later shop", schema="shop").close()
    with pytest.raises(StoreError, match="newer version"):
        ShopDatabase(newer)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE product (mine TEXT)")
    db.close()
    with pytest.raises(StoreError, match="other"):
        ShopDatabase(other)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        ShopDatabase(tmp_path / "file" / "shop.db")


def test_a_new_shop_is_the_same_on_both_databases(sql_url: str) -> None:
    clock = VirtualClock()
    opened = opening(clock.wall())
    database = ShopDatabase(sql_url, clock)
    assert database.products() == (goods := products(opened))
    for customer in CUSTOMERS[:3]:
        assert database.orders("", customer) == [order for who, order in first_orders(goods, opened) if who == customer]
    assert database.customers("") == list(CUSTOMERS)
    database.close()
