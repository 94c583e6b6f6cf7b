"""JSON-RPC messages from outside, checked before the protocol library sees them.

The library's JSON readers take NaN, let the last of two equal keys win and pass lone surrogates on; a tool's
arguments must mean one thing to everybody, so such messages are answered with an error here.
"""

from __future__ import annotations

import json
from typing import Any

from siafu.border.canonical import loads
from siafu.errors import BoundaryError, TooLarge

MAX_MESSAGE = 1 << 20  # bytes
PARSE_ERROR, INVALID_REQUEST = -32700, -32600


class Unusable(Exception):
    """A message that is refused. `reply`: the JSON-RPC error that answers it."""

    def __init__(self, code: int, message: str, request_id: str | int | None, *, too_large: bool = False) -> None:
        super().__init__(message)
        self.too_large = too_large
        self.reply: dict[str, Any] = {
            "jsonrpc": "2.0",
            "id": request_id,
            "error": {"code": code, "message": message},
        }


def checked(raw: bytes) -> str:
    """One message as clean JSON on one line, without repeated keys, NaN or broken text.

    Raises: Unusable.
    """
    try:
        value = loads(raw, max_bytes=MAX_MESSAGE, what="the message")
    except BoundaryError as error:
        raise Unusable(PARSE_ERROR, error.message, _request_id(raw), too_large=isinstance(error, TooLarge)) from None
    if not isinstance(value, dict):
        raise Unusable(INVALID_REQUEST, "the message must be one JSON-RPC object", None)
    return json.dumps(value, ensure_ascii=False)


def _request_id(raw: bytes) -> str | int | None:
    """The id of a refused message, read leniently so that whoever sent it is not left waiting."""
    if len(raw) > MAX_MESSAGE:
        return None
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    found = value.get("id") if isinstance(value, dict) else None
    return found if isinstance(found, str | int) and not isinstance(found, bool) else None
