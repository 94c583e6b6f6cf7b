"""The declared form of an answer."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

from siafu.agents.output import MAX_SCHEMA_CHARS, declared, read, repair_request
from siafu.errors import ConfigError, OutputInvalid, ReplyTruncated
from siafu.gateway.scripted import say


class Tone(enum.Enum):
    CALM = "calm"
    ANGRY = "angry"


class Part(msgspec.Struct):
    title: str
    tone: Tone = Tone.CALM


class Ticket(msgspec.Struct):
    """Where a request goes."""

    category: Literal["refund", "other"]
    priority: Annotated[int, msgspec.Meta(ge=1, le=3)] = 2
    hint: str | None = None
    parts: list[Part] = []


class Tree(msgspec.Struct):
    children: list[Tree] = []


class Loose(TypedDict, total=False):
    category: str


class Counts(msgspec.Struct):
    by_name: dict[str, int]


class Anything(msgspec.Struct):
    value: Any


SCHEMA = {"type": "object", "properties": {"category": {"enum": ["refund", "other"]}}, "required": ["category"]}


def test_a_type_becomes_a_closed_schema_without_references() -> None:
    assert declared(Ticket).response_format() == {
        "type": "json_schema",
        "json_schema": {
            "name": "answer",
            "strict": True,
            "schema": {
                "description": "Where a request goes.",
                "type": "object",
                "properties": {
                    "category": {"enum": ["other", "refund"], "type": "string"},
                    "priority": {"type": "integer", "minimum": 1, "maximum": 3},
                    "hint": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "parts": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "title": {"type": "string"},
                                "tone": {"enum": ["angry", "calm"], "type": "string"},
                            },
                            "required": ["title", "tone"],
                            "additionalProperties": False,
                        },
                    },
                },
                "required": ["category", "priority", "hint", "parts"],
                "additionalProperties": False,
            },
        },
    }


@pytest.mark.parametrize(("output", "strict"), [(Ticket, True), (Loose, True), (Counts, False), (Anything, False)])
def test_strict_is_asked_for_where_the_schema_is_closed(output: type[Any], strict: bool) -> None:
    assert declared(output).response_format()["json_schema"]["strict"] is strict


def test_a_schema_is_sent_as_it_is() -> None:
    sent = declared(SCHEMA).response_format()["json_schema"]
    assert sent["schema"] is SCHEMA
    assert sent["strict"] is False
    closed = declared({**SCHEMA, "additionalProperties": False}).response_format()["json_schema"]
    assert closed["strict"] is True


@pytest.mark.parametrize(
    "output", [Tree, int, Tone, list[str], object, {"type": "array"}, {}, {"type": "object", "required": 1}]
)
def test_what_is_no_finite_object_is_refused_at_once(output: Any) -> None:
    with pytest.raises(ConfigError):
        declared(output)


FENCED = '```json\n{"category":"refund","reply":"run:\\n```bash\\nls\\n```\\nok"}\n```'


@pytest.mark.parametrize("text", [FENCED, FENCED.removeprefix("```json\n").removesuffix("\n```")])
def test_f19_fences_are_taken_off_and_those_inside_values_stay(text: str) -> None:
    assert read(say(text), declared(SCHEMA))["reply"] == "run:\n```bash\nls\n```\nok"


def test_a_good_answer_becomes_the_declared_type() -> None:
    value = read(say('{"category":"refund","parts":[{"title":"환불","tone":"angry"}],"more":1}'), declared(Ticket))
    assert value == Ticket(category="refund", parts=[Part(title="환불", tone=Tone.ANGRY)])
    assert read(say('{"category":"x"}'), declared(Loose)) == {"category": "x"}


BAD = [
    '{"category":"billing"}',  # F20
    '{"category":null}',
    "{}",
    "[]",
    "refund",
    '{"category":"refund"',
    'Sure! {"category":"refund"}',
    '{"category":"refund","category":"other"}',
    '{"category":"refund"} {"category":"other"}',
]


@pytest.mark.parametrize("output", [declared(Ticket), declared(SCHEMA)])
@pytest.mark.parametrize("text", BAD)
def test_a_bad_answer_is_told_in_short(text: str, output: Any) -> None:
    with pytest.raises(OutputInvalid) as caught:
        read(say(text), output)
    assert 0 < len(caught.value.message) < 300


@pytest.mark.parametrize("text", ['{"category":"refund","priority":7}', '{"category":"refund","priority":"2"}'])
def test_bounds_and_types_are_not_bent(text: str) -> None:
    with pytest.raises(OutputInvalid, match="priority"):
        read(say(text), declared(Ticket))


def test_a_huge_bad_value_is_not_echoed() -> None:
    with pytest.raises(OutputInvalid) as caught:
        read(say('{"category":"' + "x" * 100_000 + '"}'), declared(SCHEMA))
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("output", [None, declared(Ticket)])
@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_a_cut_answer_is_no_answer_though_it_parses(finish: str, output: Any) -> None:
    with pytest.raises(ReplyTruncated, match=finish):
        read(say('{"category":"refund"}', finish=finish), output)


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_an_empty_answer_is_no_answer(content: str | None) -> None:
    with pytest.raises(OutputInvalid, match="empty"):
        read(say(content), None)
    with pytest.raises(OutputInvalid, match="empty"):
        read(say(content), declared(Ticket))


def test_text_has_no_value() -> None:
    assert read(say("hello"), None) is None


def test_the_repair_request_names_the_problem_and_a_short_schema() -> None:
    asked = repair_request("the answer does not fit", declared(SCHEMA))
    assert "the answer does not fit" in asked
    assert '"enum":["refund","other"]' in asked
    long = {**SCHEMA, "description": "d" * MAX_SCHEMA_CHARS}
    assert len(repair_request("x", declared(long))) < 200
    assert "schema" not in repair_request("x", None).lower()
