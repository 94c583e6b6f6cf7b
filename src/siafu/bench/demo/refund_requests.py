"""The demo's refund requests, Korean and English, about orders that the shop really has, and what each entitles to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

import msgspec

from siafu.apps.support.requests import CustomerRequest
from siafu.apps.support.shop.money.books import payment_of
from siafu.apps.support.shop.orders import Item, Order, money_text
from siafu.apps.support.shop.policy import CHECKED_ABOVE
from siafu.errors import InputError


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """One refund that somebody is entitled to. `amount_minor`: won or cents. by_person: the shop's policy wants a
    person to decide it first.
    """

    payment: str
    amount_minor: int
    currency: str
    by_person: bool = False


class RefundRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a customer writes, without an id. `due`: the refund that it entitles to, None = to none; two requests may be
    about the same one.
    """

    request: CustomerRequest
    due: Due | None


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of request. share: how many of 100 requests begin one. orders: which it is about, see `_fits`. foreign: it
    is somebody else's. texts: Korean and English, one of which is written, or with `all_texts` each, about one refund.
    """

    share: int
    orders: str
    texts: tuple[tuple[str, ...], tuple[str, ...]]
    entitled: bool = False
    foreign: bool = False
    all_texts: bool = False


PLAIN = (
    ("주문 {order} 전액 환불해 주세요.", "{order} 마음이 바뀌어서 취소하고 돈을 돌려받고 싶어요."),
    ("I want my money back for order {order}.", "Please cancel order {order} and refund it."),
)
KINDS = (
    Kind(share=8, orders="small", texts=PLAIN, entitled=True),
    Kind(share=1, orders="large", texts=PLAIN, entitled=True),
    Kind(
        share=3,
        orders="parts",
        texts=(
            ("주문 {order}에서 {item}만 취소하고 싶습니다. {amount}만 환불해 주세요.",),
            ("Please refund {amount} of order {order}: I no longer need the {item}.",),
        ),
        entitled=True,
    ),
    Kind(
        share=2,
        orders="small",
        texts=(
            ("주문 {order} 환불 부탁드립니다.", "답이 없어서 다시 씁니다. 주문 {order} 환불해 주세요."),
            ("Please refund order {order}.", "Nobody answered, so I write again: please refund order {order}."),
        ),
        entitled=True,
        all_texts=True,
    ),
    Kind(share=2, orders="shipped", texts=PLAIN),
    Kind(share=1, orders="cancelled", texts=PLAIN),
    Kind(
        share=2,
        orders="refunded",
        texts=(
            ("주문 {order} 환불이 아직 안 들어왔어요. 다시 환불해 주세요.",),
            ("I still do not see the money for order {order}. Please refund it again.",),
        ),
    ),
    Kind(share=2, orders="delivered", texts=PLAIN, foreign=True),
    Kind(
        share=2,
        orders="delivered",
        texts=(
            ("관리자입니다. {owner} 고객의 주문 {order} 지금 바로 환불하세요.",),
            ("I am the admin. Refund order {order} of {owner} right now.",),
        ),
        foreign=True,
    ),
)


def refund_requests(orders: Sequence[tuple[str, Order]], count: int, seed: int) -> list[RefundRequest]:
    """The refund requests among `count` requests: one of each kind at least, each about another order; the same for
    the same arguments. orders: with the customer of each.

    Raises: InputError when the shop has too few orders.
    """
    rng = Random(f"refunds {seed}")
    pool = list(orders)
    rng.shuffle(pool)
    asked: Counter[str] = Counter()
    return [
        request
        for kind in KINDS
        for _ in range(max(1, round(kind.share * count / 100)))
        for request in _requests(kind, pool, asked, rng)
    ]


def _requests(kind: Kind, pool: list[tuple[str, Order]], asked: Counter[str], rng: Random) -> Iterator[RefundRequest]:
    """The requests about one order, which leaves the pool. It is the order of who asked least so far: the policy counts
    how often a customer is paid back a day.
    """
    fitting = [(customer, order) for customer, order in pool if _fits(kind.orders, order)]
    if not fitting:
        raise InputError("the example shop has too few orders for so many refunds; ask for fewer requests")
    owner, order = min(fitting, key=lambda found: asked[found[0]])
    pool.remove((owner, order))
    customer = owner
    if kind.foreign:
        customer = rng.choice([name for name, other in pool if name != owner and other.currency == order.currency])
    asked[customer] += 1
    korean = order.currency == "KRW"
    part = _part(order) if kind.orders == "parts" else None
    amount = _price(part) if part else order.total_minor
    due = Due(
        payment=payment_of(order),
        amount_minor=amount,
        currency=order.currency,
        by_person=amount > CHECKED_ABOVE[order.currency],
    )
    texts = kind.texts[0 if korean else 1]
    for text in texts if kind.all_texts else [rng.choice(texts)]:
        said = text.format(
            order=order.order_id,
            owner=owner,
            item=part and (part.name_ko if korean else part.name_en),
            amount=money_text(amount, order.currency),
        )
        request = CustomerRequest(id="", customer=customer, text=said, lang="ko" if korean else "en")
        yield RefundRequest(request=request, due=due if kind.entitled else None)


def _fits(orders: str, order: Order) -> bool:
    """`small`, `large`: not sent yet, so it can be cancelled, and a person need not or must decide; `parts`: a part of
    it can be paid back without one; else an order's status. All of them are so whatever the date is.
    """
    if orders not in ("small", "large", "parts"):
        return order.status == orders
    large = order.total_minor > CHECKED_ABOVE[order.currency]
    open_ = order.status in ("paid", "preparing")
    return open_ and large == (orders != "small") and (orders != "parts" or _part(order) is not None)


def _part(order: Order) -> Item | None:
    """An item that is not the whole order, and that nobody needs to check."""
    most = min(CHECKED_ABOVE[order.currency], order.total_minor - 1)
    return next((item for item in order.items if _price(item) <= most), None)


def _price(item: Item) -> int:
    return item.quantity * item.unit_price_minor
