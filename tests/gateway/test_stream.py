from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.errors import AccessRefused, MalformedReply, ModelError, RateLimited, UpstreamFault
from siafu.gateway.chat import ChatAnswer, Usage
from siafu.gateway.stream import Assembler, SseDecoder
from siafu.gateway.wire import parse_answer

from .fake_upstream import piece


def events(data: bytes, cuts: list[int] | None = None) -> list[tuple[bytes, bytes]]:
    decoder, found, start = SseDecoder(), [], 0
    for cut in sorted({min(c, len(data)) for c in cuts or []} | {len(data)}):
        found += decoder.feed(data[start:cut])
        start = cut
    return found + decoder.finish()


def assembled(*given: dict[str, Any] | str) -> tuple[list[str], ChatAnswer]:
    assembler, texts = Assembler(), []
    for event in given:
        data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
        delta = assembler.feed((b"", data.encode()))
        if delta is not None:
            texts.append(delta.content)
    return texts, assembler.answer()


def calls(*pieces: dict[str, Any]) -> dict[str, Any]:
    return piece(tool_calls=list(pieces))


F15 = (
    b": PROCESSING\n\n: PROCESSING\n\n: PROCESSING\n\n"
    + b"data: "
    + json.dumps(piece("주문 번호"), ensure_ascii=False).encode()
    + b"\n\n:\n\n:ping\n\n"
    + b"data:"
    + json.dumps(piece(" 1001 😀", finish="stop"), ensure_ascii=False).encode()
    + b"\n\ndata: [DONE]\n\n"
)


@settings(max_examples=300)
@given(st.lists(st.integers(0, len(F15) * 2), max_size=40), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_f15_comments_cuts_and_line_ends_do_not_matter(cuts: list[int], line_end: bytes) -> None:
    found = events(F15.replace(b"\n", line_end), cuts)
    assembler = Assembler()
    texts = [delta.content for event in found if (delta := assembler.feed(event))]
    assert "".join(texts) == "주문 번호 1001 😀"
    assert assembler.done and assembler.answer().content == "주문 번호 1001 😀"


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_f15_every_single_byte_on_its_own(line_end: bytes) -> None:
    data = F15.replace(b"\n", line_end)
    assert events(data, list(range(len(data)))) == events(F15)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"data: a\ndata: b\n\n", [(b"", b"a\nb")]),
        (b"event: error\ndata: x\n\n", [(b"error", b"x")]),
        (b"event: a\n\ndata: x\n\n", [(b"", b"x")]),
        (b"id: 1\nretry: 5\nfoo\ndata: x\n\n", [(b"", b"x")]),
        (b"\xef\xbb\xbfdata: x\n\n", [(b"", b"x")]),
        (b"data: x", [(b"", b"x")]),
        (b"data: x\n", [(b"", b"x")]),
        (b"data:  two spaces\n\n", [(b"", b" two spaces")]),
        (b": only comments\n\n:\n", []),
        (b"\n\n\n", []),
        (b"", []),
        (b'data: {"a":"\xe2\x80\xa8"}\n\n', [(b"", b'{"a":"\xe2\x80\xa8"}')]),
    ],
)
def test_events_after_the_standard(data: bytes, expected: list[tuple[bytes, bytes]]) -> None:
    assert events(data) == expected
    assert events(data, list(range(len(data)))) == expected


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=10))
def test_any_bytes_give_the_same_events_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    assert events(data, cuts) == events(data)


def test_an_endless_line_is_refused_in_time() -> None:
    for endless in (b"x" * 100, b"data: " + b"x" * 94, b"data: " + b"x" * 94 + b"\n"):
        decoder = SseDecoder(max_bytes=10_000)
        for _ in range(100):
            assert decoder.feed(endless) == []
        with pytest.raises(MalformedReply, match="larger"):
            decoder.feed(b"data: y")


