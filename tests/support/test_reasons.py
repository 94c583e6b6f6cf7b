"""What a customer is told of each refusal: whatever the shop can say has words in both languages."""

from __future__ import annotations

import ast
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from siafu.apps.support import letter as words
from siafu.apps.support import shop
from siafu.apps.support.letter import letter
from siafu.apps.support.outcome import refunds
from siafu.apps.support.routes import ROUTES
from siafu.apps.support.shop.refusal import SHOP_ZONE, Reason, Why

from .test_outcome import refund

AT = datetime(2026, 11, 3, 0, 30, tzinfo=SHOP_ZONE)
FIGURES: dict[str, Any] = {
    "currency": "KRW",
    "captured_minor": 50_000,
    "refunded_minor": 30_000,
    "reserved_minor": 5_000,
    "refundable_minor": 15_000,
    "kept_minor": 4_000,
    "refunds": 1,
    "refunded_at": AT.isoformat(),
    "delivered_at": AT.isoformat(),
    "days": 7,
}
OF_OTHER_TOOLS = {"sku_not_found", "insufficient_stock", "reservation_not_found", "not_held", "empty_query"}


def told(code: str, details: Any = None, *, korean: bool = False) -> str:
    structured = {"code": code} if details is None else {"code": code, "details": details}
    return letter(ROUTES["refund"], refunds([refund(code, structured=structured)]), None, "", korean=korean)


def codes() -> set[str]:
    """Every code that stands in the shop's source."""
    found = set()
    for path in Path(shop.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                values = [word.value for word in node.keywords if word.arg == "code"] if name == "Refusal" else []
                values += node.args[:1] if name == "refusal" else []
                found |= {str(value.value) for value in values if isinstance(value, ast.Constant)}
    return found


@pytest.mark.parametrize("korean", [True, False])
def test_every_code_of_the_shop_says_more_than_that_nothing_was_refunded(korean: bool) -> None:
    found = codes() - OF_OTHER_TOOLS
    assert {"exceeds_refundable", "declined", "daily_limit", "order_not_requested", "payments_unavailable"} <= found
    bare = words.REFUSED[0 if korean else 1].format(order="1001")
    assert told("not_refundable", korean=korean) != bare == told("a_new_code", korean=korean)  # it can fail
    assert [code for code in found if told(code, korean=korean) == bare] == []


@pytest.mark.parametrize("korean", [True, False])
@pytest.mark.parametrize("reason", get_args(Reason))
def test_every_reason_has_its_own_words_in_both_languages(reason: Reason, korean: bool) -> None:
    found = told("not_refundable", {"reason": reason, **FIGURES}, korean=korean)
    assert any("가" <= letter <= "힣" for letter in found.replace("원", "")) == korean
    assert "{" not in found
    assert found != told("not_refundable", korean=korean)
    others = [told("not_refundable", {"reason": o, **FIGURES}, korean=korean) for o in get_args(Reason) if o != reason]
    assert found not in others


def test_the_tables_have_nothing_that_the_shop_cannot_say() -> None:
    assert words.BECAUSE.keys() | words.INSTEAD.keys() == set(get_args(Reason))
    assert not words.BECAUSE.keys() & words.INSTEAD.keys()


def say(reason: str, *, korean: bool = False, code: str = "exceeds_refundable", **figures: Any) -> str:
    return told(code, {"reason": reason, **FIGURES, **figures}, korean=korean)


def test_what_was_refunded_before_is_told_with_amount_and_date() -> None:
    assert say("already_refunded") == (
        "Order 1001: already refunded: 30,000원 on 2026-11-03. Nothing more was refunded now."
    )
    assert say("already_refunded", korean=True) == (
        "주문 1001: 이미 환불된 주문입니다: 30,000원 (2026-11-03). 이번에 더 환불된 금액은 없습니다."
    )
    assert "$300.00, the last of it on 2026-11-03" in say("already_refunded", refunds=3, currency="USD")
    assert say("already_refunded", refunded_at=None, refunds=None) == (
        "Order 1001: already refunded: 30,000원. Nothing more was refunded now."
    )
    assert say("partly_refunded") == (
        "Order 1001: nothing was refunded. 30,000원 of 50,000원 refunded already on 2026-11-03, 15,000원 left."
    )
    assert say("partly_refunded", korean=True) == (
        "주문 1001: 환불되지 않았습니다. "
        "50,000원 중 이미 환불된 금액은 30,000원 (2026-11-03), 남은 금액은 15,000원입니다."
    )
    assert say("return_window", code="not_refundable") == (
        "Order 1001: nothing was refunded. A change of mind can be refunded up to 7 days after delivery, which was on "
        "2026-11-03. If the goods are faulty or wrong, please tell us."
    )


@pytest.mark.parametrize(
    "details",
    [
        *("already_refunded", [], 7, {}, {"reason": "of another shop"}, {"reason": "already_refunded"}),
        *({"reason": "already_refunded", **FIGURES, bad: value} for bad, value in (("refunded_minor", "all"),)),
        {"reason": "already_refunded", **FIGURES, "currency": "{order}"},
        {"reason": "already_refunded", **FIGURES, "refunded_at": "yesterday, see evil.example/x"},
    ],
)
def test_details_that_are_not_understood_leave_the_code(details: Any) -> None:
    assert told("exceeds_refundable", details) == told("exceeds_refundable")


def test_what_the_shop_sends_is_what_is_read() -> None:
    why = Why(reason="already_refunded", currency="USD", refunded_minor=2_990, refunded_at=AT)
    sent = msgspec.json.decode(msgspec.json.encode(why.refusal("exceeds_refundable", "no")))
    (found,) = refunds([refund(sent["code"], structured=sent)])
    assert found.why == why
