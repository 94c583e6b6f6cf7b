"""The effect contract in SQL: claim by unique key, durable dispatch under an epoch, fenced ending.

A claim and its dispatch are one transaction: from its commit on it is known that a call may be made. The call itself is
made outside of any. Each rule rests on a unique key, a CHECK or a single conditional UPDATE whose row count is read, so
READ COMMITTED is enough. Leases run by the database's clock; clocks decide only who waits, never whether an effect
happens twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from siafu.border.canonical import dumps
from siafu.border.text import clean
from siafu.store.approval import Approval
from siafu.store.crash import crash_point
from siafu.store.database import Database, Transaction
from siafu.store.effect_records import (
    EVERYTHING,
    Busy,
    Decision,
    Dispatch,
    Effect,
    EffectAsk,
    Ending,
    Kept,
    Stopped,
    Verdict,
    decide,
    repeatable,
)

APPROVAL_SECONDS = 72 * 3600.0  # until a person must have decided, and the effect begun
DAY = 86_400

_STOPS: dict[Decision, Stopped] = {
    "pending": Stopped("pending_approval", "a person has to approve this first; nothing has been done yet", later=True),
    "denied": Stopped("approval_denied", "a person has decided against this; it was not done"),
    "expired": Stopped("approval_expired", "nobody has approved this in time; it was not done"),
    "review": Stopped("manual_review", "whether this was done is unknown; a person has to look into it"),
    "give_up": Stopped("manual_review", "whether this was done is unknown; a person has to look into it"),
}


class EffectStore:
    """The effects in one database. Opened with `effect_schema.MIGRATIONS`; the database stays its owner's to close."""

    def __init__(self, database: Database) -> None:
        self.database = database

    async def claim(self, ask: EffectAsk, seconds: float | None = None) -> Verdict:
        """What the one who asks may do now. After a Dispatch, the effect is theirs until the lease ends. seconds: for
        which others are waited for that hold the database; None = its own limit.

        Raises: StoreLocked after that, with nothing claimed; StoreError. When cancelled, the claim may have been made;
        its lease ends by itself.
        """
        ask = msgspec.convert({name: _clean(value) for name, value in msgspec.structs.asdict(ask).items()}, EffectAsk)
        verdict = await self.database.run(lambda transaction: _claim(transaction, ask), seconds=seconds)
        crash_point("effect_claimed")
        return verdict

    async def finish(self, effect: str, epoch: int, ending: Ending, result: str | None) -> Verdict:
        """Record how the call under `epoch` ended; `result`: the tool's answer as JSON. Returns what holds now: Kept
        with it, or `manual_review` when nobody knows. An epoch that is over changes nothing, but what it has seen is
        kept in the audit.

        Raises: StoreError.
        """
        verdict = await self.database.run(lambda transaction: _finish(transaction, effect, epoch, ending, result))
        crash_point("effect_finished")
        return verdict

    async def accepted(self, tool: str, definition: str) -> bool:
        """Whether the tool may act as it is defined now; the first definition of a tool is taken as it comes."""
        return await self.database.run(lambda transaction: _accepted(transaction, tool, definition))

    async def denied(self, tool: str, *, run: str, task: str, role: str, customer: str, tenant: str) -> None:
        """Keep in the audit that a role asked for a tool that it may not use."""
        labels = {"run": run, "task": task, "role": role, "customer": customer, "tenant": tenant}
        await self.database.run(lambda transaction: audit(transaction, "tool_denied", tool=tool, **labels))


def load(transaction: Transaction, where: str, **values: Any) -> Effect | None:
    """The effect with `where`, locked until the transaction ends."""
    row = transaction.row(f"SELECT * FROM effect WHERE {where} {{for_update}}", **values)  # noqa: S608  our own words
    return None if row is None else msgspec.convert(row, Effect)


def now(transaction: Transaction) -> float:
    row = transaction.row("SELECT {now} AS now")
    return float(row["now"]) if row else 0.0