def test_sec32_an_answer_has_a_limit_and_its_events_have_a_greater_one() -> None:
    text = json.dumps(piece("가나"), ensure_ascii=False).encode()
    assembler = Assembler(max_chars=10)
    for _ in range(5):
        assembler.feed((b"", text))
    with pytest.raises(MalformedReply, match="longer than 10 characters"):
        assembler.feed((b"", text))
    decoder, event = SseDecoder(max_bytes=100), b"data: " + b"x" * 42 + b"\n\n"
    for _ in range(32):
        assert len(decoder.feed(event)) == 1
    with pytest.raises(MalformedReply, match="larger than 1,600 bytes"):
        decoder.feed(b":")


@pytest.mark.parametrize(
    "delta",
    [
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "12345678"}}]},
        {"reasoning_details": ["1234"]},
        {"reasoning_content": "12345678"},
    ],
)
def test_sec32_the_limit_counts_whatever_grows(delta: dict[str, Any]) -> None:
    assembler = Assembler(max_chars=20)
    with pytest.raises(MalformedReply, match="longer"):
        for _ in range(5):
            assembler.feed((b"", json.dumps(piece(**delta)).encode()))


def test_f17_chunks_with_empty_choices() -> None:
    texts, answer = assembled(
        {"choices": [], "prompt_filter_results": []},
        piece(role="assistant", content=""),
        piece("안녕"),
        piece("하세요", finish="stop"),
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}},
        "[DONE]",
    )
    assert texts == ["안녕", "하세요"] and answer.content == "안녕하세요"
    assert answer.usage == Usage(input=5, output=7)


def test_the_last_usage_wins_and_none_is_unknown() -> None:
    one, two = ({**piece("a"), "usage": {"prompt_tokens": 5, "completion_tokens": n}} for n in (1, 2))
    assert assembled(one, two, {**piece(finish="stop"), "usage": None})[1].usage == Usage(input=5, output=2)
    assert assembled(piece("a", finish="stop"))[1].usage is None
    in_choice = piece("a", finish="stop")
    in_choice["choices"][0]["usage"] = {"prompt_tokens": 3, "completion_tokens": 1, "cached_tokens": 2}
    assert assembled(in_choice)[1].usage == Usage(input=3, output=1, cached=2)


def test_f18_an_error_event_ends_the_stream_as_a_failure() -> None:
    with pytest.raises(UpstreamFault, match="engine died"):
        assembled(piece("Par"), {"error": {"message": "engine died", "code": 500}}, "[DONE]")
    with pytest.raises(RateLimited):
        assembled({"error": {"message": "slow", "code": 429}})
    with pytest.raises(RateLimited):
        assembled(piece("Par"), {"code": 429, "message": "slow"})
    with pytest.raises(AccessRefused):
        assembled({"choices": [{"index": 0, "delta": {}, "error": {"code": 401}, "finish_reason": "error"}]})
    assembler = Assembler()
    with pytest.raises(AccessRefused):
        assembler.feed((b"error", b'{"message":"no","code":401}'))


@pytest.mark.parametrize("end", [["[DONE]"], [], [piece("more")]])
def test_a_stream_without_a_finish_reason_was_cut(end: list[Any]) -> None:
    with pytest.raises(MalformedReply, match="cut"):
        assembled(piece("Par"), *end)


def test_a_chunk_that_is_no_json_is_malformed() -> None:
    with pytest.raises(MalformedReply):
        assembled(piece("Par"), '{"choices":[{"del')


def test_nothing_counts_after_done() -> None:
    assert assembled(piece("a", finish="stop"), "[DONE]", piece("b"), "{")[1].content == "a"


def test_tool_calls_in_pieces_are_put_together_by_index() -> None:
    _, answer = assembled(
        calls({"index": 0, "id": "a", "type": "function", "function": {"name": "get_order_status", "arguments": ""}}),
        calls({"index": 0, "function": {"arguments": '{"order'}}),
        calls({"index": 1, "id": "b", "function": {"name": "check", "arguments": '{"sku":'}}),
        calls(
            {"index": 0, "function": {"arguments": '_id":"1001"}'}}, {"index": 1, "function": {"arguments": '"가"}'}}
        ),
        piece(finish="tool_calls"),
        "[DONE]",
    )
    assert [(c.id, c.name, c.arguments) for c in answer.tool_calls] == [
        ("a", "get_order_status", '{"order_id":"1001"}'),
        ("b", "check", '{"sku":"가"}'),
    ]
    assert answer.message["tool_calls"][0]["type"] == "function"
    assert answer.content is None


