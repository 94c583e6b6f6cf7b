from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.apps.support.shop.wire import MAX_MESSAGE, Unusable, checked

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=8).filter(lambda name: "\x00" not in name), values, max_size=4))
def test_clean_messages_pass_unchanged_on_one_line(message: dict[str, Any]) -> None:
    text = checked(json.dumps(message).encode())
    assert "\n" not in text
    assert json.dumps(json.loads(text)) == json.dumps(message).replace("\\u0000", "\\ufffd")


@given(st.binary(max_size=200))
def test_bytes_of_any_kind_pass_or_are_answered(raw: bytes) -> None:
    try:
        assert isinstance(json.loads(checked(raw)), dict)
    except Unusable as unusable:
        assert unusable.reply["error"]["code"] in (-32700, -32600)


@pytest.mark.parametrize(
    ("raw", "answers"),
    [
        (b'{"id": 7, "id": 8}', 8),
        (b'{"id": "a", "x": NaN}', "a"),
        (b'{"id": true, "x": NaN}', None),
        (b'{"id": 1.5, "x": NaN}', None),
        (b'{"id": [], "x": Infinity}', None),
        (b'{"id": 1, "x": 1e999}', 1),
        (b'{"id": 1, "x": ' + b"9" * 5000 + b"}", None),
        (b'{"id": 1, "x": ' + b"[" * 65 + b"]" * 65 + b"}", 1),
        (b'{"id": 1, "x": ' + b"[" * 100_000, None),
        (b'{"id": 1, "x": "' + b"x" * MAX_MESSAGE + b'"}', None),
        (b'[{"id": 1}]', None),
    ],
)
def test_refusals_name_the_request_when_it_can_be_read(raw: bytes, answers: object) -> None:
    with pytest.raises(Unusable) as caught:
        checked(raw)
    assert caught.value.reply["id"] == answers
    assert len(json.dumps(caught.value.reply)) < 1000
    assert checked(b'{"id": 1}') == '{"id": 1}'
