"""What a customer asks, as a record, and what the swarm answers, as a record."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from siafu.apps.support.shop.refusal import Why
from siafu.border.canonical import dumps
from siafu.border.text import clean
from siafu.errors import InputError
from siafu.store.task_records import MAX_NEEDS, NewTask, task_key

MAX_TEXT = 20_000
KIND = "support"  # of tasks that are a CustomerRequest
Outcome = Literal["answered", "refused", "pending_approval", "needs_info", "unknown"]
RefundState = Literal["paid", "pending_approval", "not_yet", "unknown", "refused", "needs_info"]


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier message of the same customer in the same conversation, and what came of it; None = it was never
    answered.
    """

    text: str
    answer: str | None = None
    outcome: Outcome | None = None


class CustomerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `customer`: the authenticated customer, never taken from the text. `created_at`: ISO 8601.

    `earlier`: the conversation so far, oldest first, as trusted code kept it; never taken from a request's fields.
    """

    id: str
    customer: str
    text: str
    created_at: str | None = None
    lang: str | None = None
    earlier: tuple[Turn, ...] = ()

    @property
    def own_words(self) -> tuple[str, ...]:
        """All that the customer wrote in this conversation, newest first."""
        return (self.text, *(turn.text for turn in reversed(self.earlier)))

    @property
    def korean(self) -> bool:
        """Whether to speak Korean to this customer."""
        return self.lang == "ko" or any("가" <= letter <= "힣" for text in self.own_words for letter in text)

    @property
    def matter(self) -> str:
        """What this message is about, as a text: with those before it that it completes, as they lacked something."""
        open_ones = itertools.takewhile(lambda turn: turn.outcome in (None, "needs_info"), reversed(self.earlier))
        return "\n\n".join([*reversed([turn.text for turn in open_ones]), self.text])

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation for a model. Messages without an answer become one with the next, as upstreams want the
        two sides to take turns.
        """
        said: list[dict[str, Any]] = []
        unanswered: list[str] = []
        for turn in self.earlier:
            unanswered.append(turn.text)
            if turn.answer:
                said += [_message("user", *unanswered), _message("assistant", turn.answer)]
                unanswered = []
        return [*said, _message("user", *unanswered, self.text)]


def _message(role: str, *texts: str) -> dict[str, Any]:
    return {"role": role, "content": clean("\n\n".join(texts))}


LIMITS: Mapping[str, int] = {"id": 200, "customer": 200, "text": MAX_TEXT, "created_at": 64, "lang": 35}


def parse_request(value: Any) -> CustomerRequest:
    """A request from a JSON object; unknown fields are ignored, a number is taken as an id.

    Raises: InputError naming the field.
    """
    if not isinstance(value, dict):
        raise InputError('a request is an object like {"id": "r1", "customer": "kim", "text": "..."}')
    if "text" not in value and {"custom_id", "body"} <= value.keys():
        raise InputError("this looks like a line of a batch: these are for siafu batch run")
    return CustomerRequest(
        id=parse_field(value, "id"),
        customer=parse_field(value, "customer"),
        text=parse_field(value, "text"),
        created_at=None if value.get("created_at") is None else parse_field(value, "created_at"),
        lang=None if value.get("lang") is None else parse_field(value, "lang"),
    )


def new_task(request: CustomerRequest, *, run: str, tenant: str, priority: int, deadline: float | None) -> NewTask:
    """The task that a request becomes; its id stands for it within the run. deadline: seconds, None = it has none."""
    return NewTask(
        kind=KIND,
        payload=dumps(request).decode(),
        run=run,
        tenant=tenant,
        customer=request.customer,
        once=task_key(run, request.id),
        priority=priority,
        deadline=deadline,
    )


def parse_needs(value: dict[str, Any]) -> tuple[str, ...]:
    """The ids of requests that have to be answered before this one, from its field `needs`. Raises: InputError."""
    given = value.get("needs")
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > MAX_NEEDS:
        raise InputError(f"the field 'needs' must be a list of at most {MAX_NEEDS} ids")
    try:
        return tuple(dict.fromkeys(parse_field({"id": each}, "id") for each in given))
    except InputError:
        raise InputError('the field \'needs\' must be a list of ids, like ["r1", "r2"]') from None


def parse_field(value: dict[str, Any], name: str) -> str:
    """One field of a request, without lone surrogates and NULs. Raises: InputError naming it."""
    given = value.get(name)
    if name == "id" and isinstance(given, int) and not isinstance(given, bool):
        given = str(given)
    if not isinstance(given, str) or not given.strip():
        raise InputError(f"the field {name!r} must be a text that is not empty")
    if len(given) > LIMITS[name]:
        raise InputError(f"the field {name!r} has {len(given):,} characters; the limit is {LIMITS[name]:,}")
    return clean(given)


class Refund(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a refund that was asked for, told from what the tool answered. `code`: its word for it, empty when
    the money was paid. `not_yet`: nothing was paid, and it may be later. amount_minor (won or cents) and currency: of a
    refund that was paid. why: what the shop says beside its code; None = nothing that is understood.
    """

    order_id: str
    state: RefundState
    code: str = ""
    amount_minor: int | None = None
    currency: str | None = None
    why: Why | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the swarm made of one request; the value that is journaled.

    `steps`: model calls, the sorting included. `tool_calls`: calls that ran. `flagged`: why a person should look at it
    (classification_default: no usable category came; last_turn: a limit took the tools away; stopped: a limit ended the
    model's work after a refund was tried); empty = nothing is odd.
    `refunds`: one for each order that a refund was tried on. `ticket`: under which a person got the request.
    """

    outcome: Outcome
    category: str
    priority: int
    answer: str
    model_used: str
    steps: int
    tool_calls: int
    flagged: str = ""
    refunds: tuple[Refund, ...] = ()
    ticket: str | None = None
