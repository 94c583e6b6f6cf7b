"""What a customer asks, as a record, and what the swarm answers, as a record."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from siafu.border.text import clean
from siafu.errors import InputError

MAX_TEXT = 20_000
Outcome = Literal["answered", "refused", "pending_approval", "needs_info", "unknown"]


class CustomerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `customer`: the authenticated customer, never taken from the text. `created_at`: ISO 8601."""

    id: str
    customer: str
    text: str
    created_at: str | None = None
    lang: str | None = None


def parse_request(value: Any) -> CustomerRequest:
    """A request from a JSON object; unknown fields are ignored, a number is taken as an id.

    Raises: InputError naming the field.
    """
    if not isinstance(value, dict):
        raise InputError('a request is an object like {"id": "r1", "customer": "kim", "text": "..."}')
    fields: dict[str, str | None] = {}
    for name, limit in (("id", 200), ("customer", 200), ("text", MAX_TEXT), ("created_at", 64), ("lang", 35)):
        given = value.get(name)
        if name == "id" and isinstance(given, int) and not isinstance(given, bool):
            given = str(given)
        if given is None and name in ("created_at", "lang"):
            fields[name] = None
            continue
        if not isinstance(given, str) or not given.strip():
            raise InputError(f"the field {name!r} must be a text that is not empty")
        if len(given) > limit:
            raise InputError(f"the field {name!r} has {len(given):,} characters; the limit is {limit:,}")
        fields[name] = clean(given)
    return CustomerRequest(
        id=fields["id"] or "",
        customer=fields["customer"] or "",
        text=fields["text"] or "",
        created_at=fields["created_at"],
        lang=fields["lang"],
    )


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the swarm made of one request; the value that is journaled.

    `steps`: model calls, the sorting included. `tool_calls`: calls that ran. `flagged`: why a person should look at it
    (classification_default: no usable category came; last_turn: a limit took the tools away); empty = nothing is odd.
    """

    outcome: Outcome
    category: str
    priority: int
    answer: str
    model_used: str
    steps: int
    tool_calls: int
    flagged: str = ""
