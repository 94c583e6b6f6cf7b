"""What a new shop holds, how products are found, and the database that keeps it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.apps.support.shop.catalogue import products
from siafu.apps.support.shop.database import MIGRATIONS, Call, Database, database_path
from siafu.apps.support.shop.finding import search
from siafu.apps.support.shop.orders import CUSTOMERS, ENGLISH, first_orders, money_text
from siafu.errors import ConfigError, StoreError

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


def test_processes_that_start_at_once_share_one_new_database(tmp_path: Path) -> None:
    path = tmp_path / "new" / "shop.db"
    command = [sys.executable, "-m", "siafu", "shop", "orders", "--json", "--database", str(path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    outputs = [process.communicate(timeout=60) for process in running]
    assert [process.returncode for process in running] == [0] * 4, outputs
    assert len({out for out, _ in outputs}) == 1 and outputs[0][0].count(b'"order_id"') >= 240


def test_a_database_is_opened_again_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    first = Database(path)
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
    again = Database(path)
    assert (again.products(), again.orders("", "kim")) == before
    assert again.calls(10) == [call] and again.calls(0) == []
    assert again.order("", "kim", "1001") and not again.order("", "lee", "1001") and not again.order("t", "kim", "1001")
    again.close()


def test_files_that_are_no_shop_are_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, " * 100)
    with pytest.raises(StoreError, match="notes"):
        Database(text)
    assert text.read_text() == "not a database, " * 100
    newer = tmp_path / "newer.db"
    with sqlite3.connect(newer) as db:
        db.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
    db.close()
    with pytest.raises(StoreError, match="newer siafu"):
        Database(newer)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE product (mine TEXT)")
    db.close()
    with pytest.raises(StoreError, match="other"):
        Database(other)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        Database(tmp_path / "file" / "shop.db")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("shop.db", "shop.db"),
        ("/data/shop.db", "/data/shop.db"),
        ("sqlite:///shop.db", "shop.db"),
        ("sqlite:////data/상점.db", "/data/상점.db"),
        ("postgresql://db/shop", None),
        ("sqlite://host/shop.db", None),
        ("sqlite:///", None),
    ],
)
def test_database_urls(url: str, path: str | None) -> None:
    if path is None:
        with pytest.raises(ConfigError, match="sqlite"):
            database_path(url)
    else:
        assert database_path(url) == Path(path)
