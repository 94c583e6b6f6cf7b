"""The shop's own database, on SQLite or PostgreSQL: orders, products, a record of every tool call, and the tables of
stock, tickets and money.

Opening creates, migrates and fills it; several processes may do so at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from siafu.apps.support.shop.catalogue import Product, opening
from siafu.apps.support.shop.money import schema as money
from siafu.apps.support.shop.orders import STATUS_KO, Item, Order, money_text
from siafu.apps.support.shop.schema import MIGRATIONS, fill
from siafu.pace.clock import Clock, SystemClock
from siafu.store.database import Database, Transaction

_WHAT = "the shop's database"
MAX_CALLS = 1_000_000  # older calls are forgotten when the database is opened


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call as the shop saw it. `at`: seconds since 1970. `customer`: None when nobody was identified.

    `arguments_sha256`: of their canonical JSON. `outcome`: "ok" or the error's code.
    """

    at: float
    tenant_id: str
    customer: str | None
    run: str
    request: str
    tool: str
    arguments_sha256: str
    outcome: str


class ShopDatabase(Database):
    """An open shop database. `url`: a path, sqlite:///PATH or postgresql://user:password@host/name. clock: by which
    the first orders of a new one are dated; None = the machine's.

    Raises (every method): ConfigError, StoreError, as `Database` does.
    """

    def __init__(self, url: str | Path, clock: Clock | None = None) -> None:
        super().__init__(url, MIGRATIONS, what=_WHAT, schema="shop")
        try:
            Database(url, money.MIGRATIONS, what=_WHAT, schema=money.SCHEMA).close()
            opened = opening((clock or SystemClock()).wall())
            self.transact(lambda tx: _open(tx, opened), whole=True)
        except BaseException:
            self.close()
            raise

    def order(self, tenant: str, customer: str, order_id: str) -> Order | None:
        """As `find_order`."""
        return self.transact(lambda tx: find_order(tx, tenant, customer, order_id))

    def orders(self, tenant: str, customer: str) -> list[Order]:
        """The customer's orders, oldest first."""
        return self.transact(lambda tx: _orders(tx, tenant, customer))

    def customers(self, tenant: str) -> list[str]:
        """Everybody who has an order, in the order of their first one."""
        sql = "SELECT customer FROM customer_order WHERE tenant_id = :tenant GROUP BY customer ORDER BY min(order_id)"
        return [row["customer"] for row in self.transact(lambda tx: tx.rows(sql, tenant=tenant))]

    def products(self) -> list[Product]:
        """All products in SKU order."""
        return self.transact(all_products)

    def record(self, call: Call) -> None:
        """As `record`."""
        self.transact(lambda tx: record(tx, call))

    def calls(self, limit: int) -> list[Call]:
        """The newest `limit` calls, oldest first."""
        sql = f"SELECT {_CALL} FROM call ORDER BY id DESC LIMIT :limit"  # noqa: S608 - names of our own fields
        return [Call(**row) for row in reversed(self.transact(lambda tx: tx.rows(sql, limit=limit)))]


def find_order(tx: Transaction, tenant: str, customer: str, order_id: str) -> Order | None:
    """The order, when it is this customer's; None when it is not or does not exist."""
    found = _orders(tx, tenant, customer, order_id)
    return found[0] if found else None


def find_product(tx: Transaction, sku: str) -> Product | None:
    row = tx.row("SELECT * FROM product WHERE sku = :sku", sku=sku)
    return Product(**row) if row else None


def all_products(tx: Transaction) -> list[Product]:
    """All products in SKU order."""
    return [Product(**row) for row in tx.rows("SELECT * FROM product ORDER BY sku")]


def record(tx: Transaction, call: Call, effect_key: str | None = None) -> None:
    """Append one call. `effect_key`: of a tool that changes something, whose calls are kept for good; None = it only
    reads.
    """
    values = msgspec.structs.asdict(call)
    tx.change(f"INSERT INTO call ({_CALL}) VALUES ({_MARKS})", **values)  # noqa: S608
    if effect_key is not None:
        sql = f"INSERT INTO effect_call ({_CALL}, effect_key) VALUES ({_MARKS}, :effect_key)"  # noqa: S608
        tx.change(sql, **values, effect_key=effect_key)


_CALL = ", ".join(Call.__struct_fields__)
_MARKS = ", ".join(f":{name}" for name in Call.__struct_fields__)


def _open(tx: Transaction, opened: datetime) -> None:
    fill(tx, opened)
    tx.change("DELETE FROM call WHERE id <= (SELECT max(id) FROM call) - :kept", kept=MAX_CALLS)


def _orders(tx: Transaction, tenant: str, customer: str, order_id: str | None = None) -> list[Order]:
    one = "" if order_id is None else "AND order_id = :order_id"
    given = {"tenant": tenant, "customer": customer} | ({} if order_id is None else {"order_id": order_id})
    sql = f"SELECT * FROM customer_order WHERE tenant_id = :tenant AND customer = :customer {one} ORDER BY order_id"  # noqa: S608
    return [_order(tx, row) for row in tx.rows(sql, **given)]


def _order(tx: Transaction, row: Mapping[str, Any]) -> Order:
    items = tx.rows(
        """SELECT sku, name_ko, name_en, quantity, unit_price_minor FROM order_item JOIN product USING (sku)
           WHERE tenant_id = :tenant_id AND order_id = :order_id ORDER BY line""",
        tenant_id=row["tenant_id"],
        order_id=row["order_id"],
    )
    return Order(
        **{name: value for name, value in row.items() if name not in ("tenant_id", "customer")},
        status_ko=STATUS_KO[row["status"]],
        total_text=money_text(row["total_minor"], row["currency"]),
        items=[Item(**item) for item in items],
    )
