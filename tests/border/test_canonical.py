from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.border.canonical import MAX_DEPTH, canonical, dumps, fingerprint, loads
from siafu.errors import NotJson, TooLarge

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_what_goes_out_comes_back(value: Any) -> None:
    for written in (dumps(value), canonical(value)):
        assert loads(written, max_bytes=10**6) == value
    assert len(dumps(value).decode().splitlines()) == 1


@given(st.dictionaries(TEXT, JSON, max_size=6), st.randoms())
def test_the_order_of_keys_does_not_change_the_fingerprint(value: dict[str, Any], rng: Any) -> None:
    keys = list(value)
    rng.shuffle(keys)
    assert fingerprint({key: value[key] for key in keys}) == fingerprint(value)


def test_different_values_have_different_fingerprints() -> None:
    values: list[Any] = [None, 0, False, "", [], {}, "0", [0], {"a": 1}, {"a": "1"}, 1.0, 1]
    assert len({fingerprint(value) for value in values}) == len(values)


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": [None, -float("inf")]}, object(), {1, object()}])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(NotJson):
        canonical(value)


def test_canonical_takes_structs_and_decimals() -> None:
    class Point(msgspec.Struct):
        y: Decimal
        x: None

    assert canonical(Point(y=Decimal("1.50"), x=None)) == b'{"x":null,"y":"1.50"}'


def test_f48_a_lone_surrogate_is_written_as_a_replacement() -> None:
    assert json.loads(dumps({"t": "ok \ud83d 끝", "\ud800": [("a\x00",)]})) == {
        "t": "ok \ufffd 끝",
        "\ufffd": [["a\ufffd"]],
    }
    assert canonical("\ud83d") == '"\ufffd"'.encode()


def test_line_separators_do_not_split_a_line() -> None:
    assert dumps("a\u2028b\u2029c\x85d") == b'"a\\u2028b\\u2029c\\u0085d"'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"\xef\xbb\xbf[1]", [1]),
        ('{"a": "\\ud83d"}', {"a": "\ufffd"}),
        ('{"a": "\\u0000"}', {"a": "\ufffd"}),
        (b'"\xff"', "\ufffd"),
        ('"\\ud83d\\ude00"', "😀"),
        ("[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH, None),
    ],
)
def test_border_cases_are_read(text: bytes | str, value: Any) -> None:
    read = loads(text, max_bytes=1000)
    assert value is None or read == value


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{",
            "[1] x",
            "NaN",
            "Infinity",
            "[-Infinity]",
            "1e999",
            '{"a":1,"a":2}',
            "'a'",
            "[1,]",
            '{"a":1} {"b":2}',
        ),
        *('{"a\\u0000":1,"a\\ufffd":2}', '{"a":{"b":1,"b":1}}', "1" * 5000),
    ],
)
def test_what_is_no_strict_json_is_refused_by_name(text: str) -> None:
    with pytest.raises(NotJson, match="line 7"):
        loads(text, max_bytes=10_000, what="line 7")


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 100_000])
@pytest.mark.parametrize(("opens", "closes"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_refused(depth: int, opens: str, closes: str) -> None:
    with pytest.raises(TooLarge, match="nested"):
        loads(opens * depth + "1" + closes * depth, max_bytes=10**6)


def test_size_is_limited_in_bytes() -> None:
    assert loads('"가"', max_bytes=5) == "가"
    with pytest.raises(TooLarge, match="5 bytes"):
        loads('"가"', max_bytes=4)


def test_a_repeated_key_among_many_is_found_quickly() -> None:
    text = "{" + ",".join(f'"{i}":0' for i in range(200_000)) + ',"199999":0}'
    with pytest.raises(NotJson, match="199999"):
        loads(text, max_bytes=10**7)
