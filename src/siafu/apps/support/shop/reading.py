"""The shop's tools that only read: an order, a product's stock, a search."""

from __future__ import annotations

from typing import Annotated

import msgspec

from siafu.apps.support.shop.calling import Caller, ToolSpec
from siafu.apps.support.shop.catalogue import Product, Sku
from siafu.apps.support.shop.database import all_products, find_order, find_product
from siafu.apps.support.shop.finding import MAX_FOUND, search, words
from siafu.apps.support.shop.money.books import order_money
from siafu.apps.support.shop.orders import Order, OrderId, shop_time
from siafu.apps.support.shop.refusal import Refusal
from siafu.apps.support.shop.stock import sku_not_found
from siafu.store.database import Transaction


class OrderQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    order_id: OrderId


class OrderStatus(Order, frozen=True, kw_only=True):
    """An order and its money. refunded_minor: refunded or being refunded. refund_pending_minor: the part of it that is
    not paid back yet, but waits for a person or the payment provider. refundable_minor: what remains.
    """

    refunded_minor: int
    refund_pending_minor: int
    refundable_minor: int


class StockQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sku: Sku


class ProductQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    query: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=200,
            description="Words of a name, category or use, Korean or English (검색어), for example 무선 이어폰.",
        ),
    ]


class Goods(msgspec.Struct, frozen=True, kw_only=True):
    """A product as customers see it. `restock_on`: a date, only known when there is none left."""

    sku: str
    name_ko: str
    name_en: str
    category: str
    price_krw: int
    price_usd_cents: int
    stock: int
    in_stock: bool
    restock_on: str | None


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Search results, best first."""

    products: list[Goods]


def order_not_found() -> Refusal:
    """One answer for an order that does not exist and one that belongs to somebody else, the same to the byte."""
    return Refusal(
        code="order_not_found",
        message="This customer has no order with that number. Ask the customer to check the order number.",
    )


def goods(product: Product) -> Goods:
    """`product` as customers see it."""
    shown = {name: getattr(product, name) for name in Goods.__struct_fields__ if name != "in_stock"}
    return Goods(**shown, in_stock=product.stock > 0)


def _get_order_status(tx: Transaction, caller: Caller, question: OrderQuestion) -> OrderStatus | Refusal:
    order = find_order(tx, caller.tenant, caller.customer or "", question.order_id)
    if order is None:
        return order_not_found()
    money = order_money(tx, caller.tenant, order)
    last = order.refunded_at if money.refunded_at is None else shop_time(money.refunded_at)
    return OrderStatus(
        **(msgspec.structs.asdict(order) | {"refunded_at": last}),
        refunded_minor=money.committed_minor,
        refund_pending_minor=money.reserved_minor,
        refundable_minor=money.refundable_minor,
    )


def _check_inventory(tx: Transaction, caller: Caller, question: StockQuestion) -> Goods | Refusal:
    product = find_product(tx, question.sku)
    if product is None:
        return sku_not_found()
    return goods(product)


def _search_products(tx: Transaction, caller: Caller, question: ProductQuestion) -> Found | Refusal:
    if not words(question.query):
        return Refusal(code="empty_query", message="The query has no word to search for. Name a product or its use.")
    return Found(products=[goods(product) for product in search(question.query, all_products(tx))])


READING: tuple[ToolSpec, ...] = (
    ToolSpec(
        name="get_order_status",
        title="Order status",
        description="Look up one order of the current customer: status (paid, preparing, shipped, delivered, "
        "cancelled, refunded), carrier, tracking number, dates, items, total, and what of it is refunded, in a refund "
        "still pending, or refundable. 주문 상태와 배송 조회. "
        "Needs the order number. The customer is known from the session and is never an argument. "
        "Error order_not_found: this customer has no such order.",
        takes=OrderQuestion,
        gives=OrderStatus,
        for_customer=True,
        run=_get_order_status,
    ),
    ToolSpec(
        name="check_inventory",
        title="Stock of a product",
        description="How many pieces of one product are in stock, its price, and when it is back if there are "
        "none. 재고와 가격 확인. Needs the SKU; search_products finds it. Error sku_not_found: no such product.",
        takes=StockQuestion,
        gives=Goods,
        for_customer=False,
        run=_check_inventory,
    ),
    ToolSpec(
        name="search_products",
        title="Product search",
        description=f"Find products by words in Korean or English, best match first, at most {MAX_FOUND}, each "
        "with SKU, price and stock. 상품 검색. An empty list means that nothing matched: try fewer or other words.",
        takes=ProductQuestion,
        gives=Found,
        for_customer=False,
        run=_search_products,
    ),
)
