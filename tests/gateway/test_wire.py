from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.border.secrets import Secret
from siafu.errors import AccessRefused, MalformedReply, ModelError, RateLimited, UpstreamFault
from siafu.gateway.chat import ChatAnswer, ChatRequest, Usage
from siafu.gateway.wire import encode, parse_answer

from .fake_upstream import OK


def parsed(value: Any) -> ChatAnswer:
    return parse_answer(value if isinstance(value, bytes) else json.dumps(value).encode())


def with_message(finish: Any = "stop", **message: Any) -> dict[str, Any]:
    return {**OK, "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}]}


def call(id: Any, name: str = "f", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_good_answer() -> None:
    answer = parsed(OK)
    assert (answer.content, answer.finish_reason, answer.model, answer.id) == ("ok", "stop", "m", "c1")
    assert answer.usage == Usage(input=10, output=2)
    assert answer.message == {"role": "assistant", "content": "ok"}


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": ""}]])
def test_content_may_be_empty(content: Any) -> None:
    assert parsed(with_message(content=content)).text == ""


def test_content_in_parts_is_joined_and_kept_raw() -> None:
    parts = [{"type": "text", "text": "주문 "}, {"type": "image"}, {"type": "text", "text": "1001"}]
    answer = parsed(with_message(content=parts))
    assert answer.content == "주문 1001"
    assert answer.message["content"] == parts


@pytest.mark.parametrize("choices", [None, [], "x", {}, [None], [1], [{}], [{"message": None}], [{"message": "x"}]])
def test_f08_hollow_bodies_are_malformed(choices: Any) -> None:
    with pytest.raises(MalformedReply):
        parsed({**OK, "choices": choices})
    without = {name: value for name, value in OK.items() if name != "choices"}
    with pytest.raises(MalformedReply):
        parsed(without)


@pytest.mark.parametrize("finish", [None, "", 5, {}])
def test_an_answer_without_a_finish_reason_was_cut(finish: Any) -> None:
    with pytest.raises(MalformedReply, match="finish reason"):
        parsed(with_message(finish, content="half"))


def test_generation_that_ended_in_an_error_is_no_answer() -> None:
    with pytest.raises(UpstreamFault):
        parsed(with_message("error", content="half"))


def test_f07_an_error_object_in_a_200() -> None:
    hollow = {"id": None, "choices": None, "created": None, "model": None, "object": None}
    with pytest.raises(RateLimited, match="rate limited upstream"):
        parsed({**hollow, "error": {"code": 429, "message": "rate limited upstream"}})
    with pytest.raises(AccessRefused):
        parsed({**hollow, "error": {"code": 401, "message": "no"}})
    with pytest.raises(UpstreamFault, match="CUDA"):
        parsed({"object": "error", "message": "CUDA out of memory", "code": 50001})


@pytest.mark.parametrize(
    "body",
    [
        {"code": 429, "message": "slow down"},
        {"code": "rate_limit_exceeded", "message": "slow down", "choices": None},
        {
            "choices": [
                {"error": {"code": 429, "message": "slow down"}, "message": {"content": ""}, "finish_reason": None}
            ]
        },
        {"choices": [{"error": {"code": 429, "message": "slow down"}, "message": {}, "finish_reason": "error"}]},
    ],
)
def test_f07_an_error_counts_wherever_it_stands(body: dict[str, Any]) -> None:
    with pytest.raises(RateLimited, match="slow down"):
        parsed(body)


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b'"ok"', b"<html>", b"{", json.dumps(OK).encode()[:-9], b"\xff\xfe", b"[" * 100_000, b"NaN"],
)
def test_f09_what_is_no_json_object_is_malformed_with_a_short_preview(body: bytes) -> None:
    with pytest.raises(MalformedReply) as caught:
        parse_answer(body, content_type="text/html")
    assert len(caught.value.message) < 500


def test_the_size_is_limited() -> None:
    body = json.dumps(OK).encode()
    assert parse_answer(body, max_bytes=len(body)).content == "ok"
    with pytest.raises(MalformedReply, match="larger"):
        parse_answer(body, max_bytes=len(body) - 1)


@pytest.mark.parametrize(
    "ids", [["f:0", "f:0"], ["", ""], [None, None], ["a", "a", "a_1"], ["a_1", "a", "a"], [7, "a"]]
)
def test_f12_tool_call_ids_become_unique_in_both_places(ids: list[Any]) -> None:
    calls = [call(id, arguments=f'{{"n":{n}}}') for n, id in enumerate(ids)]
    answer = parsed(with_message("tool_calls", content=None, tool_calls=calls))
    made = [c.id for c in answer.tool_calls]
    assert made == [c["id"] for c in answer.message["tool_calls"]]
    assert len(set(made)) == len(ids) and all(made)
    assert [c.arguments for c in answer.tool_calls] == [f'{{"n":{n}}}' for n in range(len(ids))]


def test_f12_an_endless_id_is_replaced() -> None:
    answer = parsed(with_message("tool_calls", tool_calls=[call("i" * 257), call("i" * 256)]))
    assert [c.id for c in answer.tool_calls] == ["call_0", "i" * 256]


def test_names_that_go_into_records_are_bounded_and_hold_no_key() -> None:
    Secret("sk-test-0123456789abcdefghij")
    body = {**OK, "model": "m" * 5000, "id": "id sk-test-0123456789abcdefghij"}
    body["choices"] = [{"message": {"role": "assistant", "content": "x"}, "finish_reason": "f" * 10_000}]
    answer = parsed(body)
    assert (answer.model, answer.finish_reason) == ("m" * 200, "f" * 200)
    assert answer.id == "id ***"


