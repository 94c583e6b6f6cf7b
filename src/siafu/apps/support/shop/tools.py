"""The shop's tools: what they take, what they answer, what they do. Plain code; the protocol is elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from siafu.apps.support.shop.catalogue import Product, Sku
from siafu.apps.support.shop.database import Database
from siafu.apps.support.shop.finding import MAX_FOUND, search, words
from siafu.apps.support.shop.orders import Order, OrderId


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls, as proved outside the arguments. `customer`: None when nobody was identified.

    `scopes`: the tools this caller may use; None = all.
    """

    customer: str | None = None
    tenant: str = ""
    run: str = ""
    request: str = ""
    scopes: frozenset[str] | None = None


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A tool's answer when it cannot help: `code` for machines, `message` for the model or the person."""

    code: str
    message: str
    retryable: bool = False


class OrderQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    order_id: OrderId


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


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One tool. `run` gets the checked arguments; `for_customer`: it needs to know who asks."""

    name: str
    title: str
    description: str
    takes: type[msgspec.Struct]
    gives: type[msgspec.Struct]
    for_customer: bool
    run: Callable[[Database, Caller, Any], msgspec.Struct]


def goods(product: Product) -> Goods:
    """`product` as customers see it."""
    shown = {name: getattr(product, name) for name in Goods.__struct_fields__ if name != "in_stock"}
    return Goods(**shown, in_stock=product.stock > 0)


def _get_order_status(database: Database, caller: Caller, question: OrderQuestion) -> Order | Refusal:
    order = database.order(caller.tenant, caller.customer or "", question.order_id)
    # One answer for "does not exist" and "belongs to somebody else", the same to the byte.
    return order or Refusal(
        code="order_not_found",
        message="This customer has no order with that number. Ask the customer to check the order number.",
    )


def _check_inventory(database: Database, caller: Caller, question: StockQuestion) -> Goods | Refusal:
    product = database.product(question.sku)
    if product is None:
        return Refusal(
            code="sku_not_found",
            message="There is no product with that SKU. Find the right SKU with search_products.",
        )
    return goods(product)


def _search_products(database: Database, caller: Caller, question: ProductQuestion) -> Found | Refusal:
    if not words(question.query):
        return Refusal(code="empty_query", message="The query has no word to search for. Name a product or its use.")
    return Found(products=[goods(product) for product in search(question.query, database.products())])


TOOLS: dict[str, ToolSpec] = {
    tool.name: tool
    for tool in (
        ToolSpec(
            name="get_order_status",
            title="Order status",
            description="Look up one order of the current customer: status (paid, preparing, shipped, delivered, "
            "cancelled, refunded), carrier, tracking number, dates, items and total. 주문 상태와 배송 조회. "
            "Needs the order number. The customer is known from the session and is never an argument. "
            "Error order_not_found: this customer has no such order.",
            takes=OrderQuestion,
            gives=Order,
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
}


def use(tool: ToolSpec, database: Database, caller: Caller, arguments: Mapping[str, Any]) -> msgspec.Struct:
    """Check scope, identity and arguments, in this order, then run the tool.

    Returns a `tool.gives`, or a Refusal: not_in_scope, identity_required, invalid_arguments or the tool's own.
    Raises: StoreError.
    """
    if caller.scopes is not None and tool.name not in caller.scopes:
        return Refusal(code="not_in_scope", message=f"The caller's identity does not cover the tool {tool.name}.")
    if tool.for_customer and caller.customer is None:
        return Refusal(
            code="identity_required",
            message=f"The shop does not know which customer is asking, so {tool.name} cannot answer.",
        )
    try:
        question = msgspec.convert(arguments, tool.takes, strict=True)
    except msgspec.ValidationError as error:
        return Refusal(code="invalid_arguments", message=f"The arguments do not fit the tool: {error}")
    return tool.run(database, caller, question)


def schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of a Struct, with its object at the top, as MCP wants it."""
    (_,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    top = parts.pop(kind.__name__)
    top.pop("title", None)
    return {**top, "$defs": parts} if parts else top
