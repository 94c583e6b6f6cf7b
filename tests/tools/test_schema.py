"""Arguments: what is parsed, what fits, and what is said about the rest."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.errors import ConfigError, ToolArgumentsInvalid
from siafu.tools.schema import (
    MAX_ARGUMENT_BYTES,
    MAX_PROBLEMS,
    check_schema,
    parse_arguments,
    require,
    validate,
)

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string", "pattern": "^[0-9]{4,8}$"},
        "amount": {"type": "integer", "minimum": 1, "maximum": 1_000_000},
        "price": {"type": "number"},
        "kind": {"enum": ["refund", "교환"]},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 3},
    },
    "required": ["order_id"],
    "additionalProperties": False,
    "$defs": {"item": {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]}},
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("text", ["", "  ", "\n", "{}"])
def test_f11_empty_arguments_are_none(text: str) -> None:
    assert parse_arguments(text) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"order_id":"1001","amount":', "not valid JSON"),
        ('{"a":1,"a":2}', "stands twice"),
        ('{"a":NaN}', "NaN"),
        ('{"a":-Infinity}', "Infinity"),
        ('{"a":1e999}', "too large"),
        ("[1]", "must be a JSON object"),
        ("null", "must be a JSON object"),
        ("7", "must be a JSON object"),
        (json.dumps(json.dumps({"order_id": "1001"})), "send the JSON object itself"),
        ('{"a":1} {"b":2}', "not valid JSON"),
        ("{'a': 1}", "not valid JSON"),
        ("[" * 100_000, "nested deeper"),
        ('{"a":"' + "x" * MAX_ARGUMENT_BYTES + '"}', "the limit is"),
    ],
)
def test_f10_broken_arguments_are_refused(text: str, says: str) -> None:
    with pytest.raises(ToolArgumentsInvalid, match=says) as caught:
        parse_arguments(text, tool="process_refund")
    assert caught.value.tool == "process_refund"
    assert len(caught.value.message) < 500


def test_the_preview_holds_no_key() -> None:
    with pytest.raises(ToolArgumentsInvalid) as caught:
        parse_arguments('{"auth": "Bearer abcdefghijklmnopqrstuvwxyz", ')
    assert "abcdefghijkl" not in caught.value.message


def test_f48_a_lone_surrogate_in_arguments_becomes_a_replacement_character() -> None:
    assert parse_arguments('{"q": "주문 \\ud83d 끝"}') == {"q": "주문 \ufffd 끝"}


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_what_json_writes_is_read_back(value: dict[str, Any]) -> None:
    cleaned = json.loads(json.dumps(value).replace("\\u0000", "\\ufffd"))
    if len(cleaned) == len(value):
        assert parse_arguments(json.dumps(value)) == cleaned


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        assert isinstance(parse_arguments(text), dict)
    except ToolArgumentsInvalid as error:
        assert len(error.message) < 600


@pytest.mark.parametrize(
    "value",
    [
        {"order_id": "1001"},
        {"order_id": "1001", "amount": 5, "price": 1.5, "kind": "교환", "items": [{"sku": "A"}]},
        {"order_id": "1001", "price": 5},
    ],
)
def test_fitting_arguments(value: Any) -> None:
    assert validate(ORDER, value) == []


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({}, "order_id is missing"),
        ({"order_id": "1001", "amount": "10"}, "amount must be integer, not string '10'"),
        ({"order_id": "1001", "amount": True}, "amount must be integer, not boolean True"),
        ({"order_id": "1001", "amount": 1.0}, "amount must be integer, not number 1.0"),
        ({"order_id": "1001", "price": math.nan}, "price must be number, not number nan"),
        ({"order_id": "1001", "price": math.inf}, "price must be number, not number inf"),
        ({"order_id": "1001", "price": False}, "price must be number, not boolean False"),
        ({"order_id": "1001", "amount": -5}, "amount: -5 is less than the minimum of 1"),
        ({"order_id": 1001}, "order_id must be string, not integer 1001"),
        ({"order_id": "10-01"}, "order_id: must match"),
        ({"order_id": None}, "order_id must be string, not null None"),
        ({"order_id": "1001", "kind": "refunds"}, "kind must be one of ['refund', '교환'], not 'refunds'"),
        ({"order_id": "1001", "note": 1}, "unknown note; known: amount, items, kind, order_id, price"),
        ({"order_id": "1001", "items": [{"sku": "A"}, {}]}, "items[1].sku is missing"),
        ({"order_id": "1001", "items": [{"sku": "A"}] * 4}, "items: "),
        ([], "the whole must be object, not array []"),
    ],
)
def test_what_is_said_of_the_others(value: Any, says: str) -> None:
    problems = validate(ORDER, value)
    assert len(problems) == 1
    assert problems[0].startswith(says)
    assert len(problems[0]) < 400


def test_a_huge_float_is_no_integer() -> None:
    assert validate({"type": "integer"}, 1e99) == ["the whole must be integer, not number 1e+99"]


def test_problems_are_few_and_short() -> None:
    value = {f"key{i}": "x" * 10_000 for i in range(1000)}
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    problems = validate(schema, value)
    assert len(problems) == MAX_PROBLEMS
    assert all(len(problem) < 300 for problem in problems)


def test_every_missing_name_is_named() -> None:
    schema = {"type": "object", "required": ["a", "b"]}
    assert validate(schema, {}) == ["a is missing", "b is missing"]


def test_require_tells_which_tool() -> None:
    require(ORDER, {"order_id": "1001"}, "refund")
    with pytest.raises(ToolArgumentsInvalid, match="do not fit refund: order_id is missing"):
        require(ORDER, {}, "refund")


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"$ref": "https://example.com/schema.json"}, "which it does not hold"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "which it does not hold"),
        ({"$ref": "#/$defs/none"}, "which it does not hold"),
        ({"$ref": "#anchor"}, "which it does not hold"),
        ({"properties": {"a": {"$id": "https://example.com/x"}}}, r"an \$id of its own"),
        ({"$schema": "https://example.com/dialect"}, "dialect that is not known"),
        ({"type": "objekt"}, "no valid JSON Schema"),
        ({"minimum": "1"}, "no valid JSON Schema"),
        (nested(33), "nested deeper than 32"),
        (nested(200), "nested deeper"),
        ({"description": "x" * 200_000}, "the limit is"),
        ({"patternProperties": {"^(a+)+$": {}}}, "exponential"),
    ],
)
def test_schemas_that_are_refused(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "string"}]},
        {"$schema": "https://json-schema.org/draft/2019-09/schema"},
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"$defs": {"a/b": {"$anchor": "here"}}, "anyOf": [{"$ref": "#here"}, {"$ref": "#/$defs/a~1b"}, {"$ref": "#"}]},
        {"properties": {"$ref": {"type": "string"}}},
        {"allOf": [{"$ref": "#/allOf/1"}, {"type": "object"}]},
        nested(31),
    ],
)
def test_schemas_that_are_taken(schema: dict[str, Any]) -> None:
    check_schema(schema)


def test_a_schema_that_runs_in_circles_is_named() -> None:
    with pytest.raises(ConfigError, match="without end"):
        validate({"$ref": "#"}, 1)


def test_a_tree_may_refer_to_itself() -> None:
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}}
    assert validate(tree, {"kids": [{"kids": []}]}) == []
    assert validate(tree, {"kids": [{"kids": 1}]}) == ["kids[0].kids must be array, not integer 1"]


@pytest.mark.timeout(10)
def test_sec35_a_pattern_that_could_take_long_is_left_to_the_server() -> None:
    slow = {"type": "string", "pattern": r"^[a-z ]*x\s*\s*\s*y$"}
    assert validate(slow, "x" + " " * 200_000) == []
    assert validate(slow, "x z") != []
    assert validate({"type": "string", "pattern": "^[^<>]*$"}, "x" * 200_000 + "<") != []
    assert validate({"type": "string", "pattern": "a*b"}, "a" * 200_000) == []
    assert validate({"type": "string", "pattern": "x{3}|^y"}, "z" * 200_000) != []


def test_an_exponential_pattern_is_left_to_the_server() -> None:
    assert validate({"type": "string", "pattern": "^(a+)+$"}, "a" * 60 + "!") == []
    assert validate({"type": "string", "pattern": r"^\p{L}+$"}, "1") == []
    assert validate({"type": "string", "pattern": "^(a|b)c$"}, "x") != []


def test_an_array_of_types_and_alternatives_are_explained() -> None:
    assert validate({"type": ["string", "null"]}, 1) == ["the whole must be string or null, not integer 1"]
    assert validate({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1) == [
        "the whole fits none of the allowed forms: 1"
    ]