def audit(
    transaction: Transaction,
    kind: str,
    effect: Effect | None = None,
    /,
    *,
    actor: str = "",
    data: Any = None,
    **labels: str,
) -> None:
    """Add a line for good. What `labels` do not say comes from `effect`."""
    texts = ("tool", "tenant", "customer", "run", "task", "step", "role", "arguments_sha256", "approval_id")
    line = {name: clean(labels.get(name) or getattr(effect, name, "") or "") for name in texts}
    transaction.change(
        "INSERT INTO effect_audit (at, kind, effect, epoch, actor, data, "
        "tool, tenant, customer, run, task, step, role, arguments_sha256, approval_id) "
        "VALUES ({now}, :kind, :effect, :epoch, :actor, :data, "
        ":tool, :tenant, :customer, :run, :task, :step, :role, :arguments_sha256, :approval_id)",
        kind=kind,
        effect=effect.id if effect else "",
        epoch=effect.epoch if effect else 0,
        actor=clean(actor),
        data=dumps(data).decode() if data is not None else "",
        **line,
    )


def release(transaction: Transaction, effect: Effect) -> None:
    """It has not happened after all: it no longer counts on its day's cap."""
    if effect.day is not None:
        transaction.change(
            "UPDATE effect_day SET calls = calls - 1, total = total - :amount "
            "WHERE tool = :tool AND tenant = :tenant AND day = :day",
            amount=effect.amount or 0, tool=effect.tool, tenant=effect.tenant, day=effect.day,
        )  # fmt: skip


def approval_of(transaction: Transaction, effect: Effect, at: float) -> Approval | None:
    """The effect's latest approval, expired when its time is over."""
    row = transaction.row("SELECT * FROM effect_approval WHERE id = :id {for_update}", id=effect.approval_id)
    return None if row is None else as_approval(row, at)


def as_approval(row: Mapping[str, Any], at: float) -> Approval:
    approval = msgspec.convert({name: row[name] for name in Approval.__struct_fields__}, Approval)
    over = approval.state in ("pending", "approved") and approval.expires_at <= at
    return msgspec.structs.replace(approval, state="expired") if over else approval


def _claim(transaction: Transaction, ask: EffectAsk) -> Verdict:
    at = now(transaction)
    transaction.change(
        "INSERT INTO effect (id, state, created_at, updated_at, key, tool, tenant, customer, run, task, step, agent, "
        "role, arguments, arguments_sha256, fingerprint) VALUES (:id, 'open', :at, :at, :key, :tool, :tenant, "
        ":customer, :run, :task, :step, :agent, :role, :arguments, :arguments_sha256, :fingerprint) "
        "ON CONFLICT (key) DO NOTHING",
        id=str(uuid.uuid4()), at=at,
        **{name: getattr(ask, name) for name in _ASKED},
    )  # fmt: skip
    effect = load(transaction, "key = :key", key=ask.key)
    assert effect is not None  # noqa: S101  it has just been inserted, and nothing removes effects
    decision = decide(effect, approval_of(transaction, effect, at), ask, at)
    if decision == "busy":
        return Busy((effect.lease_until or at) - at)
    if decision == "keep":
        _note(transaction, "replayed", effect, ask)
        return Kept(effect.result or "")
    if decision in ("send", "look", "ask"):
        return _go(transaction, effect, ask, decision, at)
    if decision == "give_up":
        transaction.change(
            "UPDATE effect SET state = 'manual_review', lease_until = NULL, epoch = epoch + 1, updated_at = :at "
            "WHERE id = :id",
            id=effect.id, at=at,
        )  # fmt: skip
    stopped = _STOPS.get(decision) or _reused(effect)
    _note(transaction, stopped.code, effect, ask)
    return stopped


