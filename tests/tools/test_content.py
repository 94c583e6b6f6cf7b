"""What tool servers send, as text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.tools.bounds import MAX_RESULT_BYTES
from siafu.tools.content import mended, resource_text, result_of, text_of


@given(st.text(st.characters(exclude_categories=[])), st.booleans())
def test_mended_text_can_be_read_strictly(text: str, ascii_only: bool) -> None:
    data = json.dumps({"text": text}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    read = json.loads(mended(data))["text"]
    assert not any("\ud800" <= char <= "\udfff" for char in read)
    if not any("\ud800" <= char <= "\udfff" for char in text):
        assert read == text


@pytest.mark.parametrize(
    ("data", "result"),
    [
        (rb'"\ud83d"', rb'"\ufffd"'),
        (rb'"\uDE00\ud83d\ude00\ud83d"', rb'"\ufffd\ud83d\ude00\ufffd"'),
        (rb'"\\ud83d"', rb'"\\ud83d"'),
        (rb'"\\\ud83d"', rb'"\\\ufffd"'),
        (b'"\xff"', '"\ufffd"'.encode()),
        ('"한글 😀"'.encode(), '"한글 😀"'.encode()),
    ],
)
def test_what_is_mended(data: bytes, result: bytes) -> None:
    assert mended(data) == result


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "text", "text": "본문"}, "본문"),
        ({"type": "text"}, "[content of the type text, not shown]"),
        ({"type": "image"}, "[image, not shown]"),
        ({"type": "image", "data": "QUJDRA==", "mimeType": "image/png"}, "[image, image/png, 6 bytes, not shown]"),
        ({"type": "resource"}, "[content of the type resource, not shown]"),
        ({"type": "resource", "resource": {"uri": "a:b", "text": ""}}, "[resource, a:b]\n"),
        ({"type": "resource_link", "uri": "a:\x1b[31mb"}, "[link to a resource, a: [31mb]"),
        ({}, "[content of the type None, not shown]"),
        ("text", "[content of the type None, not shown]"),
        (None, "[content of the type None, not shown]"),
    ],
)
def test_blocks(block: Any, text: str) -> None:
    assert text_of([block]) == text


def test_notes_are_short() -> None:
    megabytes = "QUJD" * 1_000_000
    blocks = [{"type": "image", "data": megabytes, "mimeType": megabytes}, {"type": megabytes}]
    assert len(text_of(blocks)) < 600


@pytest.mark.parametrize(
    ("structured", "code"),
    [
        ({"code": "unknown_order"}, "unknown_order"),
        ({"error": {"code": 404}}, "404"),
        ({"error": "gone"}, ""),
        ({"code": ["a"]}, ""),
        ({"code": True}, ""),
        ([], ""),
        (None, ""),
    ],
)
def test_the_code_of_an_error(structured: Any, code: str) -> None:
    assert result_of("no", structured, is_error=True).code == code
    assert result_of("yes", structured, is_error=False).code == ""


@pytest.mark.parametrize(
    ("structured", "later"),
    [
        ({"code": "closed", "retryable": True}, True),
        ({"error": {"code": "closed", "retryable": True}}, True),
        ({"code": "closed", "retryable": "yes"}, False),
        ({"code": "closed", "error": {"code": "x", "retryable": True}}, False),
        ({"retryable": True}, False),  # without a code nobody knows what was done
        ({"code": "closed"}, False),
    ],
)
def test_an_error_may_say_that_it_is_one_for_now(structured: Any, later: bool) -> None:
    assert result_of("no", structured, is_error=True).later == later
    assert not result_of("yes", structured, is_error=False).later


def test_a_result_is_never_without_text() -> None:
    assert result_of("", {"a": "가"}, is_error=False).text == '{"a":"가"}'
    assert result_of(" ", {"code": "E1"}, is_error=True).text == "E1"
    assert result_of("", None, is_error=True).text == "the tool failed and did not say why"
    assert result_of("", None, is_error=False).text == ""


def test_results_are_bounded_and_clean() -> None:
    result = result_of("가" * 100_000 + "\ud83d", {"a": "x" * MAX_RESULT_BYTES}, is_error=False)
    assert len(result.text.encode()) < MAX_RESULT_BYTES + 100
    assert "cut here" in result.text
    assert result.structured is None
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    assert result_of("x", deep, is_error=False).structured is None
    assert result_of("x", {"a": float("inf"), "b": "c\x00"}, is_error=False).structured == {"a": None, "b": "c\ufffd"}


def test_a_resource_without_text() -> None:
    assert resource_text([{"uri": "a:b", "mimeType": "image/png", "blob": "QUJD"}]) == (
        "[resource, a:b, image/png, 3 bytes, not shown]"
    )
    assert resource_text([]) == ""
