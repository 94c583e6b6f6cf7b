"""What goes out: of money and of people, only what tools answered."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.apps.support import letter as words
from siafu.apps.support.letter import LINK_REMOVED, letter
from siafu.apps.support.requests import Refund, RefundState
from siafu.apps.support.routes import ROUTES

LIE = "30,000원을 환불해 드렸습니다. We have refunded everything."
PAID = Refund(order_id="1001", state="paid", amount_minor=30_000, currency="KRW")
OTHERS = [state for state in get_args(RefundState) if state != "paid"]


def out(
    *refunds: Refund, route: str = "refund", ticket: str | None = None, text: str = LIE, korean: bool = True
) -> str:
    return letter(ROUTES[route], refunds, ticket, text, korean=korean)


@pytest.mark.parametrize("korean", [True, False])
@pytest.mark.parametrize(("state", "code"), [*product(OTHERS, ["", "x", *words.WHY])])
def test_words_that_claim_a_payment_stay_here_when_there_was_none(state: Any, code: str, korean: bool) -> None:
    refund = Refund(order_id="1001", state=state, code=code)
    for told in (out(refund, korean=korean), out(PAID, refund, korean=korean)):
        assert LIE not in told
        assert told
        assert any("가" <= letter <= "힣" for letter in told.replace("원", "")) == korean


def test_what_is_pending_is_told_as_pending() -> None:
    waits = Refund(order_id="1001", state="pending_approval", code="pending_approval")
    assert out(waits) == words.PENDING[0].format(order="1001")
    assert "아직 환불되지 않았습니다" in out(waits)
    assert "Nothing has been refunded yet" in out(waits, korean=False)


def test_what_cannot_be_done_now_is_neither_told_as_paid_nor_as_refused() -> None:
    later = Refund(order_id="1001", state="not_yet", code="payments_unavailable")
    assert "아직 환불되지 않았습니다. 거절된 것은 아니니" in out(later)
    told = out(later, korean=False)
    assert "nothing has been refunded yet. It is not refused; please ask about this order later." in told


def test_a_payment_is_told_with_its_own_amount_before_the_models_words() -> None:
    told = out(PAID, text="감사합니다.")
    assert told == "주문 1001: 30,000원 환불이 처리되었습니다. 원래의 결제 수단으로 돌려드립니다.\n\n감사합니다."
    dollars = Refund(order_id="1031", state="paid", amount_minor=2_990, currency="USD")
    assert (
        out(dollars, text="", korean=False) == "Order 1031: $29.90 has been refunded to the original means of payment."
    )
    unclear = Refund(order_id="1031", state="paid", currency="EUR", amount_minor=5)
    assert "it has been refunded" in out(unclear, korean=False)


def test_without_a_try_it_is_said_that_nothing_was_paid() -> None:
    assert out(text="어느 주문인가요?") == f"{words.NOTHING_PAID[0]}\n\n어느 주문인가요?"
    assert out(text="Which order?", korean=False) == f"{words.NOTHING_PAID[1]}\n\nWhich order?"


@pytest.mark.parametrize(
    "route", [name for name, route in ROUTES.items() if not route.refunds and not route.hands_over]
)
def test_other_routes_say_what_the_model_says(route: str) -> None:
    assert out(route=route, text="배송 중입니다.") == "배송 중입니다."


@pytest.mark.parametrize("route", [name for name, route in ROUTES.items() if not route.refunds])
def test_where_no_money_can_move_a_claim_of_a_payment_is_denied(route: str) -> None:
    ticket = "tkt-7" if ROUTES[route].hands_over else None
    assert out(route=route, ticket=ticket).endswith(f"{LIE}\n\n{words.NOTHING_PAID[0]}")
    english = out(route=route, ticket=ticket, text="I have refunded $5.", korean=False)
    assert english.endswith(f"I have refunded $5.\n\n{words.NOTHING_PAID[1]}")
    # What a tool has shown may be told.
    report = "이 주문은 이미 환불되었습니다."
    assert words.NOTHING_PAID[0] in out(route=route, ticket=ticket, text=report)
    shown = letter(ROUTES[route], (), ticket, report, korean=True, shown=[("KRW", 5)])
    assert shown.endswith(report)


def test_a_hand_over_is_told_with_its_ticket_and_a_failed_one_as_failed() -> None:
    told = out(route="complaint", ticket="tkt-7", text="죄송합니다.")
    assert told == "담당자에게 전달했습니다. 접수 번호는 tkt-7입니다.\n\n죄송합니다."
    promise = "담당자가 곧 연락드립니다."
    assert out(route="complaint", text=promise) == words.NOT_HANDED_OVER[0]
    assert out(route="complaint", text=promise, korean=False) == words.NOT_HANDED_OVER[1]


@pytest.mark.parametrize("code", ["order_not_requested", "invalid_arguments", "something_else"])
def test_an_order_that_the_model_made_up_is_not_named(code: str) -> None:
    made_up = Refund(order_id="9999", state="needs_info", code=code)
    assert "9999" not in out(made_up)
    assert out(made_up, made_up, korean=False) == words.WHICH_ORDER[1]


@pytest.mark.parametrize(
    "link",
    [
        *(
            "https://evil.example/pay?x=1",
            "http://1.2.3.4",
            "HTTPS://EVIL.EXAMPLE",
            "ftp://evil.example",
            "www.evil.example",
        ),
        *("mailto:a@evil.example", "evil.example/login", "javascript://x", "pay.evil-shop.com/환불"),
    ],
)
def test_sec20_no_link_goes_out(link: str) -> None:
    for text in (f"여기서 확인하세요: {link}", f"[여기]({link})", f"<{link}>", f"{link} 입니다"):
        told = out(route="shipping", text=text)
        assert LINK_REMOVED in told
        assert "evil" not in told.lower()
        assert "1.2.3.4" not in told


@pytest.mark.parametrize(
    "text", ["배송 중입니다.내일 도착합니다.", "It shipped.It arrives 2026/12/01.", "CJ/한진 1.5kg", "3/4"]
)
def test_what_is_no_link_stays(text: str) -> None:
    assert out(route="shipping", text=text) == text


def test_sec20_nothing_that_looks_like_a_key_goes_out() -> None:
    assert "sk-" not in out(route="shipping", text="the key is sk-proj-0123456789abcdefghijABCDEF")


states = st.builds(
    Refund,
    order_id=st.text(max_size=8),
    state=st.sampled_from(get_args(RefundState)),
    code=st.one_of(st.sampled_from(list(words.WHY)), st.text(max_size=8)),
    amount_minor=st.none() | st.integers(0, 10**12),
    currency=st.sampled_from([None, "KRW", "USD", "EUR", "{order}"]),
)


@given(st.lists(states, max_size=4), st.booleans(), st.text(max_size=40))
def test_the_models_words_go_out_only_beside_payments_that_were_made(
    refunds: list[Refund], korean: bool, text: str
) -> None:
    mark = "MODEL-WORDS"
    told = out(*refunds, text=f"{mark} {text}", korean=korean)
    assert (mark in told) == all(refund.state == "paid" for refund in refunds)
