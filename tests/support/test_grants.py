"""What a customer's words name: tables, and properties over made-up messages."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from siafu.apps.support.grants import MOST, amounts, named
from siafu.border.identity import Grants, mint, verify
from siafu.border.secrets import Secret

ORDERS = (
    *("1001", "#1001", "(1001)", "№1001", "1001번", "1001번을", "1001은요?", "1001만 환불해 주세요", "1001이요."),
    *("１００１", "＃１００１번", "주문번호 1001번", "주문1001", "주문번호:1001", "제 주문 1001 입니다", "order 1001"),
    *("order #1001", "order_1001", "order1001", "ORD-1001", "no. 1001", "No.1001", "1001's status", "1001/"),
    "order 1001 won't arrive",
    "1001 원피스를 환불해 주세요",
    "주문 1001만 원해요",
    "1001 원래 색상이 아니에요",
    "1001 개봉하지 않았어요",
)
DOLLARS = {1_999, 2_990, 129_900}
AMOUNTS = {
    30_000: ("30000원", "30,000원", "30,000 원을", "3만원", "3만 원", "3만원만", "30천원", "삼만원", "３만원"),
    35_000: ("3만 5천원", "3만5천원", "3만5000원", "3만 5,000원", "3.5만원", "삼만 오천원", "삼만오천 원이에요"),
    15_000: ("15000 won", "15,000 WON", "₩15,000", "￦15000", "KRW 15000", "15000krw", "1만5천원짜리", "1.5만원"),
    10_000: ("만원", "만 원", "일만원", "1만원쯤", "10000 won, please"),
    120_000_000: ("1억 2천만원", "120,000,000원"),
    2_990: (
        "$29.90",
        "$ 29.90",
        "US$29.90",
        "USD 29.90",
        "29.90 USD",
        "29.90 dollars",
        "29.9달러",
        "＄29.90",
        "$29.90.",
    ),
    1_999: ("$19.99", "19.99 USD"),  # of the sums that a float misses
    129_900: ("$1,299", "1,299.00 dollars"),
    10**12: ("1000000000000원",),
}
NEITHER = (
    *("", "환불해 주세요", "30,000", "3만", "0원", "$0", "-30000원", "30,0000원", "1000000000001원", "$1.999", "1.5원"),
    *(
        "2026-11-30",
        "2026.11.30",
        "2026/11/30",
        "2026년",
        "010-1234-5678",
        "14:30",
        "1234-5678-9012-3456",
        "01012345678",
    ),
    *(
        "SKU-2001",
        "sku 2001",
        "ABC1001",
        "1001A",
        "A-1001",
        "€3000",
        "1001개",
        "5000포인트",
        "수만원",
        "몇천원",
        "회원",
    ),
    *("직원 구원", "원해요", "123", "12345678901", "3,000.5원", "2 만원"),
)


@pytest.mark.parametrize("text", ORDERS)
def test_orders(text: str) -> None:
    assert named([text]) == Grants({"1001": ()})
    assert amounts(text) == ()


@pytest.mark.parametrize(("minor", "text"), [(minor, text) for minor, texts in AMOUNTS.items() for text in texts])
def test_amounts(minor: int, text: str) -> None:
    found = ("USD" if minor in DOLLARS else "KRW", minor)
    assert (amounts(text), named([text])) == ((found,), Grants())
    assert named([f"1001번, {text}"]) == Grants({"1001": (found,)})


@pytest.mark.parametrize("text", NEITHER)
def test_neither(text: str) -> None:
    assert (named([text]), amounts(text)) == (Grants(), ())


@pytest.mark.parametrize(
    ("text", "orders", "sums"),
    [
        ("1001 30,000원 환불", ("1001",), (30_000,)),
        ("주문 1001 만원만 환불", ("1001",), ()),  # 1,001만원, or 1001 and 만원: unclear, so the customer is asked
        ("refund order 1001 $30 and 1002, USD 29.90", ("1001", "1002"), (("USD", 3_000), ("USD", 2_990))),
        ("주문 30000에서 30000원", ("30000",), (30_000,)),
        ("1001번 말고 1002번", ("1001", "1002"), ()),  # a bound, no instruction
        ("1001,1002/1003 1004번", ("1001", "1002", "1003", "1004"), ()),
        ("1001 krw 30000", ("1001",), (30_000,)),
        ("29.90 USD 1001, 15,000 KRW 1002", ("1001", "1002"), (("USD", 2_990), 15_000)),
    ],
)
def test_what_is_read(text: str, orders: tuple[str, ...], sums: tuple[int | tuple[str, int], ...]) -> None:
    assert tuple(named([text]).orders) == orders
    assert amounts(text) == tuple(found if isinstance(found, tuple) else ("KRW", found) for found in sums)


# Newest first, as `named` takes them.
CONVERSATIONS: tuple[tuple[list[str], dict[str, list[int]]], ...] = (
    (["3만원이요", "1001번 환불해 주세요"], {"1001": [30_000]}),
    (["1001번이요", "3만원만 환불해 주세요"], {"1001": [30_000]}),
    (["3만원이요", "네", "1001번 환불해 주세요"], {"1001": [30_000]}),
    (["3만원이요", "1001번, 1002번 환불해 주세요"], {"1001": [], "1002": []}),
    (["1002번이요", "3만원만 환불해 주세요", "1001번은 어디쯤 왔나요?"], {"1002": [], "1001": []}),
    (["3만원이요", "1002번이요", "3만원만", "1001번은 어디쯤 왔나요?"], {"1002": [30_000], "1001": []}),
    (["1003번 5천원", "1001번 3만원"], {"1003": [5_000], "1001": [30_000]}),
    (["3만원이요", "환불해 주세요"], {}),
)


@pytest.mark.parametrize(("texts", "expected"), CONVERSATIONS)
def test_an_answer_belongs_to_what_was_asked_before(texts: list[str], expected: dict[str, list[int]]) -> None:
    found = named(texts).orders
    assert {order: [minor for _, minor in sums] for order, sums in found.items()} == expected
    assert tuple(found) == tuple(expected)  # newest first


ORDER_FORMS = ("{}", "#{}", "주문번호 {}번", "order {}", "order #{}", "주문 {}", "ORD-{}")
WON_FORMS = ("{:,}원", "{}원", "{:,} 원", "{} won", "KRW {:,}", "₩{}")
DOLLAR_FORMS = ("${:,}.{:02}", "{}.{:02} USD", "USD {}.{:02}", "{:,}.{:02}달러")
FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}

orders = st.builds(
    lambda number, form: (form.format(number), str(number)), st.integers(1000, 10**10 - 1), st.sampled_from(ORDER_FORMS)
)
won = st.builds(
    lambda minor, form: (form.format(minor), ("KRW", minor)), st.integers(1, 10**9), st.sampled_from(WON_FORMS)
)
dollars = st.builds(
    lambda minor, form: (form.format(minor // 100, minor % 100), ("USD", minor)),
    st.integers(1, 10**9),
    st.sampled_from(DOLLAR_FORMS),
)
words = st.sampled_from(("환불해 주세요", "please", "그리고", "I want my money back for", "을 못 받았어요.", "🙏", ","))


@given(st.lists(st.one_of(orders, won, dollars, words.map(lambda word: (word, None))), max_size=12), st.booleans())
def test_a_message_names_exactly_what_it_is_made_of(
    parts: list[tuple[str, str | tuple[str, int] | None]], wide: bool
) -> None:
    text = ", ".join(part for part, _ in parts)
    text = text.translate(FULL_WIDTH) if wide else text
    assert tuple(named([text]).orders) == tuple(dict.fromkeys(value for _, value in parts if isinstance(value, str)))
    assert amounts(text) == tuple(dict.fromkeys(value for _, value in parts if isinstance(value, tuple)))


@given(st.integers(1, 99_999), st.integers(0, 9), st.booleans())
def test_korean_units(ten_thousands: int, thousands: int, spaced: bool) -> None:
    text = f"{ten_thousands}만{' ' * spaced}{f'{thousands}천' if thousands else ''}원"
    assert amounts(text) == (("KRW", ten_thousands * 10_000 + thousands * 1_000),)


CURRENCY = re.compile(r"원|₩|￦|won|krw|usd|dollar|달러|[$＄]|[ｗＷｋＫｕＵｄＤ]", re.IGNORECASE)
soup = st.text(
    st.sampled_from("0123456789０１９,.:/-# \n만천백십억원번년개주문을이오삼$₩€wonWONusdkrwdollarsord\ufeff"),
    max_size=60,
)


@given(soup)
@example("1001만 1001원1001")
def test_nothing_is_named_that_is_not_there(text: str) -> None:
    found, sums = named([text]).orders, amounts(text)
    digits = text.translate({code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)})
    assert all(re.fullmatch("[0-9]{4,10}", order) and order in digits for order in found)
    assert all(0 < minor <= 10**12 for _, minor in sums)
    assert all(granted in sums for of in found.values() for granted in of)
    assert CURRENCY.search(text) or not sums
    # No digit counts twice: where every number names an order, no digits are left for an amount.
    numbers = re.findall("[0-9]+", digits)
    assert len(found) + len(sums) <= len(numbers) + len(re.findall("[십백천만억]", text))


@given(st.lists(soup, max_size=4))
def test_more_messages_never_take_an_order_away(texts: list[str]) -> None:
    together = named(texts).orders
    for text in texts:
        alone = named([text]).orders
        assert set(alone) <= set(together) or len(together) == MOST
        sums = sum(map(len, together.values()))
        assert all(set(of) <= set(together.get(order, ())) for order, of in alone.items()) or sums == MOST


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece",
    [
        "1",
        "1,",
        "만",
        "만 ",
        "1만 ",
        "일만",
        " ",
        "$",
        "1 ",
        "1.",
        "1-",
        "1/",
        "order",
        "₩1천 ",
        "1001 $1 and ",
        "1001,\n",
        "\n",
    ],
)
def test_a_long_message_is_read_in_bounded_time(piece: str) -> None:
    named([piece * (20_000 // len(piece))] * 20)


def test_the_newest_twenty_fit_into_an_identity() -> None:
    numbers = range(10**9, 10**9 + 100)
    found = named([f"order {number}, {number}원" for number in numbers])
    assert found.orders == {str(number): (("KRW", number),) for number in numbers[:MOST]}
    key = Secret("k3y" * 20)
    token = mint(
        key, subject="김" * 60, audience="shop", scopes=["process_refund"], now=0, request="r" * 200, grants=found
    )
    assert verify(token, key, "shop", 1).grants == found


def test_of_more_amounts_than_a_token_holds_the_newest_count() -> None:
    found = named([f"1001번 {', '.join(f'{minor}원' for minor in range(100, 140))}", "1002번 5원"])
    assert found.orders == {"1001": tuple(("KRW", minor) for minor in range(100, 100 + MOST)), "1002": ()}
