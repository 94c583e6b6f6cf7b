"""JSON in and out: strict where it comes in, canonical where it is compared.

Canonical form: UTF-8, keys sorted, no spaces, no NaN or Infinity; equal values give equal bytes (1 and 1.0 are two
values). On the way out lone surrogates become U+FFFD, so that what a model or tool once said can always be written.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import msgspec

from siafu.border.text import clean, clean_bytes
from siafu.errors import NotJson, TooLarge

MAX_DEPTH = 64
_encoder = msgspec.json.Encoder(order="sorted")
_plain = msgspec.json.Encoder()


def canonical(value: Any) -> bytes:
    """The canonical bytes of a JSON value (also Structs, dataclasses, Decimal as string).

    Raises: NotJson for values JSON cannot hold, TooLarge for more than 64 levels around a lone surrogate.
    """
    try:
        data = _encoder.encode(value)
        if data.rfind(b"null") >= 0:  # what NaN and Infinity become; from behind it is found twice as fast
            _refuse_not_finite(msgspec.to_builtins(value))
        return data
    except UnicodeEncodeError:
        return canonical(scrubbed(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJson(f"not a JSON value: {error}") from None


def fingerprint(value: Any) -> str:
    """sha256 (hex, 64 characters) of the canonical bytes."""
    return hashlib.sha256(canonical(value)).hexdigest()


def dumps(value: Any) -> bytes:
    """Compact JSON bytes in the value's own key order. U+0085, U+2028 and U+2029 are escaped, so one value is one
    line for every reader. NaN and Infinity become null.
    """
    try:
        data = _plain.encode(value)
    except UnicodeEncodeError:
        data = _plain.encode(scrubbed(value))
    if b"\xe2" in data and b"\xe2\x80" in data:  # one byte is found many times faster than two
        data = data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    if b"\xc2" in data:
        data = data.replace(b"\xc2\x85", b"\\u0085")
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
        places = {name: place for place, (name, _) in enumerate(pairs)}  # the last place of each
        twice = next(name for place, (name, _) in enumerate(pairs) if places[name] != place)
        raise ValueError(f"the key {clean(twice)[:60]!r} stands twice in one object")
    return found


def scrubbed(value: Any) -> Any:
    """A value as plain JSON types, with every lone surrogate and NUL in it replaced by U+FFFD.

    Raises: TooLarge for more than 64 levels, NotJson.
    """
    return _scrub(msgspec.to_builtins(value, str_keys=True), MAX_DEPTH, "the value")


def _refuse_not_finite(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a JSON number")
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        _refuse_not_finite(item)


def _scrub(value: Any, depth: int, what: str) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise NotJson(f"{what} holds a number too large for JSON readers")
    if not isinstance(value, list | tuple | dict):
        return value
    if depth == 0:
        raise TooLarge(f"{what} is nested deeper than {MAX_DEPTH}")
    if not isinstance(value, dict):
        return [_scrub(item, depth - 1, what) for item in value]
    found = {clean(key): _scrub(item, depth - 1, what) for key, item in value.items()}
    if len(found) != len(value):
        raise NotJson(f"{what} holds keys that differ in broken characters only")
    return found
