"""Example requests in Korean and English, made for the customers, orders and products a shop really has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import msgspec

from siafu.apps.support.requests import CustomerRequest


class KnownOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order of the shop, as far as a customer would mention it."""

    order_id: str
    customer: str


# (category a person would give, share in per cent, Korean texts, English texts); {order} and {product} are filled in
TEXTS: tuple[tuple[str, int, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "order_status",
        30,
        (
            "안녕하세요, 주문번호 {order} 지금 어떤 상태인지 알려주세요.",
            "{order} 주문한 지 꽤 됐는데 아직 준비 중인가요?",
            "제 주문 {order} 처리 상황이 궁금합니다.",
            "주문 {order} 상태 확인 부탁드려요 🙏",
        ),
        (
            "Hi, what is the status of my order {order}?",
            "Could you check where order {order} is in your process?",
            "Has order {order} been processed yet?",
        ),
    ),
    (
        "shipping",
        20,
        (
            "{order} 택배가 언제 도착하나요? 송장번호도 알려주세요.",
            "주문 {order} 배송이 어디까지 왔는지 볼 수 있을까요?",
            "배송지 변경은 언제까지 가능한가요? 주문은 {order} 입니다.",
        ),
        (
            "When will order {order} arrive? I also need the tracking number.",
            "Which carrier delivers order {order}?",
        ),
    ),
    (
        "product_qa",
        20,
        (
            "{product} 재고 있나요? 가격도 알고 싶어요.",
            "{product} 같은 제품을 찾고 있는데 추천해 주세요.",
        ),
        (
            "Is {product} in stock, and what does it cost?",
            "I am looking for something like {product}. What do you have?",
        ),
    ),
    (
        "refund",
        15,
        (
            "주문 {order} 환불하고 싶습니다. 어떻게 하면 되나요?",
            "{order} 마음이 바뀌어서 취소하고 돈을 돌려받고 싶어요.",
        ),
        (
            "I want my money back for order {order}.",
            "Please cancel order {order} and refund it.",
        ),
    ),
    (
        "complaint",
        15,
        (
            "정말 화가 나네요. {order} 상품이 깨진 채로 왔어요!",
            "상담원이 세 번이나 말을 바꿨습니다. 주문 {order} 책임자와 통화하고 싶어요.",
        ),
        (
            "This is unacceptable: order {order} arrived damaged and nobody answers me.",
            "I am very disappointed with the service for order {order}.",
        ),
    ),
)


def example_requests(
    orders: Sequence[KnownOrder], products: Sequence[tuple[str, str]], *, count: int = 100, seed: int = 7
) -> Iterator[CustomerRequest]:
    """`count` requests, about 60 % Korean, each by the owner of the order it names; the same for the same arguments.

    products: (Korean name, English name) pairs. No two texts are the same while there are enough orders and products.
    """
    return (request for _, request in example_cases(orders, products, count=count, seed=seed))


def example_cases(
    orders: Sequence[KnownOrder], products: Sequence[tuple[str, str]], *, count: int = 100, seed: int = 7
) -> Iterator[tuple[str, CustomerRequest]]:
    """The same requests, each with the category it was written for."""
    rng = Random(seed)
    kinds = [kind for kind in TEXTS for _ in range(kind[1])]
    rng.shuffle(kinds)
    pool, goods = list(orders), list(products)
    rng.shuffle(pool)
    rng.shuffle(goods)
    for number in range(count):
        category, _, korean, english = kinds[number % len(kinds)]
        order = pool[number % len(pool)]
        in_korean = rng.random() < 0.6
        text = rng.choice(korean if in_korean else english)
        if "{product}" in text:
            goods.append(goods.pop(0))
        yield (
            category,
            CustomerRequest(
                id=f"r{number + 1:03d}",
                customer=order.customer,
                text=text.format(order=order.order_id, product=goods[-1][0 if in_korean else 1]),
                lang="ko" if in_korean else "en",
            ),
        )
