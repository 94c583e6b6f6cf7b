"""Names of items that hold from one session to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from siafu.errors import InputError
from siafu.swarm.keys import MAX_KEY, Recent, copy_name, name_item


class Thing(msgspec.Struct):
    id: int
    text: str = ""


@pytest.mark.parametrize(
    ("item", "durable", "key"),
    [
        ("x", False, "4"),
        ({"id": "a"}, False, "4"),
        ({"id": "주문-1"}, True, "주문-1"),
        ({"id": 7}, True, "7"),
        ({"id": None, "custom_id": "r7"}, True, "r7"),
        (Thing(3), True, "3"),
        ({"id": "a\ud800"}, False, "4"),
    ],
)
def test_the_default_names(item: Any, durable: bool, key: str) -> None:
    assert name_item(item, 4, None, durable=durable).key == key


@pytest.mark.parametrize("item", ["x", {"text": "x"}, {"id": 1.5}, {"id": ""}, {"id": True}, ["a"]])
def test_an_item_without_a_name_is_known_by_what_it_is(item: Any) -> None:
    name = name_item(item, 4, None, durable=True)
    assert name == name_item(item, 9, None, durable=True)
    assert (name.key, name.by_content) == (name.input_print[:16], True)
    assert copy_name(name.input_print, 3).key == f"{name.key}-3"


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (lambda item: None, "not NoneType"),
        (lambda item: 1.5, "not float"),
        (lambda item: "", "has 0"),
        (lambda item: "x" * (MAX_KEY + 1), "has 513"),
    ],
)
def test_a_bad_key_says_so(key: Callable[[Any], Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        name_item("x", 0, key, durable=False)


def test_what_json_cannot_hold_cannot_be_journaled() -> None:
    with pytest.raises(InputError, match="use dicts"):
        name_item(object(), 0, None, durable=True)


def test_without_a_store_a_bounded_number_of_keys_is_remembered() -> None:
    recent = Recent(limit=2)
    assert [recent.repeats(k) for k in "aabcab"] == [False, True, False, False, False, False]
