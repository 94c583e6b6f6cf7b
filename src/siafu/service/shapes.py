"""What is sent and answered, as types: those of `/openapi.json`, and what bodies and parameters are read by."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qsl

import msgspec

from siafu.border.canonical import loads
from siafu.errors import BoundaryError
from siafu.service.exchange import Exchange
from siafu.service.reading import MAX_MODEL
from siafu.service.refusals import Refused, invalid, refusal

MAX_ONCE = 255  # characters
T = TypeVar("T")
_PLACE = re.compile(r" - at (?:`key` in )?`\$\.?(.*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)


class ErrorWords(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    """Every error, in OpenAI's shape."""

    error: ErrorWords


class ChatBody(msgspec.Struct, frozen=True):
    """What siafu looks at of a chat completion; all else is passed on (see `service.reading`)."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_MODEL)]
    messages: list[Any]
    stream: bool | None = None


class Model(msgspec.Struct, frozen=True):
    id: str
    created: int
    owned_by: str
    object: Literal["model"] = "model"


class Models(msgspec.Struct, frozen=True):
    data: list[Model]
    object: Literal["list"] = "list"


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok"] = "ok"


def word(means: str, **bounds: Any) -> Any:
    """The type of a header. bounds: as `msgspec.Meta` has them."""
    return Annotated[str, msgspec.Meta(description=means, **bounds)]


TRACED = {"traceparent": word("The span that it belongs to (W3C Trace Context)")}


def read_body(body: bytes, kind: Any) -> Any:
    """The body of a request as `kind`; it is strict JSON (see `border.canonical.loads`).

    Raises: Refused naming the place of what is wrong.
    """
    try:
        return msgspec.convert(loads(body, max_bytes=len(body), what="the body"), kind)
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from None
    except BoundaryError as error:
        raise refusal(error) from None


def read_query(query: bytes, kind: type[T]) -> T:
    """The parameters behind `?`. Raises: Refused, also for one that is unknown or given twice."""
    try:
        given = parse_qsl(query.decode("ascii"), keep_blank_values=True, strict_parsing=bool(query), errors="strict")
    except ValueError:
        raise Refused(400, "the part behind ? is no list of name=value", code="invalid_value", again=False) from None
    found = dict(given)
    if len(found) != len(given):
        raise Refused(400, "a parameter is given twice", code="invalid_value", again=False)
    try:
        return msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _wrong(str(error)) from None


def once_of(x: Exchange) -> str:
    """The header Idempotency-Key; empty without it. Raises: Refused when it is too long."""
    once = x.header(b"idempotency-key")
    if len(once) > MAX_ONCE:
        raise invalid("idempotency-key", f"the header Idempotency-Key has at most {MAX_ONCE} characters")
    return once


def given(query: msgspec.Struct, *names: str) -> dict[str, str]:
    """Those parameters that were given."""
    return {name: value for name in names if (value := getattr(query, name)) is not msgspec.UNSET}


def _wrong(text: str) -> Refused:
    found = _PLACE.search(text)
    place, text = (found[1], text[: found.start()]) if found else ("", text)
    if unknown := _UNKNOWN.match(text):
        place, text = f"{place}.{unknown[1][:100]}".lstrip("."), "there is no such field"
    return invalid(place or "body", f"{place or 'the body'}: {text[:1].lower()}{text[1:]}")
