"""Outcomes, by a table of what tools did."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from siafu.agents.arguments import RefusedCall
from siafu.agents.steps import FinalStep, ModelStep, Step, ToolStep
from siafu.apps.support.outcome import out_of_reach, outcome, refunded, refunds
from siafu.apps.support.requests import Refund
from siafu.apps.support.routes import ROUTES
from siafu.gateway.chat import ToolCall
from siafu.gateway.scripted import say
from siafu.tools.toolset import ToolResult

CALL = ToolCall("c", "t", "{}")
FOUND = {"order_id": "1001", "items": []}


PAID = {"status": "refunded", "amount_minor": 30_000, "currency": "KRW", "amount_text": "1원"}


def ran(code: str | None = None, structured: Any = FOUND) -> ToolStep:
    """A call that gave a result, or failed with `code`."""
    result = ToolResult(text="", structured=structured, is_error=code is not None, code=code or "")
    return ToolStep(call=CALL, arguments={}, result=result, seconds=0.0)


def refund(code: str | None = None, order: Any = "1001", structured: Any = PAID) -> ToolStep:
    """A refund that was made, or failed with `code`."""
    step = ran(code, structured)
    return msgspec.structs.replace(step, call=ToolCall("c", "process_refund", "{}"), arguments={"order_id": order})


def later(code: str) -> ToolStep:
    """A refund that could not be made now."""
    step = refund(code)
    return msgspec.structs.replace(step, result=msgspec.structs.replace(step.result, later=True))


def refused(reason: str) -> RefusedCall:
    return RefusedCall(call=CALL, reason=reason, text="")


@pytest.mark.parametrize(
    ("steps", "route", "expected"),
    [
        ([ran()], "order_status", "answered"),
        ([ran(structured=None)], "order_status", "answered"),  # a tool that answers in words only
        ([ran("order_not_found"), ran()], "order_status", "answered"),
        ([ran(), ran("tool_unavailable")], "product_qa", "answered"),
        ([ran(structured={"products": []})], "product_qa", "needs_info"),
        ([ran(structured=[])], "product_qa", "needs_info"),
        ([ran(structured={"products": []}), ran()], "product_qa", "answered"),
        ([ran("order_not_found")], "refund", "needs_info"),
        ([ran("sku_not_found")], "product_qa", "needs_info"),
        ([ran("invalid_arguments")], "complaint", "needs_info"),
        ([refused("tool_arguments_invalid")], "shipping", "needs_info"),
        ([ran("tool_timeout"), ran("order_not_found")], "shipping", "needs_info"),
        ([ran("tool_unavailable")], "order_status", "unknown"),
        ([ran("identity_invalid")], "refund", "unknown"),
        ([ran("")], "shipping", "unknown"),  # it failed and gave no code
        ([refused("tool_denied")], "refund", "unknown"),
        ([], "order_status", "needs_info"),
        ([], "product_qa", "needs_info"),
        ([], "shipping", "answered"),
        ([], "refund", "needs_info"),
        ([], "complaint", "answered"),
        ([ran(), refund()], "refund", "answered"),
        ([ran(), refund("pending_approval")], "refund", "pending_approval"),
        ([ran(), refund("unknown_outcome")], "refund", "unknown"),
        ([ran(), refund("in_progress")], "refund", "unknown"),
        ([ran(), refund("tool_timeout")], "refund", "unknown"),
        ([ran(), refund("declined")], "refund", "refused"),
        ([ran(), refund("payments_unavailable")], "refund", "refused"),  # nothing says that it may be made later
        ([ran(), later("payments_unavailable")], "refund", "unknown"),
        ([later("daily_limit"), later("pending_approval")], "refund", "pending_approval"),
        ([later("tool_disabled"), refund("declined")], "refund", "refused"),
        ([later("tool_disabled"), refund()], "refund", "answered"),
        ([later("tool_disabled"), refund(order="1002")], "refund", "unknown"),
        ([ran(), refund("tool_denied")], "refund", "refused"),
        ([ran(), refund("order_not_requested")], "refund", "needs_info"),
        ([ran(), refund("amount_not_requested")], "refund", "needs_info"),
        ([ran(), refund("order_not_found")], "refund", "needs_info"),
        ([ran(), refund("stale_refund_total"), ran(), refund()], "refund", "answered"),
        ([refund(order="1001"), refund("pending_approval", order="1002")], "refund", "pending_approval"),
        ([refund(order="1001"), refund("unknown_outcome", order="1002")], "refund", "unknown"),
        ([refund(order="1001"), refund("declined", order="1002")], "refund", "answered"),
    ],
)
def test_outcomes(steps: list[Step], route: str, expected: str) -> None:
    around: list[Step] = [ModelStep(answer=say("주문을 찾을 수 없습니다"))]
    end = FinalStep(text="I could not find anything", output=None, steps=2, tool_calls=len(steps))
    assert outcome(ROUTES[route], [*around, *steps, end]) == expected


REFUSED = (
    *("exceeds_refundable", "stale_refund_total", "declined", "not_refundable"),
    *(
        "tool_disabled",
        "daily_limit",
        "payments_unavailable",
        "not_in_scope",
        "identity_required",
        "a_new_code",
        "approval_denied",
    ),
)
STATES = {
    "pending_approval": ("pending_approval",),
    "unknown": (
        "idempotency_key_reused",
        "unknown_outcome",
        "outcome_unknown",
        "in_progress",
        "tool_timeout",
        "tool_unavailable",
        "-32603",
    ),
    "refused": REFUSED,
    "needs_info": ("order_not_found", "order_not_requested", "amount_not_requested", "invalid_arguments"),
}


@pytest.mark.parametrize(("state", "code"), [(state, code) for state, codes in STATES.items() for code in codes])
def test_the_state_of_a_refund_is_told_by_the_code(state: Any, code: str) -> None:
    # Whatever else the tool says beside the code.
    assert refunds([refund(code, structured=PAID)]) == (Refund(order_id="1001", state=state, code=code),)


@pytest.mark.parametrize(
    ("structured", "expected"),
    [
        ({"currency": "KRW", "refunded_minor": 5, "refund_pending_minor": 0}, {("KRW", 5)}),
        ({"currency": "KRW", "refunded_minor": 5, "refund_pending_minor": 2}, {("KRW", 5), ("KRW", 2), ("KRW", 3)}),
        ({"currency": "USD", "refunded_minor": 5}, {("USD", 5)}),
        ({"currency": "KRW", "refunded_minor": 0, "refund_pending_minor": 0}, set()),
        ({"currency": "KRW", "refunded_minor": "5"}, set()),
        ({"refunded_minor": 5}, set()),
        ([5], set()),
    ],
)
def test_what_tools_have_shown_as_refunded(structured: Any, expected: set[tuple[str, int]]) -> None:
    assert refunded([ran(structured=structured), refused("tool_denied")]) == expected
    assert refunded([ran("order_not_found", structured)]) == set()


def test_a_refund_that_was_made() -> None:
    paid = Refund(order_id="1001", state="paid", amount_minor=30_000, currency="KRW")
    assert refunds([ran(), refund(), refused("tool_denied")]) == (paid,)
    assert refunds([refund(structured=None)]) == (Refund(order_id="1001", state="paid"),)
    assert refunds([refund(structured={"amount_minor": "all", "currency": 7})]) == (
        Refund(order_id="1001", state="paid"),
    )
    (odd,) = refunds([refund(structured={"status": "queued"})])  # no error, and not made either
    assert odd.state == "unknown"
    assert refunds([refund("")]) == (Refund(order_id="1001", state="unknown", code="no_code"),)


@pytest.mark.parametrize(
    ("codes", "state"),
    [
        (("declined", None), "paid"),
        ((None, "exceeds_refundable"), "paid"),
        (("unknown_outcome", "idempotency_key_reused"), "unknown"),
        (("pending_approval", "exceeds_refundable"), "pending_approval"),
        (("pending_approval", "idempotency_key_reused"), "pending_approval"),
        ((None, "idempotency_key_reused"), "paid"),
        (("amount_not_requested", "idempotency_key_reused"), "unknown"),  # of an earlier life of this request
        (("amount_not_requested", "declined"), "refused"),
        (("in_progress", "declined"), "refused"),
        (("declined", "tool_timeout"), "unknown"),
        (("unknown_outcome", "daily_limit"), "unknown"),
        (("unknown_outcome", None), "paid"),
    ],
)
def test_of_several_tries_on_one_order_the_one_counts_that_says_most_about_the_money(
    codes: tuple[str | None, ...], state: str
) -> None:
    found = refunds([*(refund(code) for code in codes), refund("pending_approval", order="1002")])
    assert [(one.order_id, one.state) for one in found] == [("1001", state), ("1002", "pending_approval")]


def test_a_refund_that_may_be_made_later_is_told_with_what_it_waits_for() -> None:
    (found,) = refunds([later("daily_limit")])
    assert found == Refund(order_id="1001", state="not_yet", code="daily_limit")
    assert refunds([later("shop_unavailable")])[0].state == "unknown"  # it may have been made


def test_what_could_not_be_looked_up_is_told_from_what_was_not_found() -> None:
    away = msgspec.structs.replace(ran("shop_unavailable").result, later=True)
    assert out_of_reach([msgspec.structs.replace(ran(), result=away)]) == "shop_unavailable"
    assert out_of_reach([ran(), ran("tool_unavailable")]) == "tool_unavailable"
    assert out_of_reach([ran(), ran("order_not_found"), refused("tool_unavailable")]) == ""
