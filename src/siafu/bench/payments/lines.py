"""What a refund request is, and the lines of the ledger: each request, each refund paid, each answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

MOST_BODY_BYTES = 64 * 1024
MOST_KEY = 255

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_Currency = Annotated[str, msgspec.Meta(pattern=r"\A[A-Z]{3}\Z")]
_Minor = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
What = Literal["refund", "lookup"]


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to pay back. `amount`: in minor units. `reference`: the caller's own name for this refund, by which it can
    be looked up. Two bodies are the same when all of it is, `metadata` included."""

    payment: _Text
    amount: _Minor
    currency: _Currency
    reference: _Text
    metadata: dict[str, Any] = {}


class Head(msgspec.Struct, frozen=True, tag_field="line", tag="siafu-payments"):
    """The first line: tells a ledger from any other file."""

    version: Literal[1] = 1


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="request"):
    """One request; written when it comes, and again with its answer. Times in seconds since the epoch.

    `n`: number in order of arrival, from 1. `attempt`: how often its reference has come, this time included. `body`:
    None for a lookup and for a body that cannot be used. `fault`: what goes wrong on purpose. `status`: None = not
    answered yet (or never, since the process died); 0 = nothing was sent. `ids`: the refunds that the answer named.
    """

    n: int
    at: float
    what: What
    reference: str = ""
    key: str | None = None
    attempt: int = 0
    body: Body | None = None
    fault: str | None = None
    answered_at: float | None = None
    status: int | None = None
    replayed: bool = False
    ids: list[str] = []
    error: str | None = None


class Paid(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="paid"):
    """A refund that was paid: the effect. `request`: number of the request that caused it."""

    n: int
    id: str
    at: float
    request: int
    key: str | None
    payment: str
    amount: int
    currency: str
    reference: str


class Declined(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="declined"):
    """A refund that was declined for good, for its key."""

    at: float
    request: int


Line = Request | Paid | Declined


class Unusable(Exception):
    """A request that is refused before anything is looked at; the message is for the caller."""


def read_body(data: bytes) -> Body:
    """Raises: Unusable."""
    try:
        return msgspec.json.decode(data, type=Body)
    except (msgspec.MsgspecError, RecursionError) as error:
        example = '{"payment": "pay_1", "amount": 700, "currency": "KRW", "reference": "r-1"}'
        raise Unusable(f"{error}; a refund looks like {example}") from None


def read_key(header: str | None) -> str | None:
    """The value of Idempotency-Key; None when there is none.

    Raises: Unusable.
    """
    if header is not None and not (1 <= len(header) <= MOST_KEY and header.isprintable()):
        raise Unusable(f"Idempotency-Key must have 1 to {MOST_KEY} printable characters")
    return header