@pytest.mark.parametrize("role", [{}, {"role": None}, {"role": "system"}, {"role": "user"}])
def test_whatever_role_an_answer_claims_it_is_the_assistants(role: dict[str, Any]) -> None:
    choice = {"message": {**role, "content": "x"}, "finish_reason": "stop"}
    assert parsed({**OK, "choices": [choice]}).message["role"] == "assistant"


def test_f12_good_ids_stay_as_they_are() -> None:
    answer = parsed(with_message("tool_calls", tool_calls=[call("x"), call("y")]))
    assert [c.id for c in answer.tool_calls] == ["x", "y"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        *(("", ""), ("  ", "  "), (None, ""), ({"a": "가"}, '{"a":"가"}'), ('{"order_id":"1001","amount":',) * 2),
        ('"{\\"a\\":1}"', '"{\\"a\\":1}"'),
    ],
)
def test_f10_f11_arguments_are_handed_on_unparsed(arguments: Any, text: str) -> None:
    answer = parsed(with_message("tool_calls", tool_calls=[call("a", arguments=arguments)]))
    assert answer.tool_calls[0].arguments == text
    assert answer.message["tool_calls"][0]["function"]["arguments"] == text


@pytest.mark.parametrize(
    "calls", ["x", {}, [None], ["x"], [{}], [{"id": "a", "function": None}], [{"function": {"arguments": "{}"}}]]
)
def test_tool_calls_without_a_function_are_malformed(calls: Any) -> None:
    if not calls:
        return
    with pytest.raises(MalformedReply):
        parsed(with_message("tool_calls", tool_calls=calls))


def test_f14_unknown_fields_of_the_message_are_kept() -> None:
    answer = parsed(with_message("tool_calls", content=None, reasoning_content="r1", x=[1], tool_calls=[call("a")]))
    assert answer.message["reasoning_content"] == "r1"
    assert answer.message["x"] == [1]
    assert answer.content is None


@pytest.mark.parametrize("bad", ["\\ud83d", "\\u0000"])
def test_f48_broken_characters_in_an_answer_are_replaced(bad: str) -> None:
    body = json.dumps(with_message(content="HERE", name="HERE")).replace("HERE", f"주문 {bad} 끝").encode()
    answer = parse_answer(body)
    assert answer.content == "주문 \ufffd 끝"
    assert answer.message["name"] == "주문 \ufffd 끝"


def test_f48_broken_utf8_in_an_answer_is_replaced() -> None:
    assert parse_answer(json.dumps(OK).encode().replace(b'"ok"', b'"a\xffb"')).content == "a\ufffdb"


@pytest.mark.parametrize(
    ("charset", "encoding", "found"),
    [
        ("; charset=euc-kr", "euc-kr", "배송중"),
        ('; Charset="CP949"', "cp949", "배송중"),
        ("; charset=utf-8", "utf-8", "배송중"),
        ("; charset=no-such", "utf-8", "배송중"),
        ("; charset=utf-8", "euc-kr", "\ufffd" * 5),  # not what it says
        ("", "euc-kr", "\ufffd" * 5),
    ],
)
def test_an_answer_in_the_encoding_that_its_head_names(charset: str, encoding: str, found: str) -> None:
    body = json.dumps(with_message(content="배송중"), ensure_ascii=False).encode(encoding)
    assert parse_answer(body, content_type=f"application/json{charset}").content == found


def test_f48_a_lone_surrogate_in_a_request_is_replaced() -> None:
    request = ChatRequest(model="m", messages=[{"role": "tool", "content": "주문 \ud83d 끝", "\ud800": ("a",)}])
    assert json.loads(encode(request))["messages"] == [{"role": "tool", "content": "주문 \ufffd 끝", "\ufffd": ["a"]}]


def test_f57_the_same_prefix_gives_the_same_bytes() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    bodies = [
        encode(
            ChatRequest(
                model="m",
                tools=tools,
                messages=[{"role": "system", "content": "같은 앞부분"}, {"role": "user", "content": str(n)}],
                temperature=n / 10,
                max_tokens=n,
                stream=bool(n % 2),
                extra={"seed": n},
            )
        )
        for n in range(1, 5)
    ]
    heads = {body[: body.index(b'"role":"user"')] for body in bodies}
    assert len(heads) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "message": st.fixed_dictionaries(
                        {}, optional={"content": JSON, "tool_calls": st.lists(JSON, max_size=3), "role": JSON}
                    ),
                    "finish_reason": st.just("stop") | JSON,
                },
            ),
            max_size=2,
        ),
        "usage": st.dictionaries(st.sampled_from(["prompt_tokens", "completion_tokens", "cached_tokens"]), JSON),
        "error": st.none() | JSON,
        "id": JSON,
        "model": JSON,
    },
)


@given(FIELDS)
def test_any_body_gives_a_whole_answer_or_a_model_error(body: dict[str, Any]) -> None:
    try:
        answer = parsed(body)
    except ModelError as error:
        assert len(error.message) < 1200
        return
    assert answer.finish_reason
    assert answer.content is None or isinstance(answer.content, str)
    ids = [c.id for c in answer.tool_calls]
    assert len(set(ids)) == len(ids)
    if answer.usage is not None:
        assert 0 <= answer.usage.cached + answer.usage.cache_write <= answer.usage.input
