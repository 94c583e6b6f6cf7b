"""JSON in and out: strict where it comes in, canonical where it is compared.

Canonical form: UTF-8, keys sorted, no spaces, no NaN or Infinity; equal values give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from siafu.border.text import clean, clean_bytes
from siafu.errors import NotJson, TooLarge

MAX_DEPTH = 64
_encoder = msgspec.json.Encoder(order="sorted")
_plain = msgspec.json.Encoder()


def canonical(value: Any) -> bytes:
    """The canonical bytes of a JSON value (also Structs, dataclasses, Decimal as string).

    Raises: NotJson for values JSON cannot hold.
    """
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJson(f"not a JSON value: {error}") from None


def fingerprint(value: Any) -> str:
    """sha256 (hex, 64 characters) of the canonical bytes."""
    return hashlib.sha256(canonical(value)).hexdigest()


def dumps(value: Any) -> bytes:
    """Compact JSON bytes in the value's own key order. U+2028 and U+2029 are escaped, so one value is one line for
    every reader.
    """
    data = _plain.encode(value)
    if b"\xe2\x80" in data:
        data = data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    return data


def loads(data: bytes | str, *, max_bytes: int, what: str = "text") -> Any:
    """Parse JSON from outside, strictly.

    Refused: more than `max_bytes`, deeper than 64, NaN or Infinity, repeated keys, anything behind the value.
    Lone surrogates are replaced by U+FFFD. `what` names the text in messages.

    Raises: TooLarge, NotJson.
    """
    size = len(data) if isinstance(data, bytes) else len(data.encode("utf-8", "replace"))
    if size > max_bytes:
        raise TooLarge(f"{what} has {size:,} bytes; the limit is {max_bytes:,}")
    text = clean_bytes(data) if isinstance(data, bytes) else data
    try:
        value = json.loads(text.removeprefix("\ufeff"), parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise TooLarge(f"{what} is nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise NotJson(f"{what} is not valid JSON: {error}") from None
    return _scrub(value, MAX_DEPTH, what)


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {clean(twice)[:60]!r} stands twice in one object")
    return found


def _scrub(value: Any, depth: int, what: str) -> Any:
    if depth < 0:
        raise TooLarge(f"{what} is nested deeper than {MAX_DEPTH}")
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        raise NotJson(f"{what} holds a number too large for JSON readers")
    if isinstance(value, list):
        return [_scrub(item, depth - 1, what) for item in value]
    if isinstance(value, dict):
        return {clean(key): _scrub(item, depth - 1, what) for key, item in value.items()}
    return value
