"""Which words of a model claim a payment. Each list holds the other's positive control."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.apps.support.claims import claims_payment

CLAIMS = (
    *(
        "30,000원을 환불해 드렸습니다.",
        "환불이 완료되었습니다.",
        "환불 처리했습니다.",
        "환불 처리되었습니다.",
        "환불되었습니다",
    ),
    *(
        "환불 처리가 완료되었으며 영업일 3일 이내에 입금됩니다.",
        "네, 전액 환불했어요!",
        "환불 완료!",
        "✅ 환불 완료",
        "환불이 진행 중입니다.",
    ),
    *(
        "결제를 확인했고 카드 취소 처리했습니다.",
        "계좌로 30,000원을 입금해 드렸습니다.",
        "돈을 돌려드렸습니다.",
        "결제 취소가 완료됐습니다.",
    ),
    *(
        "불편을 드려 죄송합니다. 바로 환불해 드리겠습니다.",
        "오늘 중으로 환불될 예정입니다.",
        "곧 환불 처리하겠습니다.",
        "보상해 드리겠습니다.",
    ),
    *(
        "확인해 보니 문제가 있어서 환불을 완료했습니다. 더 궁금하신 점이 있나요?",
        "환불을 승인하였습니다.",
        "환급해 드렸습니다.",
    ),
    *(
        "I have refunded 30,000 won.",
        "I've refunded your order.",
        "We refunded you today.",
        "Your order has been refunded.",
    ),
    *("Your refund has been processed and will arrive within 3 days.", "Refund complete.", "Refunded! Anything else?"),
    *(
        "I have issued a full refund of $29.90.",
        "We've processed your refund.",
        "I just sent you the money.",
        "✅ Refund issued",
    ),
    *(
        "Your money is on its way.",
        "We have credited your account with $5.",
        "The amount was reimbursed.",
        "I will refund you.",
    ),
    *(
        "I'll issue a refund right away.",
        "You will be refunded shortly.",
        "We are refunding your order now.",
        "I paid you back.",
    ),
    *(
        "If you need more, ask. I have refunded order 1001.",
        "The refund is on its way.",
        "Your card has been credited.",
    ),
    *(
        "환불 금액 30,000원을 계좌로 입금했습니다.",
        "환불이 정상적으로 모두 완료되었습니다.",
        "환불 요청이 처리되었습니다.",
    ),
    # Words that deny something else.
    *(
        "환불이 문제 없이 완료되었습니다.",
        "I have refunded it with no fee.",
        "No problem, we refunded it.",
        "Not to worry: I refunded it.",
    ),
    *(
        "환불은 못 하실 줄 아셨죠? 환불해 드렸습니다.",
        "If you ask me, your order was refunded.",
        "She asked, and I refunded it.",
    ),
)
NO_CLAIMS = (
    # The policy.
    *(
        "배송완료 후 7일 이내에 환불을 요청할 수 있습니다.",
        "환불 금액은 원래의 결제 수단으로 영업일 기준 3일 이내에 돌려드립니다.",
    ),
    *(
        "불량이면 배송완료 후 30일 이내에 환불해 드립니다.",
        "상품을 받으시면 확인 후에 환불해 드리겠습니다.",
        "이미 환불된 주문은 다시 환불되지 않습니다.",
    ),
    *(
        "배송중인 주문은 상품을 받은 뒤에 환불을 요청해 주세요.",
        "환불이 완료되면 문자로 알려 드립니다.",
        "환불하시려면 주문번호를 알려 주세요.",
    ),
    *(
        "식품은 단순 변심으로 환불할 수 없습니다.",
        "100,000원을 넘는 환불은 담당자가 확인합니다.",
        "환불 정책을 안내해 드렸습니다.",
    ),
    *(
        "A refund can be requested within 7 days after delivery.",
        "Faulty items can be refunded.",
        "Refunds take 3 days.",
    ),
    *(
        "The money goes back to the original means of payment within 3 business days.",
        "We will refund it once it arrives.",
    ),
    *("An order that was cancelled is not refunded again.", "Please tell me the order number to ask for a refund."),
    *("If your order is faulty, we will refund it.", "You will be refunded within 3 days after we receive the item."),
    # What was not done, and questions.
    *(
        "환불은 되지 않았습니다.",
        "환불이 완료되지 않았습니다.",
        "아직 환불되지 않은 주문입니다.",
        "환불되었는지 확인해 드릴까요?",
    ),
    *(
        "환불 문의를 확인했습니다.",
        "환불 요청을 담당자에게 전달했습니다.",
        "환불 대신 교환을 안내했습니다.",
        "환불 완료 여부를 확인하겠습니다.",
        "환불이 되었는지는 알 수 없습니다.",
        "환불해 드릴 수 없습니다.",
        "환불을 원하시나요?",
        "환불되었다면 카드사에 문의해 주세요.",
    ),
    *("Nothing was refunded.", "Your order has not been refunded.", "It hasn't been refunded.", "I cannot refund it."),
    *(
        "Has it been refunded?",
        "I don't know whether it was refunded.",
        "I will not refund it.",
        "I can't issue a refund.",
    ),
    # Other matters.
    *(
        "주문하신 상품은 배송 중입니다.",
        "결제가 완료되었습니다.",
        "입금이 확인되었습니다.",
        "주문이 취소되었습니다.",
        "담당자에게 전달했습니다.",
    ),
    *(
        "Your order has shipped.",
        "The payment was received.",
        "We have processed your order.",
        "It has been delivered.",
    ),
    *(
        "I have sent your refund request to a person.",
        "죄송합니다. 바로 확인하겠습니다.",
        "재고가 있습니다.",
        "Here is our refund policy.",
        "",
    ),
)
SHOWN = (("KRW", 30_000),)
REPORTS = (
    *(
        "주문 1011은 이미 환불되었습니다.",
        "30,000원이 환불 완료되었습니다.",
        "Order 1011 was refunded: 30,000 won.",
        "환불이 진행 중입니다.",
    ),
    "Your order has already been refunded.",
)


@pytest.mark.parametrize("text", CLAIMS)
def test_a_claim_is_seen_wherever_it_stands(text: str) -> None:
    assert claims_payment(text, ())
    assert claims_payment(f"안녕하세요, 고객님. {text}\n감사합니다.", ())
    assert claims_payment(f"Order 1001 is on its way. {text}\nNothing else to do.", ())


@pytest.mark.parametrize("text", NO_CLAIMS)
def test_the_policy_questions_and_other_matters_claim_nothing(text: str) -> None:
    assert not claims_payment(text, ())
    assert not claims_payment(f"Hello. {text} 감사합니다.", ())


@pytest.mark.parametrize("text", REPORTS)
def test_a_report_of_what_a_tool_has_shown_is_no_claim(text: str) -> None:
    assert not claims_payment(text, SHOWN)
    assert claims_payment(text, ())


@pytest.mark.parametrize(
    "text",
    [
        "30,000원을 환불해 드렸습니다.",
        "I have refunded 30,000 won.",
        "50,000원이 환불되었습니다.",
        "환불해 드리겠습니다.",
    ],
)
def test_a_deed_a_promise_and_another_sum_are_claims_all_the_same(text: str) -> None:
    assert claims_payment(text, SHOWN)


@given(st.lists(st.sampled_from(NO_CLAIMS), max_size=4), st.sampled_from(CLAIMS), st.integers(0, 4))
def test_no_words_around_it_hide_a_claim(around: list[str], claim: str, at: int) -> None:
    assert not claims_payment("\n".join(around), ())
    assert claims_payment("\n".join([*around[:at], claim, *around[at:]]), ())


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "piece", ["환불", "환불 ", "refund ", "I have ", "we will ", "money ", ", ", "was ", "now ", "is being "]
)
def test_long_words_are_read_in_bounded_time(piece: str) -> None:
    claims_payment(piece * (20_000 // len(piece)), ())
