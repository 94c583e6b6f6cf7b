"""What of a request's body is read, and that the rest is passed on as it is."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siafu.gateway.wire import OWN_FIELDS, encode
from siafu.service import reading
from siafu.service.reading import read_fields, read_request, too_deep
from siafu.service.refusals import Refused

SAID = b'[{"role": "user",  "content": "\xed\x95\x9c\xea\xb5\xad\\u00e9"}]'
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
UNKNOWN = st.text(min_size=1, max_size=12).filter(
    lambda name: name not in OWN_FIELDS | {"n", "max_completion_tokens", "max_output_tokens"}
)


def raw(body: bytes) -> dict[str, bytes]:
    return {name: bytes(value) for name, value in msgspec.json.decode(body, type=dict[str, msgspec.Raw]).items()}


@given(st.dictionaries(UNKNOWN, JSON, max_size=5), st.sampled_from([None, 1, 3]))
def test_unknown_fields_and_messages_are_passed_on_byte_for_byte(more: dict[str, Any], indent: int | None) -> None:
    fields = {name: json.dumps(value, indent=indent).encode("utf-8", "replace") for name, value in more.items()}
    body = b'{"model":"m","messages":' + SAID
    for name, value in fields.items():
        body += b"," + json.dumps(name, ensure_ascii=False).encode() + b":" + value
    body += b"}"
    sent = raw(encode(read_request(body).request))
    assert sent.pop("model") == b'"m"'
    assert sent.pop("messages") == SAID
    assert sent == fields


def test_numbers_keep_their_spelling() -> None:
    odd = b'{"model":"m","messages":[{"x":1.0}],"seed":1.0e3,"big":123456789012345678901234567890,"temperature":0.10}'
    sent = raw(encode(read_request(odd).request))
    assert (sent["seed"], sent["big"], sent["temperature"]) == (b"1.0e3", b"123456789012345678901234567890", b"0.10")
    assert sent["messages"] == b'[{"x":1.0}]'


def test_tokens_of_a_stream_are_always_asked_for_and_other_stream_options_kept() -> None:
    start = b'{"model":"m","messages":[{}],"stream":true'
    plain, more = read_request(start + b"}"), read_request(start + b',"stream_options":{"include_obfuscation":false}}')
    wanted = read_request(start + b',"stream_options":{"include_usage":true}}')
    assert (plain.wants_usage, more.wants_usage, wanted.wants_usage) == (False, False, True)
    assert raw(encode(plain.request))["stream_options"] == b'{"include_usage":true}'
    assert raw(encode(more.request))["stream_options"] == b'{"include_obfuscation":false,"include_usage":true}'


def test_the_ledger_can_read_what_limits_the_output() -> None:
    request = read_request(b'{"model":"m","messages":[{}],"max_tokens":7,"n":2,"max_completion_tokens":9}').request
    assert (request.max_tokens, request.extra) == (7, {"n": 2, "max_completion_tokens": 9})
    odd = read_request(b'{"model":"m","messages":[{}],"max_tokens":"7"}').request
    assert raw(encode(odd))["max_tokens"] == b'"7"'  # the upstream says what is wrong with it


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{}", "model"),
        (b'{"model":7,"messages":[{}]}', "model"),
        (b'{"model":"","messages":[{}]}', "model"),
        (b'{"model":"' + b"m" * 257 + b'","messages":[{}]}', "model"),
        (b'{"model":"m"}', "messages"),
        (b'{"model":"m","messages":"hi"}', "messages"),
        (b'{"model":"m","messages":[{}],"stream":"yes"}', "stream"),
        (b'{"model":"m","messages":[{}],"stream_options":{}}', "stream_options"),
        (b'{"model":"m","messages":[{}],"stream":true,"stream_options":[]}', "stream_options"),
    ],
)
def test_what_is_wrong_is_named(body: bytes, param: str) -> None:
    with pytest.raises(Refused) as caught:
        read_request(body)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("body", [b"", b"[1]", b'"x"', b'{"model":', b'{"a":NaN}', b'{"a":1}x', b'{"a":"\xff",}'])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(Refused) as caught:
        read_request(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_half_a_character_does_not_end_a_conversation() -> None:
    for broken in (b"\\ud83d", b"\xff", b"\xed\xa0\xbd"):
        request = read_request(b'{"model":"m","messages":[{"content":"a' + broken + b'b"}]}').request
        content = json.loads(encode(request))["messages"][0]["content"]
        assert content[0] + content[-1] == "ab"
        assert "\ufffd" in content
    with pytest.raises(Refused):
        read_fields(b'{"a":"\\ud83d' + b"x" * reading.MAX_ODD + b'"}')


@given(JSON, st.integers(0, 80))
def test_sec32_nesting_is_counted_exactly(value: Any, around: int) -> None:
    for level in range(around):
        value = [value, '"]}\\'] if level % 2 else {'{"[\\"': value, "b": []}
    body = json.dumps({"a": value}).encode("utf-8", "replace")
    assert too_deep(body) == (depth({"a": value}) > 64)


def depth(value: Any) -> int:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inside is None else 1 + max(map(depth, inside), default=0)


def test_sec32_a_deep_body_is_refused() -> None:
    for levels, fits in ((63, True), (64, False), (20_000, False)):
        body = b'{"model":"m","messages":[{}],"x":' + b"[" * levels + b"]" * levels + b"}"
        if fits:
            read_request(body)
        else:
            with pytest.raises(Refused):
                read_request(body)
