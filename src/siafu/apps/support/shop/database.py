"""The shop's own SQLite database: orders, products, and a record of every tool call.

Opening creates, migrates and fills it; several processes may do so at once. Calls are recorded with WAL and
synchronous=NORMAL: a killed process loses nothing, a power cut may lose the last calls. They are evidence for tests
and demos, not money.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from siafu.apps.support.shop.catalogue import Product, products
from siafu.apps.support.shop.orders import STATUS_KO, Item, Order, first_orders, money_text
from siafu.errors import ConfigError, StoreError

MAX_CALLS = 1_000_000  # older calls are forgotten when the database is opened

# One entry a version, never edited once released; `PRAGMA user_version` counts the ones applied.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE product (
            sku TEXT PRIMARY KEY, name_ko TEXT NOT NULL, name_en TEXT NOT NULL, category TEXT NOT NULL,
            price_krw INTEGER NOT NULL CHECK (price_krw > 0),
            price_usd_cents INTEGER NOT NULL CHECK (price_usd_cents > 0),
            stock INTEGER NOT NULL CHECK (stock >= 0), restock_on TEXT, keywords TEXT NOT NULL
        ) STRICT, WITHOUT ROWID""",
        # The customer comes before the order in the key, so that a stranger's order is not even looked at: asking for
        # it takes the same steps as asking for one that does not exist.
        """CREATE TABLE customer_order (
            tenant_id TEXT NOT NULL, customer TEXT NOT NULL, order_id TEXT NOT NULL,
            status TEXT NOT NULL
                CHECK (status IN ('paid', 'preparing', 'shipped', 'delivered', 'cancelled', 'refunded')),
            currency TEXT NOT NULL CHECK (currency IN ('KRW', 'USD')),
            total_minor INTEGER NOT NULL CHECK (total_minor >= 0),
            ordered_at TEXT NOT NULL, shipped_at TEXT, delivered_at TEXT, expected_on TEXT,
            carrier TEXT, tracking_number TEXT,
            PRIMARY KEY (tenant_id, customer, order_id), UNIQUE (tenant_id, order_id)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE order_item (
            tenant_id TEXT NOT NULL, order_id TEXT NOT NULL, line INTEGER NOT NULL,
            sku TEXT NOT NULL REFERENCES product, quantity INTEGER NOT NULL CHECK (quantity > 0),
            unit_price_minor INTEGER NOT NULL CHECK (unit_price_minor >= 0),
            PRIMARY KEY (tenant_id, order_id, line),
            FOREIGN KEY (tenant_id, order_id) REFERENCES customer_order (tenant_id, order_id)
        ) STRICT, WITHOUT ROWID""",
        """CREATE TABLE call (
            id INTEGER PRIMARY KEY, at REAL NOT NULL, tenant_id TEXT NOT NULL, customer TEXT,
            run TEXT NOT NULL, request TEXT NOT NULL, tool TEXT NOT NULL,
            arguments_sha256 TEXT NOT NULL, outcome TEXT NOT NULL
        ) STRICT""",
    ),
)


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