@pytest.mark.parametrize("arguments", ["", "  ", None, {}, "{}", '{"a":'])
def test_f11_arguments_are_the_same_streamed_and_plain(arguments: Any) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "ping", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    plain = parse_answer(json.dumps(body).encode()).tool_calls
    assert assembled(calls({"index": 0, **call}), piece(finish="tool_calls"))[1].tool_calls == plain


def test_f12_calls_with_repeated_ids_or_indices_stay_apart() -> None:
    _, same_id = assembled(
        calls({"index": 0, "id": "f:0", "function": {"name": "f", "arguments": '{"n":0}'}}),
        calls({"index": 1, "id": "f:0", "function": {"name": "f", "arguments": '{"n":1}'}}),
        piece(finish="tool_calls"),
    )
    assert [c.arguments for c in same_id.tool_calls] == ['{"n":0}', '{"n":1}']
    assert len({c.id for c in same_id.tool_calls}) == 2
    _, same_index = assembled(
        calls({"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"n":0}'}}),
        calls({"index": 0, "id": "b", "function": {"name": "f", "arguments": '{"n":1}'}}),
        piece(finish="tool_calls"),
    )
    assert [(c.id, c.arguments) for c in same_index.tool_calls] == [("a", '{"n":0}'), ("b", '{"n":1}')]


def test_a_name_that_is_sent_with_every_piece_stays_one_name() -> None:
    part = {"index": 0, "id": "a", "function": {"name": "f"}}
    _, answer = assembled(
        *(calls({**part, "function": {"name": "f", "arguments": text}}) for text in ("{", '"a"', ":1}")),
        piece(finish="tool_calls"),
    )
    assert [(c.name, c.arguments) for c in answer.tool_calls] == [("f", '{"a":1}')]


def test_f14_reasoning_is_put_together_and_told_apart_from_the_answer() -> None:
    assembler = Assembler()
    deltas = [
        assembler.feed((b"", json.dumps(chunk).encode()))
        for chunk in (piece(reasoning_content="r"), piece(reasoning_content="1"), piece("ok", finish="stop"))
    ]
    assert [(d.reasoning, d.content) for d in deltas if d] == [("r", ""), ("1", ""), ("", "ok")]
    answer = assembler.answer()
    assert answer.message["reasoning_content"] == "r1"
    assert answer.content == "ok"


def test_f15_role_and_comments_are_no_sign_of_an_answer() -> None:
    assembler = Assembler()
    assembler.feed((b"", json.dumps(piece(role="assistant", content="")).encode()))
    assert not assembler.begun
    assembler.feed((b"", json.dumps(calls({"index": 0, "id": "a", "function": {"name": "f"}})).encode()))
    assert assembler.begun


def test_f48_broken_characters_in_a_stream_are_replaced() -> None:
    raw = json.dumps(piece("HERE", finish="stop")).replace("HERE", "끝 \\ud83d \\u0000")
    assert assembled(raw)[1].content == "끝 \ufffd \ufffd"


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=8))
def test_streamed_and_plain_answers_are_the_same(texts: list[str]) -> None:
    _, streamed = assembled(*(piece(text) for text in texts), piece(finish="stop"), "[DONE]")
    message = {"role": "assistant", "content": "".join(texts)}
    body = {"id": "c1", "model": "m", "choices": [{"message": message, "finish_reason": "stop"}]}
    assert streamed == parse_answer(json.dumps(body).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "tool_calls",
                    "index",
                    "id",
                    "function",
                    "name",
                    "arguments",
                    "content",
                    "usage",
                    "error",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
)


@given(st.lists(st.fixed_dictionaries({"delta": JSON, "finish_reason": JSON}), max_size=5))
def test_any_chunks_give_an_answer_or_a_model_error(choices: list[dict[str, Any]]) -> None:
    try:
        _, answer = assembled(*({"choices": [choice]} for choice in choices))
    except ModelError as error:
        assert len(error.message) < 1200
    else:
        assert answer.finish_reason
