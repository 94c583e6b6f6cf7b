"""Outcomes, by a table of what tools did."""

from __future__ import annotations

from typing import Any

import pytest

from siafu.agents.arguments import RefusedCall
from siafu.agents.steps import FinalStep, ModelStep, Step, ToolStep
from siafu.apps.support.outcome import outcome
from siafu.apps.support.routes import ROUTES
from siafu.gateway.chat import ToolCall
from siafu.gateway.scripted import say
from siafu.tools.toolset import ToolResult

CALL = ToolCall("c", "t", "{}")
FOUND = {"order_id": "1001", "items": []}


def ran(code: str | None = None, structured: Any = FOUND) -> ToolStep:
    """A call that gave a result, or failed with `code`."""
    result = ToolResult(text="", structured=structured, is_error=code is not None, code=code or "")
    return ToolStep(call=CALL, arguments={}, result=result, seconds=0.0)


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
        ([], "refund", "answered"),
        ([], "complaint", "answered"),
    ],
)
def test_outcomes(steps: list[Step], route: str, expected: str) -> None:
    around: list[Step] = [ModelStep(answer=say("주문을 찾을 수 없습니다"))]
    end = FinalStep(text="I could not find anything", output=None, steps=2, tool_calls=len(steps))
    assert outcome(ROUTES[route], [*around, *steps, end]) == expected
