"""The body of a request to `/v1/chat/completions`, read no further than needed: what siafu does not decide about is
passed on byte for byte.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from siafu.border.canonical import MAX_DEPTH, dumps, loads
from siafu.errors import BoundaryError
from siafu.gateway.chat import ChatRequest
from siafu.service.refusals import Refused, invalid, refusal

MAX_MODEL = 256  # characters
MAX_ODD = 2**20  # bytes of a body that has to be mended
_MAX_BRACKETS = 2**20
_GIVEN = ("messages", "tools", "tool_choice", "response_format", "temperature")
_COUNTS = ("max_completion_tokens", "max_output_tokens", "n")  # the ledger looks at these
_STRING = re.compile(rb'"[^"]*"')
_ALIKE = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_value = msgspec.json.Decoder().decode
_NULL = b"null"


class Asked(msgspec.Struct, frozen=True):
    """wants_usage: the client wants the tokens of a stream told at its end (we always do)."""

    request: ChatRequest
    wants_usage: bool


def read_request(body: bytes) -> Asked:
    """What a client asks. Unknown fields are passed on.

    Raises: Refused.
    """
    fields = read_fields(body)
    model = _text(fields.pop("model", None))
    if not model or len(model) > MAX_MODEL:
        raise invalid("model", f"model must be a model's name of 1 to {MAX_MODEL} characters")
    if not bytes(fields.get("messages", b"")).startswith(b"["):
        raise invalid("messages", "messages must be a list of messages")
    stream = _value(fields.pop("stream", _NULL))
    if stream is not None and not isinstance(stream, bool):
        raise invalid("stream", "stream must be true or false")
    options = _value(fields.pop("stream_options", _NULL))
    if options is not None and not (stream and isinstance(options, dict)):
        raise invalid("stream_options", "stream_options is an object, and only for a request with stream set")
    given: dict[str, Any] = {name: fields.pop(name) for name in _GIVEN if name in fields}
    if options:
        given["stream_options"] = {**options, "include_usage": True}
    extra: dict[str, Any] = fields
    limit = extra.pop("max_tokens", None)
    max_tokens = None if limit is None else _value(limit)
    if max_tokens is not None and not _is_count(max_tokens):  # the upstream says what is wrong with it
        given["max_tokens"], max_tokens = limit, None
    for name in _COUNTS:
        if name in extra and _is_count(count := _value(extra[name])):
            extra[name] = count
    request = ChatRequest(
        model=model,
        messages=(),
        max_tokens=max_tokens,
        stream=bool(stream),
        extra=extra,
        given=given,
        keep_raw=True,
    )
    return Asked(request, bool(options and options.get("include_usage")))


def read_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """The fields of a JSON object, unread. A body with broken characters (half a pair of surrogates, bytes that are no
    UTF-8) is mended, so that it does not end a conversation.

    Raises: Refused when it is none, or nested deeper than 64.
    """
    try:
        fields = _fields(body)
        if not body.isascii():
            body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _mended(body)
    if too_deep(body):
        raise Refused(400, f"the body is nested deeper than {MAX_DEPTH}", code="too_deep", again=False)
    return fields


def too_deep(body: bytes) -> bool:
    """Whether valid JSON is nested deeper than 64: strings are taken out, then 64 times the innermost brackets."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return False
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    left = _STRING.sub(b"", body).translate(_ALIKE, _OTHERS)
    if len(left) > _MAX_BRACKETS:  # more than any prompt has, and work for all 64 rounds
        return True
    for _ in range(MAX_DEPTH):
        left = left.replace(b"[]", b"")
    return bool(left)


def _mended(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        found = loads(body, max_bytes=MAX_ODD, what="the body")
    except BoundaryError as error:
        raise refusal(error) from None
    if not isinstance(found, dict):
        raise Refused(400, "the body must be a JSON object", code="invalid_json", again=False)
    return {name: msgspec.Raw(dumps(value)) for name, value in found.items()}


def _text(raw: msgspec.Raw | None) -> str:
    value = None if raw is None else _value(raw)
    return value if isinstance(value, str) else ""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
