"""Effects on the world as records, and what is decided about one when it is asked for. Pure.

States of an effect. Nothing has happened: `open` (claimed), `refused` (the tool said no), `pending_approval`, `denied`.
It may have happened: `dispatching` (a call may be under way until its lease ends), `unknown` (a call ended without an
answer), `waiting` (the tool itself keeps it for a person), `manual_review` (only a person can tell). It has:
`succeeded`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from siafu.store.approval import Approval

EffectState = Literal[
    "open", "pending_approval", "dispatching", "unknown", "waiting", "succeeded", "refused", "denied", "manual_review"
]
Ending = Literal["succeeded", "refused", "unknown", "waiting", "manual_review"]
KEY_SECONDS = 23 * 3600.0  # a key that a target honours may be forgotten there after a day
MAX_ATTEMPTS = 5000  # a run that waits asks every 20 seconds
EVERYTHING = ""  # as the tool or tenant of a switch


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One effect, under its key for good. tool: `server.tool`. arguments: canonical JSON, exactly what is sent.

    fingerprint: of what makes two calls the same effect. epoch: of the last lease; who holds an older one may no longer
    write. amount: what counts towards the daily total. day: the day (since 1970) on whose cap it counts, None = on
    none. result: the tool's answer as JSON. Times: seconds since 1970, by the database's clock.
    """

    id: str
    key: str
    tool: str
    tenant: str
    customer: str
    run: str
    task: str
    step: str
    agent: str
    role: str
    arguments: str
    arguments_sha256: str
    fingerprint: str
    state: EffectState
    epoch: int
    owner: str | None
    lease_until: float | None
    attempts: int
    amount: int | None
    day: int | None
    first_sent_at: float | None
    result: str | None
    approval_id: str | None
    created_at: float
    updated_at: float


class AuditLine(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, for good. kind: the decision or event. actor: the process or person. data: JSON."""

    id: int
    at: float
    kind: str
    effect: str
    tool: str
    epoch: int
    tenant: str
    customer: str
    run: str
    task: str
    step: str
    role: str
    arguments_sha256: str
    approval_id: str
    actor: str
    data: str


class EffectAsk(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody asks for an effect. definition: of the tool, as canonical JSON. approval: why a person has to decide,
    empty = none has to. requester: who may not be that person. amount: towards the daily total, None = the rule has
    none. max_calls, max_total: a day's most, None = no cap. repeats: the target honours the key. looks: it can be seen
    whether it happened.
    """

    key: str
    tool: str
    fingerprint: str
    arguments: str
    arguments_sha256: str
    definition: str
    requester: str
    owner: str
    lease_seconds: float
    repeats: bool = False
    looks: bool = False
    approval: str = ""
    amount: int | None = None
    max_calls: int | None = None
    max_total: int | None = None
    tenant: str = ""
    customer: str = ""
    run: str = ""
    task: str = ""
    step: str = ""
    agent: str = ""
    role: str = ""


class Dispatch(msgspec.Struct, frozen=True):
    """Call the tool with exactly `arguments` (JSON), then `finish` under `epoch`. fresh: no call that may have acted
    was made before. look: first see whether it has happened. repeats: it may be called when it has not.
    """

    effect: str
    epoch: int
    arguments: str
    fresh: bool
    look: bool
    repeats: bool


class Kept(msgspec.Struct, frozen=True):
    """It is decided: `result` is the tool's answer from then, as JSON."""

    result: str


class Busy(msgspec.Struct, frozen=True):
    """Somebody else is calling, for at most `seconds` more."""

    seconds: float


class Stopped(msgspec.Struct, frozen=True):
    """Nothing may be sent. `code`: pending_approval, approval_denied, approval_expired, manual_review,
    idempotency_key_reused, tool_disabled, tool_changed or daily_limit. later: it may be when it is asked for again.
    """

    code: str
    message: str
    later: bool = False


Verdict = Dispatch | Kept | Busy | Stopped
Decision = Literal["send", "look", "ask", "keep", "busy", "pending", "denied", "expired", "review", "give_up", "reused"]


def decide(effect: Effect, approval: Approval | None, ask: EffectAsk, now: float) -> Decision:
    """What to do when `effect` is asked for at `now`. `approval`: its latest one.

    review: a person has to look, and is waited for. give_up: from now on. Switches, caps and changed definitions are
    not looked at here; they stop "send", "look" and "ask".
    """
    if effect.state in ("open", "refused"):
        return "ask" if ask.approval else "send"
    if effect.fingerprint != ask.fingerprint:
        return "reused"
    if effect.state == "succeeded":
        return "keep"
    if effect.state == "denied":
        return "denied"
    if effect.state == "manual_review":
        return "review"
    if effect.state == "pending_approval":
        return _approved(effect, approval)
    if effect.lease_until is not None and now < effect.lease_until:
        return "busy"
    if effect.state == "waiting" and not ask.repeats:
        return "keep"
    if ask.looks:
        return "look"
    return "send" if repeatable(effect, ask, now) else "give_up"


def repeatable(effect: Effect, ask: EffectAsk, now: float) -> bool:
    """Whether a call that may have had its effect may be made again: only under a key that the target still knows."""
    if effect.first_sent_at is None or effect.state == "waiting":  # the target has said that it has not acted
        return ask.repeats
    return ask.repeats and now - effect.first_sent_at < KEY_SECONDS and effect.attempts < MAX_ATTEMPTS


def _approved(effect: Effect, approval: Approval | None) -> Decision:
    if approval is None or approval.state == "used":
        return "ask"
    if approval.state == "denied" or approval.state == "expired":
        return approval.state
    if approval.state == "pending":
        return "pending"
    return "send" if approval.arguments_sha256 == effect.arguments_sha256 else "ask"