def _go(transaction: Transaction, effect: Effect, ask: EffectAsk, decision: Decision, at: float) -> Verdict:
    """Send, look or ask a person, unless a switch, a changed definition or a cap forbids it."""
    repeats = repeatable(effect, ask, at)
    if effect.state in ("open", "refused"):  # what was refused may be asked for in other words
        effect = msgspec.structs.replace(effect, **{name: getattr(ask, name) for name in _TERMS}, approval_id=None)
    stopped = _forbidden(transaction, ask)
    if stopped is None and decision != "ask" and effect.day is None:
        effect = msgspec.structs.replace(effect, day=int(at // DAY), amount=ask.amount)
        stopped = _over_cap(transaction, effect, ask)
    if stopped is not None:
        _note(transaction, stopped.code, effect, ask)
        return _held_up(effect, stopped)
    if decision == "ask":
        return _ask_person(transaction, effect, ask, at)
    if effect.state == "pending_approval":
        transaction.change("UPDATE effect_approval SET state = 'used' WHERE id = :id", id=effect.approval_id)
    fresh = effect.state not in ("dispatching", "unknown")
    sent = msgspec.structs.replace(
        effect, state="dispatching", owner=ask.owner, lease_until=at + ask.lease_seconds, epoch=effect.epoch + 1,
        attempts=1 if fresh else effect.attempts + 1, first_sent_at=at if fresh else effect.first_sent_at,
    )  # fmt: skip
    _save(transaction, sent, at)
    _note(transaction, "looking" if decision == "look" else "dispatched", sent, ask)
    return Dispatch(sent.id, sent.epoch, sent.arguments, fresh, decision == "look", repeats)


def _held_up(effect: Effect, stopped: Stopped) -> Verdict:
    """The answer about an effect that may not go on now: that it was not done is only said when it cannot have been."""
    if effect.state == "waiting":
        return Kept(effect.result or "")
    if effect.state in ("dispatching", "unknown"):
        why = f"whether this was done is unknown, and cannot be found out now ({stopped.code})"
        return Stopped("manual_review", why)
    return stopped


def _ask_person(transaction: Transaction, effect: Effect, ask: EffectAsk, at: float) -> Stopped:
    transaction.change(
        "UPDATE effect_approval SET state = 'expired' WHERE effect = :effect AND state IN ('pending', 'approved')",
        effect=effect.id,
    )
    effect = msgspec.structs.replace(effect, state="pending_approval", approval_id=str(uuid.uuid4()))
    transaction.change(
        "INSERT INTO effect_approval (id, effect, tool, arguments, arguments_sha256, requester, reason, state, "
        "created_at, expires_at) VALUES (:id, :effect, :tool, :arguments, :sha256, :requester, :reason, 'pending', "
        ":at, :until)",
        id=effect.approval_id, effect=effect.id, tool=effect.tool, arguments=effect.arguments,
        sha256=effect.arguments_sha256, requester=ask.requester, reason=ask.approval,
        at=at, until=at + APPROVAL_SECONDS,
    )  # fmt: skip
    _save(transaction, effect, at)
    _note(transaction, "approval_asked", effect, ask, {"reason": ask.approval})
    return _STOPS["pending"]


def _note(transaction: Transaction, kind: str, effect: Effect, ask: EffectAsk, data: Any = None) -> None:
    """Into the audit: what was decided, for the one who asks now."""
    labels = {name: getattr(ask, name) for name in ("run", "task", "step", "role", "customer", "arguments_sha256")}
    audit(transaction, kind, effect, actor=ask.owner, data=data, **labels)


def _forbidden(transaction: Transaction, ask: EffectAsk) -> Stopped | None:
    switch = transaction.row(
        "SELECT reason FROM effect_switch WHERE tool IN (:all, :tool) AND tenant IN (:all, :tenant)",
        all=EVERYTHING, tool=ask.tool, tenant=ask.tenant,
    )  # fmt: skip
    if switch is not None:
        return Stopped("tool_disabled", f"{ask.tool} is switched off for now; nothing was done", later=True)
    if not _accepted(transaction, ask.tool, ask.definition):
        return Stopped(
            "tool_changed",
            f"the server has changed what {ask.tool} is; nothing was done, and nothing will be until a person has "
            f"accepted it (siafu effects accept {ask.tool})",
            later=True,
        )
    return None


def _accepted(transaction: Transaction, tool: str, definition: str) -> bool:
    transaction.change(
        "INSERT INTO effect_tool (tool, definition, person, at) VALUES (:tool, :definition, 'first use', {now}) "
        "ON CONFLICT (tool) DO NOTHING",
        tool=tool, definition=definition,
    )  # fmt: skip
    if transaction.row("SELECT 1 AS ok FROM effect_tool WHERE tool = :t AND definition = :d", t=tool, d=definition):
        return True
    news = transaction.change(
        "UPDATE effect_tool SET offered = :definition "
        "WHERE tool = :tool AND (offered IS NULL OR offered <> :definition)",
        tool=tool, definition=definition,
    )  # fmt: skip
    if news:
        audit(transaction, "tool_changed", tool=tool, data={"definition": definition})
    return False


def _over_cap(transaction: Transaction, effect: Effect, ask: EffectAsk) -> Stopped | None:
    """Count the effect on its day; what is over a cap is not counted."""
    where = {"tool": effect.tool, "tenant": effect.tenant, "day": effect.day}
    transaction.change(
        "INSERT INTO effect_day (tool, tenant, day) VALUES (:tool, :tenant, :day) ON CONFLICT DO NOTHING", **where
    )
    most = 2**62
    counted = transaction.change(
        "UPDATE effect_day SET calls = calls + 1, total = total + :amount WHERE tool = :tool AND tenant = :tenant "
        "AND day = :day AND calls < :calls AND total + :amount <= :total",
        amount=effect.amount or 0,
        calls=most if ask.max_calls is None else ask.max_calls,
        total=most if ask.max_total is None else ask.max_total,
        **where,
    )
    if counted:
        return None
    return Stopped("daily_limit", f"{ask.tool} has reached its limit for today; nothing was done", later=True)


def _finish(transaction: Transaction, effect_id: str, epoch: int, ending: Ending, result: str | None) -> Verdict:
    effect = load(transaction, "id = :id", id=effect_id)
    assert effect is not None  # noqa: S101  nothing removes effects
    if effect.state != "dispatching" or effect.epoch != epoch:
        audit(transaction, "fenced", effect, data={"epoch": epoch, "ending": ending, "result": result})
        return Kept(effect.result or "") if effect.state == "succeeded" else _STOPS["review"]
    if ending == "refused":
        release(transaction, effect)
        effect = msgspec.structs.replace(effect, day=None)
    effect = msgspec.structs.replace(effect, state=ending, result=result, lease_until=None)
    _save(transaction, effect, now(transaction))
    audit(transaction, ending, effect, actor=effect.owner or "")
    return _STOPS["review"] if ending in ("unknown", "manual_review") else Kept(result or "")


def _save(transaction: Transaction, effect: Effect, at: float) -> None:
    values = msgspec.structs.asdict(effect) | {"updated_at": at}
    changed = ", ".join(f"{name} = :{name}" for name in values if name not in ("id", "key"))
    transaction.change(f"UPDATE effect SET {changed} WHERE id = :id AND key = :key", **values)  # noqa: S608  our own names


def _reused(effect: Effect) -> Stopped:
    return Stopped(
        "idempotency_key_reused",
        f"this was asked for before with other values, {clean(effect.arguments)[:500]} (its state: {effect.state}); "
        "a request has one such effect, so the new one was not done",
    )


def _clean(value: Any) -> Any:
    return clean(value) if isinstance(value, str) else value


_TERMS = ("arguments", "arguments_sha256", "fingerprint")
_ASKED = ("key", "tool", "tenant", "customer", "run", "task", "step", "agent", "role", *_TERMS)
