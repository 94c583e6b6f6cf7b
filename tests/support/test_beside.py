"""Which order an amount is granted for, by a table, and by properties over messages made of pairs."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from siafu.apps.support.grants import named

CLEAR = {
    (("1001", 5_000), ("1002", 30_000)): (
        *("환불: 1001번 주문 5,000원, 1002번 주문 30,000원", "1001번에서 5,000원, 1002번에서 3만원 환불해 주세요"),
        *("1001번 5000원 1002번 30000원", "1001번 주문은 5천원이고 1002번 주문은 3만원입니다"),
        *("5,000원은 1001번에서, 30,000원은 1002번에서", "1001번에서 5,000원하고 1002번에서 30,000원"),
        *("1001번과 1002번에서 각각 5,000원과 30,000원 환불해 주세요", "1001: 5,000원; 1002: 30,000원"),
        *("주문번호 1001 / 5,000원\n주문번호 1002 / 30,000원", "1001번 5,000원이요. 1002번은 30,000원이요."),
        *("주문: 1001\n금액: 5,000원\n주문: 1002\n금액: 30,000원", "- 1001번: 5,000원\n- 1002번: 30,000원"),
        *("총 35,000원입니다. 1001번 5,000원, 1002번 30,000원", "1001(5,000원), 1002(30,000원)"),
        *("1001번에서 5,000원, 그리고 1002번에서\n30,000원", "1001번, 5,000원\n\n1002번, 30,000원"),
        *("1003번은 그대로 두고 1001번에서 5,000원, 1002번에서 30,000원",),
    ),
    (("1001", 500), ("1002", 3_000)): (
        *("refund $5 of order 1001 and $30 of order 1002", "1001: $5; 1002: $30", "1001 -> $5, 1002 -> $30"),
        *("Refund $5 and $30 of orders 1001 and 1002 respectively.", "Please refund 1001 ($5) and 1002 ($30)."),
        *("order #1001 for $5.00, order #1002 for $30.00.", "refund $5 of No. 1001 and $30 of No. 1002"),
        *("refund order 1001, $5, and order 1002, $30", "refund order 1001, $5 and order 1002, $30"),
        *("Please refund $5 of order 1001 and $30 of\norder 1002", "From order 1001 refund $5, from 1002 $30"),
        *("Please refund $5 of order 1001 and then $30 for the\nblue shirt of order 1002", "$5 of 1001. $30 of 1002."),
        *("I paid $99 in all. Refund $5 of 1001 and $30 of 1002, keep 1003.",),
    ),
    (("1001", 5_000), ("1001", 3_000), ("1002", 30_000)): (
        *("1001번에서 5,000원과 3,000원, 1002번에서 30,000원", "1001: 5,000 won and 3,000 won; 1002: 30,000 won"),
    ),
    # The $5 may also be of an order before them.
    (("1001", 300), ("1002", 3_000)): ("refund $5 and $3 of 1001 and $30 of 1002", "$5, $3 of 1001; $30 of 1002"),
    (("1001", 5_000), ("1002", 5_000)): (
        *("1001번, 1002번 5,000원씩 환불해 주세요", "1001번과 1002번에서 각각 5,000원이요"),
        *("refund 5,000 won each for 1001 and 1002", "1001 and 1002, each 5000 won"),
    ),
    (("1002", 5_000),): (
        "1001번은 전액, 1002번은 5,000원",
        "1001번은 취소하고 1002번은 5,000원만",
        "1001 all, 1002: ₩5000",
    ),
    (("1001", 5_000),): ("1001번을 취소하고 5,000원 환불, 1002번은 전액", "1001번 5,000원, 1002번은 전액"),
    # Nobody can say whose they are.
    (): (
        *("1001번과 1002번에서 30,000원", "refund $5 of 1001 and 1002", "orders 1001 and 1002: $5 and $30"),
        *("1001번, 1002번 5,000원, 30,000원", "5,000원과 30,000원을 1001번과 1002번에서", "1001 $5 1002"),
        *("1001번에서 5,000원, 30,000원은\n1002번에서", "refund 1001, $5 and 1002 in full"),
        *(
            "Refund $5. And 1001. And $30, 1002.",
            "- 주문 1001\n- 금액 5,000원 order #1002, 30,000원",
            "1001번은 됐고 1002번도 됐습니다. 30,000원 환불해 주세요.",
        ),
    ),
}


def granted(text: str) -> set[tuple[str, int]]:
    return {(order, minor) for order, sums in named([text]).orders.items() for _, minor in sums}


@pytest.mark.parametrize(("text", "expected"), [(text, pairs) for pairs, texts in CLEAR.items() for text in texts])
def test_what_stands_beside_what(text: str, expected: tuple[tuple[str, int], ...]) -> None:
    assert granted(text) == set(expected)


def test_every_amount_of_a_message_about_one_order_is_of_it() -> None:
    assert granted("배송비 3,000원 냈어요. 1001번이고요. 그래서 30,000원, 아니 5,000원만요. 1001번!") == {
        *(("1001", 3_000), ("1001", 30_000), ("1001", 5_000))
    }


# (of one pair, between pairs); {o} and {a} are filled in. In all of them a person sees what belongs together.
TEMPLATES = (
    *(("{o}번 주문 {a}", ", "), ("{o}번에서 {a}", "하고 "), ("{a}은 {o}번에서", ", "), ("주문번호 {o}번: {a}", "\n")),
    *(("{o}번 {a}", " 그리고 "), ("{o}번 주문 중 {a} 환불해 주세요", ". "), ("{o}번 주문은 {a}", "이고 ")),
    *(("- 주문 {o}\n- 금액 {a}", "\n"), ("{o}번({a})", " "), ("#{o} {a}", "\n\n"), ("{o} | {a}", "\n")),
    *(("{a} of order {o}", " and "), ("order {o}: {a}", "; "), ("{a} of No. {o}", ", and "), ("order {o} ({a})", ", ")),
    *(("Refund {a} of order {o}", ".\n"), ("from order {o} {a}", ", "), ("order #{o}, {a}", "\n"), ("#{o} = {a}", " ")),
)
AROUND = ("", "환불: ", "안녕하세요. ", "Please refund the following.\n", "주문한 지 3일 됐어요! ")
AFTER = ("", " 환불해 주세요", ". Thank you!", "\n감사합니다.", " 🙏")
numbers = st.lists(st.integers(1001, 1999).map(str), min_size=1, max_size=6, unique=True)
sums = st.lists(st.integers(1, 99).map(lambda n: n * 1_000), min_size=6, max_size=6, unique=True)
FORMS = ("{:,}원", "{} won", "₩{:,}", "KRW {}")


@given(
    numbers, sums, st.sampled_from(TEMPLATES), st.sampled_from(FORMS), st.sampled_from(AROUND), st.sampled_from(AFTER)
)
def test_a_clear_message_grants_all_its_pairs_and_no_other(
    orders: list[str], minors: list[int], template: tuple[str, str], form: str, before: str, after: str
) -> None:
    pairs = list(zip(orders, minors, strict=False))
    one, between = template
    text = before + between.join(one.format(o=order, a=form.format(minor)) for order, minor in pairs) + after
    assert granted(text) == set(pairs), text


@given(
    numbers,
    sums,
    st.sampled_from([("{o}에서 각각 {a} 환불", "번, ", ", "), ("{a} of {o} respectively", " and ", ", ")]),
)
def test_two_lists_grant_what_stands_at_the_same_place(
    orders: list[str], minors: list[int], template: tuple[str, str, str]
) -> None:
    whole, of_orders, of_sums = template
    pairs = list(zip(orders, minors, strict=False))
    amounts = of_sums.join(f"{minor:,}원" for _, minor in pairs)
    assert granted(whole.format(o=of_orders.join(orders), a=amounts)) == set(pairs)


BETWEEN = (", ", "\n", "\n\n", ". ", "; ", " and ", ", and ", " 그리고 ", "하고 ")


@given(
    numbers,
    sums,
    st.lists(st.tuples(st.sampled_from(TEMPLATES), st.sampled_from(BETWEEN)), min_size=6, max_size=6),
    st.sampled_from(FORMS),
)
@example(
    ["1001", "1002"], [1_000, 2_000, 3_000, 4_000, 5_000, 6_000], [(TEMPLATES[7], ", "), (TEMPLATES[10], "")], "{}원"
)
def test_however_pairs_are_written_after_each_other_nothing_else_is_granted(
    orders: list[str], minors: list[int], how: list[tuple[tuple[str, str], str]], form: str
) -> None:
    pairs = list(zip(orders, minors, strict=False))
    said = [
        template[0].format(o=order, a=form.format(minor)) + between
        for (order, minor), (template, between) in zip(pairs, how, strict=False)
    ]
    text = "".join(said)
    assert granted(text) <= set(pairs), text


# A message in which orders and amounts stand about: nothing says whose they are, so they are nobody's.
LISTS = (
    "{orders}: {sums}",
    "{sums} / {orders}",
    "{orders} 환불, {sums}",
    "refund {sums} of {orders}",
    "{orders}번 {sums}",
)


@given(
    st.lists(st.integers(1001, 1999).map(str), min_size=2, max_size=4, unique=True),
    st.lists(st.integers(1, 99).map(lambda n: n * 1_000), min_size=1, max_size=4, unique=True),
    st.sampled_from(LISTS),
    st.sampled_from([", ", " and ", "번, ", "과 "]),
)
def test_lists_without_a_word_that_joins_them_make_no_pair(
    orders: list[str], minors: list[int], words: str, between: str
) -> None:
    sums = ", ".join(f"{minor:,}원" for minor in minors)
    assert granted(words.format(orders=between.join(orders), sums=sums)) == set()
