"""Answers as the journal keeps them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.border.canonical import dumps
from siafu.gateway.chat import ChatAnswer, ToolCall, Usage, packed, unpacked

TEXT = st.text()


@given(TEXT | st.none(), TEXT | st.none(), TEXT | st.none())
def test_an_answer_comes_back_as_it_was(content: str | None, reasoning: str | None, model: str | None) -> None:
    message = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    call = ToolCall("call_1", "찾기", "{}")
    answer = ChatAnswer(message=message, content=content, tool_calls=(call,), usage=Usage(input=3), model=model or "m")
    assert unpacked(packed(answer)) == answer


@pytest.mark.parametrize(
    ("content", "text"), [([{"type": "text", "text": "배송중"}], "배송중"), ([], ""), (None, None), ("", "")]
)
def test_a_text_that_is_not_its_messages_is_kept(content: Any, text: str | None) -> None:
    answer = ChatAnswer(message={"role": "assistant", "content": content}, content=text)
    assert unpacked(packed(answer)) == answer


def test_a_text_is_kept_once_and_read_where_it_was_kept_twice() -> None:
    answer = ChatAnswer(message={"role": "assistant", "content": "배송중"}, content="배송중")
    assert packed(answer).count("배송중".encode()) == 1
    before = dumps(answer)
    assert before.count("배송중".encode()) == 2
    assert unpacked(before) == answer == msgspec.json.decode(before, type=ChatAnswer)
