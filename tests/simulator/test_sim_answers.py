"""Answers by rules: tools and schemas that siafu has never heard of, Korean and English."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siafu.bench.simulator.answers import answer_to
from siafu.bench.simulator.draws import Draws
from siafu.bench.simulator.request import Refused, read
from siafu.bench.simulator.schemas import Source, fill
from siafu.bench.simulator.strings import matching
from sim import Sim

from .chat import Json, body, called, post, say, tool

HOTEL = [
    tool(
        "find_rooms",
        "Search free rooms",
        ["check_in", "nights"],
        check_in={"type": "string", "format": "date"},
        nights={"type": "integer", "minimum": 1, "maximum": 30},
        kind={"type": "string", "enum": ["single", "double", "suite"]},
    ),
    tool("booking_status", "State of a reservation", booking_id={"type": "string", "pattern": r"^BK-\d{5}$"}),
    tool(
        "order_taxi",
        "Call a taxi to the airport or station",
        ["destination"],
        destination={"type": "string"},
        people={"type": "integer"},
    ),
    tool(
        "housekeeping",
        "Towels or cleaning for a room",
        room_number={"type": "string", "pattern": r"^\d{3,4}$"},
        what={"type": "string", "enum": ["towels", "cleaning"]},
    ),
]
LIBRARY = [
    tool("search_books", "Find books by title, subject or author", query={"type": "string"}),
    tool("loan_status", "When a borrowed book is due", member_id={"type": "string", "description": "e.g. M-2041"}),
    tool(
        "renew_loan",
        "Extend a loan",
        ["member_id"],
        member_id={"type": "string"},
        weeks={"type": "integer", "minimum": 1, "maximum": 4},
    ),
]
STATUS = HOTEL[1]


@pytest.mark.parametrize(
    ("tools", "text", "calls"),
    [
        (HOTEL, "예약 BK-12345 확정됐나요?", [("booking_status", {"booking_id": "BK-12345"})]),
        (HOTEL, "Is my reservation BK-12345 confirmed?", [("booking_status", {"booking_id": "BK-12345"})]),
        (
            HOTEL,
            "2026-12-24부터 3박 더블룸 있나요?",
            [("find_rooms", {"check_in": "2026-12-24", "nights": 3, "kind": "double"})],
        ),
        (
            HOTEL,
            "A suite from 2026-12-24 for 2 nights please",
            [("find_rooms", {"check_in": "2026-12-24", "nights": 2, "kind": "suite"})],
        ),
        (HOTEL, "Please send towels to room 1204", [("housekeeping", {"room_number": "1204", "what": "towels"})]),
        (HOTEL, "1204호 청소 부탁드려요", [("housekeeping", {"room_number": "1204", "what": "cleaning"})]),
        (HOTEL, "공항까지 택시 불러주세요, 2명입니다", [("order_taxi", {"destination": "공항", "people": 2})]),
        (HOTEL, "I need a taxi to Incheon airport", [("order_taxi", {"destination": "Incheon airport"})]),
        (
            HOTEL,
            "BK-12345 and BK-54321, what is their status?",
            [("booking_status", {"booking_id": "BK-12345"}), ("booking_status", {"booking_id": "BK-54321"})],
        ),
        (
            HOTEL,
            "예약 BK-11111 상태 알려주세요. 그리고 305호에 수건 부탁해요.",
            [
                ("booking_status", {"booking_id": "BK-11111"}),
                ("housekeeping", {"room_number": "305", "what": "towels"}),
            ],
        ),
        (LIBRARY, "개미에 관한 책 찾아주세요", [("search_books", {"query": "개미"})]),
        (LIBRARY, "Do you have books about ants?", [("search_books", {"query": "ants"})]),
        (LIBRARY, "“어린 왕자” 있나요?", [("search_books", {"query": "어린 왕자"})]),
        (LIBRARY, "회원 M-2041 2주 연장해 주세요", [("renew_loan", {"member_id": "M-2041", "weeks": 2})]),
        (LIBRARY, "When is my book due? I am M-2041", [("loan_status", {"member_id": "M-2041"})]),
    ],
)
async def test_tools_of_a_hotel_and_a_library(sim: Sim, tools: list[Json], text: str, calls: list[Any]) -> None:
    assert called(await say(sim, body(text, tools=tools))) == calls


@pytest.mark.parametrize(
    "wrapped", ["<msg>{}</msg>\nAnswer briefly.", "Customer: {}", '{{"id": 3, "text": "{}"}}', "{}"]
)
async def test_a_reworded_prompt_changes_nothing(sim: Sim, wrapped: str) -> None:
    message = await say(sim, body(wrapped.format("예약 BK-12345 확정됐나요?"), tools=HOTEL))
    assert called(message) == [("booking_status", {"booking_id": "BK-12345"})]


async def test_asks_for_what_is_missing_and_calls_nothing(sim: Sim) -> None:
    korean = await say(sim, body("예약 상태 알려주세요", tools=HOTEL))
    english = await say(sim, body("What is the status of my booking?", tools=HOTEL))
    assert "booking id" in korean["content"] and "필요합니다" in korean["content"] and not called(korean)
    assert "booking id" in english["content"] and "I need" in english["content"] and not called(english)


async def test_small_talk_calls_nothing(sim: Sim) -> None:
    for text in ("고마워요!", "Hello there"):
        message = await say(sim, body(text, tools=HOTEL))
        assert not called(message) and message["content"]


async def test_tool_choice(sim: Sim) -> None:
    text = "예약 BK-12345 확정됐나요?"
    assert not called(await say(sim, body(text, tools=HOTEL, tool_choice="none")))
    forced = {"type": "function", "function": {"name": "housekeeping"}}
    ((name, arguments),) = called(await say(sim, body(text, tools=HOTEL, tool_choice=forced)))
    assert name == "housekeeping"
    jsonschema.validate(arguments, HOTEL[3]["function"]["parameters"])
    assert len(called(await say(sim, body("고마워요!", tools=HOTEL, tool_choice="required")))) == 1
    both = body("BK-12345 and BK-54321, status?", tools=HOTEL, parallel_tool_calls=False)
    assert called(await say(sim, both)) == [("booking_status", {"booking_id": "BK-12345"})]


def conversation(text: str, result: str, tools: list[Json], **more: Any) -> Json:
    """A question, one call of booking_status, and its result."""
    function = {"name": "booking_status", "arguments": '{"booking_id": "BK-12345"}'}
    messages = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "a", "content": result},
    ]
    return {"model": "sim-small", "messages": messages, "tools": tools, **more}


async def test_answers_from_the_result_in_the_users_language(sim: Sim) -> None:
    result = json.dumps({"booking_id": "BK-12345", "status": "confirmed", "room": 1204})
    korean = await say(sim, conversation("예약 BK-12345 확정됐나요?", result, HOTEL))
    english = await say(sim, conversation("Is BK-12345 confirmed?", result, HOTEL))
    assert "상태: confirmed" in korean["content"] and not called(korean)
    assert "status: confirmed" in english["content"] and "room: 1204" in english["content"]


@pytest.mark.parametrize(
    "result", ["Error: no such booking", '{"error": {"code": "not_found", "message": "no such booking"}}']
)
async def test_tells_a_failed_lookup_and_never_repeats_the_call(sim: Sim, result: str) -> None:
    message = await say(sim, conversation("Is my booking BK-12345 confirmed?", result, HOTEL))
    assert not called(message)
    assert "could not" in message["content"] and "no such booking" in message["content"]


async def test_the_same_call_is_never_made_twice_in_one_conversation(sim: Sim) -> None:
    request = conversation("예약 BK-12345 확정됐나요?", '{"status": "confirmed"}', HOTEL)
    request["messages"] += [
        {"role": "assistant", "content": "확정되었습니다."},
        {"role": "user", "content": "예약 BK-12345 다시 한번 확인해 주세요"},
    ]
    message = await say(sim, request)
    assert not called(message) and "confirmed" in message["content"]
    request["messages"][-1]["content"] = "예약 BK-77777 상태도 확인해 주세요"
    assert called(await say(sim, request)) == [("booking_status", {"booking_id": "BK-77777"})]


async def test_a_value_that_a_tool_returned_feeds_the_next_call(sim: Sim) -> None:
    tools = [
        tool("search_books", "Find books by title", query={"type": "string"}),
        tool("shelf_stock", "Copies of a book that are available", book_id={"type": "string", "pattern": r"^B\d{4}$"}),
    ]
    text = "Are copies of “Ant Life” available?"
    first = await say(sim, body(text, tools=tools))
    assert called(first) == [("search_books", {"query": "Ant Life"})]
    result = json.dumps([{"book_id": "B0042", "title": "Ant Life"}])
    call_id = first["tool_calls"][0]["id"]
    messages = [{"role": "user", "content": text}, first, {"role": "tool", "tool_call_id": call_id, "content": result}]
    second = await say(sim, body(tools=tools, messages=messages))
    assert called(second) == [("shelf_stock", {"book_id": "B0042"})]


async def test_optional_arguments_are_left_away_without_a_sign(sim: Sim) -> None:
    tools = [
        tool(
            "loan_status",
            "When a borrowed book is due",
            ["member_id"],
            member_id={"type": "string"},
            limit={"type": "integer"},
            branch={"type": "string", "enum": ["north", "south"]},
        )
    ]
    assert called(await say(sim, body("회원 412 대출 언제까지예요?", tools=tools))) == [
        ("loan_status", {"member_id": "412"})
    ]


@pytest.mark.parametrize(("asked", "calls"), [("예약 번호가 몇 번인가요?", 1), ("알겠습니다.", 0)])
async def test_a_number_that_was_asked_for_completes_what_was_said_before(sim: Sim, asked: str, calls: int) -> None:
    said = [("user", "예약 확정됐는지 알려 주세요"), ("assistant", asked), ("user", "BK-12345요")]
    request = body(tools=[STATUS], messages=[{"role": role, "content": text} for role, text in said])
    assert called(await say(sim, request)) == [("booking_status", {"booking_id": "BK-12345"})] * calls


DESK = {
    "type": "object",
    "properties": {
        "topic": {"type": "string", "enum": ["room_booking", "housekeeping", "billing", "transport", "praise"]},
        "priority": {"type": "integer", "minimum": 1, "maximum": 3},
    },
    "required": ["topic", "priority"],
    "additionalProperties": False,
}


def formatted(schema: Json) -> Json:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


@pytest.mark.parametrize(
    ("text", "topic", "priority"),
    [
        ("방이 더러워요. 청소해 주세요", "housekeeping", 2),
        ("Can I get an invoice for my stay?", "billing", 2),
        ("공항 가는 택시를 당장 불러주세요!", "transport", 1),
        ("정말 최고의 호텔이었어요. 감사합니다", "praise", 3),
        ("더블룸 예약하고 싶어요", "room_booking", 2),
    ],
)
async def test_schema_values_follow_the_text(sim: Sim, text: str, topic: str, priority: int) -> None:
    message = await say(sim, body(text, response_format=formatted(DESK)))
    assert json.loads(message["content"]) == {"topic": topic, "priority": priority}


async def test_meanings_in_the_prompt_decide(sim: Sim) -> None:
    schema = {
        "type": "object",
        "properties": {"team": {"enum": ["alpha", "beta"]}, "rank": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["team", "rank"],
    }
    system = "alpha = 환불과 취소; beta = 배송과 택배. priority rank: 5 = urgent, 1 = low"
    for text, team in (("환불해 주세요", "alpha"), ("택배가 안 와요", "beta")):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        message = await say(sim, body(messages=messages, response_format=formatted(schema)))
        assert json.loads(message["content"])["team"] == team


async def test_after_a_repair_turn_the_first_text_still_counts(sim: Sim) -> None:
    request = body("Can I get an invoice?", response_format=formatted(DESK))
    request["messages"] += [
        {"role": "assistant", "content": '{"topic": "food"}'},
        {"role": "user", "content": "That reply is not valid JSON for the schema. Reply again."},
    ]
    assert json.loads((await say(sim, request))["content"])["topic"] == "billing"


async def test_json_object_follows_the_shape_in_the_prompt(sim: Sim) -> None:
    system = (
        'Answer in JSON: {"sentiment": "positive|negative|neutral", "score": 1-5, "urgent": true, "summary": "..."}'
    )
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "정말 실망했어요. 최악입니다."}]
    found = json.loads((await say(sim, body(messages=messages, response_format={"type": "json_object"})))["content"])
    assert found["sentiment"] == "negative" and found["score"] == 1 and isinstance(found["summary"], str)
    assert found["urgent"] is True


async def test_one_of_a_list_in_plain_words(sim: Sim) -> None:
    prompt = "Classify as one of: positive, negative, neutral.\nText: 정말 최고였어요"
    assert (await say(sim, body(prompt)))["content"] == "positive"


NAMES = st.sampled_from(
    ["priority", "order_id", "answer", "reason", "nights", "confidence", "tags", "rating", "city", "이름", "urgent"]
)
NODE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "child": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
    "required": ["name"],
    "additionalProperties": False,
}
KEYWORDS = st.sampled_from(
    ["type", "enum", "properties", "required", "items", "anyOf", "allOf", "$ref", "minimum", "minItems", "pattern"]
)
FIXED: list[Json] = [
    {"type": "string", "format": "date"},
    {"type": ["string", "null"]},
    {"type": "null"},
    {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    {"type": "string", "pattern": r"^[A-Z]{2,4}-\d+(?:\.\d{2})?$"},
    {"$ref": "#/$defs/node"},
    {"allOf": [{"$ref": "#/$defs/node"}], "description": "x"},
    {"const": 5},
    {"type": "boolean"},
]


def objects(properties: Json) -> Json:
    required = list(properties)[::2]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def between(one: int, other: int) -> Json:
    return {"type": "integer", "minimum": min(one, other), "maximum": max(one, other)}


def stepped(above: int, width: int, step: float) -> Json:
    return {"type": "number", "exclusiveMinimum": above, "maximum": above + width + 1, "multipleOf": step}


def listed(items: Json, least: int) -> Json:
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + 2}


ENUMS = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4, unique=True)
PLAIN: st.SearchStrategy[Json] = st.one_of(
    st.sampled_from(FIXED),
    ENUMS.map(lambda values: {"enum": values}),
    st.builds(between, st.integers(-50, 50), st.integers(-50, 50)),
    st.builds(stepped, st.integers(-9, 9), st.integers(1, 40), st.sampled_from([1, 0.5, 0.25])),
    st.integers(0, 20).map(lambda n: {"type": "string", "minLength": n, "maxLength": n + 5}),
)
PROPERTY: st.SearchStrategy[Json] = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.builds(listed, inner, st.integers(0, 3)),
        st.builds(objects, st.dictionaries(NAMES, inner, max_size=4)),
    ),
    max_leaves=8,
)
TEXTS = st.sampled_from(["주문 1001 3박 환불해 주세요. 급해요!", "Room 12, 2 nights. Thanks a lot", "", "…"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(NAMES, PROPERTY, max_size=6), TEXTS)
def test_every_filled_schema_is_valid(properties: Json, text: str) -> None:
    schema = {**objects(properties), "$defs": {"node": NODE}}
    value = fill(schema, Source(text, "", lambda: "네, 확인했습니다.", Draws(1)))
    jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-99, 99), st.text(max_size=6), st.sampled_from(["string", "#"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYWORDS | NAMES, inner, max_size=4)),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JUNK, JUNK, st.text(max_size=60))
def test_any_schema_is_answered_or_refused(parameters: Any, schema: Any, text: str) -> None:
    function = {"type": "function", "function": {"name": "order_status", "parameters": parameters}}
    request = body(text, tools=[function], tool_choice="required")
    for asking in (request, body(text, response_format={"type": "json_schema", "json_schema": {"schema": schema}})):
        try:
            asked = read(json.dumps(asking).encode())
        except Refused as refused:
            assert refused.status == 400 and refused.message
        else:
            answer = answer_to(asked, Draws(1))
            assert answer.content is not None or json.loads(answer.calls[0].arguments) is not None


@pytest.mark.parametrize(
    "schema",
    [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}]}, {"allOf": [{"$ref": "#"}]}, {"items": {"$ref": "#"}, "minItems": 2}],
)
def test_schemas_that_lead_back_to_themselves_end(schema: Json) -> None:
    fill(schema, Source("text", "", str, Draws(1)))


def test_that_check_can_fail() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"priority": 9}, {**objects({"priority": {"type": "integer", "maximum": 3}})})


@pytest.mark.parametrize(
    "pattern", [r"^\d{4}-\d{2}$", r"^(ko|en)$", r"[a-f]{3,}x?", r"^v\d+(\.\d+)*$", r"^[^\s@]+@x\.kr$"]
)
def test_made_strings_match_their_pattern(pattern: str) -> None:
    jsonschema.validate(matching(pattern), {"pattern": pattern})


async def test_max_tokens_cuts_and_says_so(sim: Sim) -> None:
    status, reply, _ = await post(sim, body("Tell me about your hotel", max_tokens=5))
    choice = reply["choices"][0]
    assert status == 200 and choice["finish_reason"] == "length" and reply["usage"]["completion_tokens"] <= 5
    status, reply, _ = await post(sim, body("예약 BK-12345 상태", tools=[STATUS], max_completion_tokens=9))
    call = reply["choices"][0]["message"]["tool_calls"][0]
    assert reply["choices"][0]["finish_reason"] == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(call["function"]["arguments"])


async def test_stop_words(sim: Sim) -> None:
    assert (await say(sim, body("Hello", stop="your")))["content"] == "I read "