def database_path(url: str) -> Path:
    """The file behind `sqlite:///PATH` or a plain path.

    Raises: ConfigError for any other kind of URL.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        return Path(url)
    if scheme != "sqlite" or not rest.startswith("/") or len(rest) < 2:
        raise ConfigError(f"the shop keeps its data in SQLite; write sqlite:///shop.db or a path, not {scheme}://...")
    return Path(rest[1:])


class Database:
    """An open shop database. Used by one thread at a time; `close` when done.

    Raises (every method): StoreError when the file cannot be used.
    """

    def __init__(self, path: Path) -> None:
        with _as_store_error(path), _alone(path):
            self._db = sqlite3.connect(path, isolation_level=None, timeout=10, check_same_thread=False)
            try:
                self._db.row_factory = sqlite3.Row
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._db.execute("PRAGMA foreign_keys=ON")
                self._migrate(path)
            except BaseException:
                self._db.close()
                raise
        self._path = path

    def close(self) -> None:
        self._db.close()

    def order(self, tenant: str, customer: str, order_id: str) -> Order | None:
        """The order, when it is this customer's; None when it is not or does not exist."""
        found = self._orders("AND order_id = ?", tenant, customer, order_id)
        return found[0] if found else None

    def orders(self, tenant: str, customer: str) -> list[Order]:
        """The customer's orders, oldest first."""
        return self._orders("", tenant, customer)

    def customers(self, tenant: str) -> list[str]:
        """Everybody who has an order, in the order of their first one."""
        rows = self._rows(
            "SELECT customer FROM customer_order WHERE tenant_id = ? GROUP BY 1 ORDER BY min(order_id)", tenant
        )
        return [row["customer"] for row in rows]

    def product(self, sku: str) -> Product | None:
        rows = self._rows("SELECT * FROM product WHERE sku = ?", sku)
        return Product(**rows[0]) if rows else None

    def products(self) -> list[Product]:
        """All products in SKU order."""
        return [Product(**row) for row in self._rows("SELECT * FROM product ORDER BY sku")]

    def record(self, call: Call) -> None:
        """Append one call."""
        names = ", ".join(call.__struct_fields__)
        marks = ", ".join(f":{name}" for name in call.__struct_fields__)
        with _as_store_error(self._path):
            self._db.execute(f"INSERT INTO call ({names}) VALUES ({marks})", msgspec.structs.asdict(call))  # noqa: S608

    def calls(self, limit: int) -> list[Call]:
        """The newest `limit` calls, oldest first."""
        rows = self._rows("SELECT * FROM call ORDER BY id DESC LIMIT ?", limit)
        return [Call(**{name: row[name] for name in Call.__struct_fields__}) for row in reversed(rows)]

    def _rows(self, sql: str, *values: object) -> list[Any]:
        with _as_store_error(self._path):
            return self._db.execute(sql, values).fetchall()

    def _orders(self, more: str, tenant: str, customer: str, *values: str) -> list[Order]:
        rows = self._rows(
            f"SELECT * FROM customer_order WHERE tenant_id = ? AND customer = ? {more} ORDER BY order_id",  # noqa: S608
            *(tenant, customer, *values),
        )
        return [self._order(row) for row in rows]

    def _order(self, row: sqlite3.Row) -> Order:
        items = self._rows(
            """SELECT sku, name_ko, name_en, quantity, unit_price_minor FROM order_item JOIN product USING (sku)
               WHERE tenant_id = ? AND order_id = ? ORDER BY line""",
            *(row["tenant_id"], row["order_id"]),
        )
        stored = {name: row[name] for name in row.keys() if name not in ("tenant_id", "customer")}  # noqa: SIM118
        return Order(
            **stored,
            status_ko=STATUS_KO[row["status"]],
            total_text=money_text(row["total_minor"], row["currency"]),
            items=[Item(**item) for item in items],
        )

    def _migrate(self, path: Path) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            raise StoreError(f"{path} was made by a newer siafu; update siafu or choose another file with --database")
        self._db.execute("BEGIN IMMEDIATE")
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                self._db.execute(statement)
        if version == 0:
            self._fill()
        self._db.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
        self._db.execute("DELETE FROM call WHERE id <= (SELECT max(id) FROM call) - ?", (MAX_CALLS,))
        self._db.execute("COMMIT")

    def _fill(self) -> None:
        goods = products()
        self._db.executemany(
            "INSERT INTO product VALUES (:sku, :name_ko, :name_en, :category, :price_krw, :price_usd_cents, :stock,"
            " :restock_on, :keywords)",
            [msgspec.structs.asdict(product) for product in goods],
        )
        for customer, order in first_orders(goods):
            self._db.execute(
                "INSERT INTO customer_order VALUES ('', :customer, :order_id, :status, :currency, :total_minor,"
                " :ordered_at, :shipped_at, :delivered_at, :expected_on, :carrier, :tracking_number)",
                {"customer": customer, **msgspec.structs.asdict(order)},
            )
            self._db.executemany(
                "INSERT INTO order_item VALUES ('', ?, ?, ?, ?, ?)",
                [
                    (order.order_id, line, item.sku, item.quantity, item.unit_price_minor)
                    for line, item in enumerate(order.items, 1)
                ],
            )


@contextmanager
def _as_store_error(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"the shop's database {path} cannot be used: {error}") from error


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Only one process at a time opens a database in this folder: SQLite does not wait when two switch to WAL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
