from __future__ import annotations

import json
from typing import Any

import pytest

from siafu.bench.demo.seen import CachedTokens, Reader, Record, Tokens
from siafu.gateway.chat import Usage

TEXTS = {"r1": "마우스 재고 있나요?", "r2": "무선 마우스 재고 있나요?"}
TOOLS = [{"type": "function", "function": {"name": "search_products"}}]


def record(text: Any = TEXTS["r1"], *, tools: Any = TOOLS, more: Any = (), **changes: Any) -> Record:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": text}, *more]
    body = {"model": "m", "messages": messages} | ({} if tools is None else {"tools": tools})
    values: dict[str, Any] = {
        "n": 1,
        "arrived": 1.0,
        "ended": 2.0,
        "status": 200,
        "model": "m",
        "sha256": "q",
        "usage": Tokens(prompt_tokens=9, completion_tokens=2, prompt_tokens_details=CachedTokens(4)),
        "finish_reason": "stop",
        "body": json.dumps(body),
    }
    return Record(**{**values, **changes})


def test_an_answer_to_the_customer() -> None:
    seen = Reader(TEXTS).read(record())
    assert seen.final and seen.complete and not seen.wants_tools
    assert seen.request == "r1"
    assert seen.usage == Usage(input=9, output=2, cached=4)


@pytest.mark.parametrize(
    ("found", "final"),
    [
        (record(), True),
        (record(tools=None), False),  # it only sorts
        (record(tools=None, more=[{"role": "tool", "tool_call_id": "c", "content": "x"}]), True),
        (record(finish_reason="tool_calls"), False),
        (record(finish_reason="length"), True),
        (record(status=500, usage=None), False),
        (record(client_left=True), False),
        (record(ended=None), False),
    ],
)
def test_which_replies_are_final(found: Record, final: bool) -> None:
    assert Reader(TEXTS).read(found).final is final


@pytest.mark.parametrize(
    ("text", "request_id"),
    [
        ("무선 마우스 재고 있나요?", "r2"),
        ("마우스 재고 있나요?", "r1"),
        ("The customer writes: 무선 마우스 재고 있나요? Answer.", "r2"),  # the longest that occurs
        ([{"type": "text", "text": "마우스 재고 있나요?"}], "r1"),
        ("something else", None),
        (None, None),
    ],
)
def test_whose_request_a_call_is(text: Any, request_id: str | None) -> None:
    assert Reader(TEXTS).read(record(text)).request == request_id


@pytest.mark.parametrize("body", [None, "", "[1", '{"messages": 7}'])
def test_a_body_that_is_no_question(body: str | None) -> None:
    seen = Reader(TEXTS).read(record(body=body, status=400, usage=None))
    assert seen.request is None and not seen.final and seen.usage is None
