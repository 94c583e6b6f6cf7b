"""The tables of the shop's database, and what a new one is filled with."""

from __future__ import annotations

from datetime import datetime

import msgspec

from siafu.apps.support.shop.catalogue import products
from siafu.apps.support.shop.orders import first_orders
from siafu.store.append_only import append_only
from siafu.store.database import Transaction

# One entry a version, never edited once released.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE product (
            sku TEXT PRIMARY KEY, name_ko TEXT NOT NULL, name_en TEXT NOT NULL, category TEXT NOT NULL,
            price_krw {integer} NOT NULL CHECK (price_krw > 0),
            price_usd_cents {integer} NOT NULL CHECK (price_usd_cents > 0),
            stock {integer} NOT NULL CHECK (stock >= 0), restock_on TEXT, keywords TEXT NOT NULL
        ) {strict}""",
        # The customer comes before the order in the key, so that a stranger's order is not even looked at: asking for
        # it takes the same steps as asking for one that does not exist.
        """CREATE TABLE customer_order (
            tenant_id TEXT NOT NULL, customer TEXT NOT NULL, order_id TEXT NOT NULL,
            status TEXT NOT NULL
                CHECK (status IN ('paid', 'preparing', 'shipped', 'delivered', 'cancelled', 'refunded')),
            currency TEXT NOT NULL CHECK (currency IN ('KRW', 'USD')),
            total_minor {integer} NOT NULL CHECK (total_minor >= 0),
            ordered_at TEXT NOT NULL, shipped_at TEXT, delivered_at TEXT, expected_on TEXT,
            carrier TEXT, tracking_number TEXT,
            PRIMARY KEY (tenant_id, customer, order_id), UNIQUE (tenant_id, order_id)
        ) {strict}""",
        """CREATE TABLE order_item (
            tenant_id TEXT NOT NULL, order_id TEXT NOT NULL, line {integer} NOT NULL,
            sku TEXT NOT NULL REFERENCES product (sku), quantity {integer} NOT NULL CHECK (quantity > 0),
            unit_price_minor {integer} NOT NULL CHECK (unit_price_minor >= 0),
            PRIMARY KEY (tenant_id, order_id, line),
            FOREIGN KEY (tenant_id, order_id) REFERENCES customer_order (tenant_id, order_id)
        ) {strict}""",
        """CREATE TABLE call (
            id {serial}, at {real} NOT NULL, tenant_id TEXT NOT NULL, customer TEXT,
            run TEXT NOT NULL, request TEXT NOT NULL, tool TEXT NOT NULL,
            arguments_sha256 TEXT NOT NULL, outcome TEXT NOT NULL
        ) {strict}""",
        # Every call of a tool that changes something, for good; `call` forgets.
        """CREATE TABLE effect_call (
            id {serial}, at {real} NOT NULL, tenant_id TEXT NOT NULL, customer TEXT,
            run TEXT NOT NULL, request TEXT NOT NULL, tool TEXT NOT NULL, effect_key TEXT NOT NULL,
            arguments_sha256 TEXT NOT NULL, outcome TEXT NOT NULL
        ) {strict}""",
        *append_only("effect_call"),
        """CREATE TABLE stock_reservation (
            reservation_id TEXT PRIMARY KEY, tenant_id TEXT NOT NULL, customer TEXT NOT NULL,
            effect_key TEXT NOT NULL, sku TEXT NOT NULL REFERENCES product (sku),
            quantity {integer} NOT NULL CHECK (quantity > 0),
            state TEXT NOT NULL CHECK (state IN ('held', 'released')),
            reserved_at {real} NOT NULL, released_at {real},
            CHECK ((state = 'released') = (released_at IS NOT NULL))
        ) {strict}""",
        "CREATE UNIQUE INDEX one_reservation_a_key ON stock_reservation (tenant_id, customer, effect_key)"
        " WHERE effect_key <> ''",
        "CREATE UNIQUE INDEX one_held_reservation ON stock_reservation (tenant_id, customer, sku, quantity)"
        " WHERE effect_key = '' AND state = 'held'",
        """CREATE TABLE ticket (
            ticket_id TEXT PRIMARY KEY, tenant_id TEXT NOT NULL, customer TEXT NOT NULL,
            effect_key TEXT NOT NULL, subject TEXT NOT NULL, summary TEXT NOT NULL, text_sha256 TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('open', 'closed')),
            opened_at {real} NOT NULL, closed_at {real},
            CHECK ((state = 'closed') = (closed_at IS NOT NULL))
        ) {strict}""",
        "CREATE UNIQUE INDEX one_ticket_a_key ON ticket (tenant_id, customer, effect_key) WHERE effect_key <> ''",
        "CREATE UNIQUE INDEX one_open_ticket ON ticket (tenant_id, customer, text_sha256)"
        " WHERE effect_key = '' AND state = 'open'",
        # The newest entry of a tool and tenant says whether it is on; '*' = every one.
        """CREATE TABLE switch_event (
            tool TEXT NOT NULL, tenant_id TEXT NOT NULL, seq {integer} NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('on', 'off')),
            by_whom TEXT NOT NULL, reason TEXT NOT NULL, at {real} NOT NULL,
            PRIMARY KEY (tool, tenant_id, seq)
        ) {strict}""",
        *append_only("switch_event"),
        """CREATE TABLE daily_cap (
            tool TEXT NOT NULL, tenant_id TEXT NOT NULL,
            unit TEXT NOT NULL CHECK (unit IN ('calls', 'KRW', 'USD')),
            most {integer} NOT NULL CHECK (most >= 0),
            PRIMARY KEY (tool, tenant_id, unit)
        ) {strict}""",
        """CREATE TABLE daily_use (
            tool TEXT NOT NULL, tenant_id TEXT NOT NULL, unit TEXT NOT NULL,
            day {integer} NOT NULL, used {integer} NOT NULL CHECK (used >= 0),
            PRIMARY KEY (tool, tenant_id, unit, day)
        ) {strict}""",
    ),
    ("ALTER TABLE customer_order ADD COLUMN refunded_at TEXT",),  # NULL: not refunded, or nobody knows when
)

_PRODUCT = """INSERT INTO product (sku, name_ko, name_en, category, price_krw, price_usd_cents, stock, restock_on,
    keywords) VALUES (:sku, :name_ko, :name_en, :category, :price_krw, :price_usd_cents, :stock, :restock_on, :keywords)
    ON CONFLICT DO NOTHING"""
_ORDER = """INSERT INTO customer_order (tenant_id, customer, order_id, status, currency, total_minor, ordered_at,
    shipped_at, delivered_at, expected_on, carrier, tracking_number, refunded_at)
    VALUES ('', :customer, :order_id, :status, :currency, :total_minor, :ordered_at, :shipped_at, :delivered_at,
    :expected_on, :carrier, :tracking_number, :refunded_at)
    ON CONFLICT DO NOTHING"""
_ITEM = """INSERT INTO order_item (tenant_id, order_id, line, sku, quantity, unit_price_minor)
    VALUES ('', :order_id, :line, :sku, :quantity, :unit_price_minor)"""


def fill(tx: Transaction, opened: datetime) -> None:
    """Put the first products and orders of a shop that opened then into a database that has no products. Of several
    processes that do so at once, each row is one's.
    """
    if tx.row("SELECT 1 FROM product LIMIT 1"):
        return
    goods = products(opened)
    for product in goods:
        tx.change(_PRODUCT, **msgspec.structs.asdict(product))
    for customer, order in first_orders(goods, opened):
        values = {name: getattr(order, name) for name in order.__struct_fields__ if f":{name}" in _ORDER}
        if tx.change(_ORDER, customer=customer, **values):
            for line, item in enumerate(order.items, 1):
                given = {name: getattr(item, name) for name in ("sku", "quantity", "unit_price_minor")}
                tx.change(_ITEM, order_id=order.order_id, line=line, **given)
