"""What people do about effects: decide, switch tools off and on, accept a changed tool, settle what nobody knows."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

import msgspec

from siafu.border.text import clean
from siafu.errors import InputError
from siafu.store.approval import Approval, ApprovalState
from siafu.store.database import Database, Transaction
from siafu.store.effect_records import AuditLine, Effect, EffectState
from siafu.store.effects import as_approval, audit, load, now, release

AGENT = "agent:"  # how the name of a requester that is no person begins
MAX_NAME, MAX_NOTE = 200, 2000


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that is switched off; an empty tool or tenant means every one. at: seconds since 1970."""

    tool: str
    tenant: str
    person: str
    reason: str
    at: float


class KnownTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool under the contract. definition: what was accepted, as canonical JSON; offered: another one that its server
    has come up with since and that nobody has accepted, None = there is none.
    """

    tool: str
    definition: str
    person: str
    at: float
    offered: str | None


class EffectPeople:
    """The people's side of an EffectStore's database; an ApprovalDesk too. All methods raise StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ---- approvals -------------------------------------------------------------------------------------------------

    async def approvals(self, state: ApprovalState | None = None) -> list[Approval]:
        """As `ApprovalDesk.approvals`."""

        def read(transaction: Transaction) -> list[Approval]:
            at = now(transaction)
            rows = transaction.rows("SELECT * FROM effect_approval ORDER BY created_at, id")
            return [as_approval(row, at) for row in rows]

        found = await self._database.run(read)
        return [each for each in found if state in (None, each.state)]

    async def approval(self, approval_id: str) -> Approval | None:
        return next((each for each in await self.approvals() if each.id == approval_id), None)

    async def decide(self, approval_id: str, *, approve: bool, by: str, note: str = "") -> Approval:
        """As `ApprovalDesk.decide`. What was approved is done when it is asked for again: run the same command."""
        return await self._database.run(lambda transaction: _decide(transaction, approval_id, approve, by, note))

    # ---- effects ---------------------------------------------------------------------------------------------------

    async def effects(self, state: EffectState | None = None, limit: int = 1000) -> list[Effect]:
        """The newest `limit` of this state (None = all), oldest first."""
        rows = await self._rows(
            "SELECT * FROM effect WHERE state = :state OR :all = 1 ORDER BY created_at DESC, id LIMIT :limit",
            state=state or "",
            all=int(state is None),
            limit=limit,
        )
        return [msgspec.convert(row, Effect) for row in reversed(rows)]

    async def history(self, effect: str | None = None, limit: int = 1000) -> list[AuditLine]:
        """The newest `limit` lines of the audit, of one effect (None = all), oldest first."""
        rows = await self._rows(
            "SELECT * FROM effect_audit WHERE effect = :effect OR :all = 1 ORDER BY id DESC LIMIT :limit",
            effect=effect or "",
            all=int(effect is None),
            limit=limit,
        )
        return [msgspec.convert(row, AuditLine) for row in reversed(rows)]

    async def resolve(self, effect_id: str, *, done: bool, by: str, result: str, note: str = "") -> Effect:
        """A person has looked: it happened (`result`, JSON, is then its answer), or it did not and may be asked for
        anew. Whoever still held a lease is fenced off.

        Raises: InputError when it is unknown, decided, being called just now, or `by` asked for it.
        """
        return await self._database.run(lambda transaction: _resolve(transaction, effect_id, done, by, result, note))

    async def heard(self, effect_id: str, *, by: str, result: str | None) -> None:
        """Its tool, which kept it for a person (`waiting`), is known to have done it (`result`, JSON, is then its
        answer) or, None, not to. by: who says so. Nothing changes when it waits no longer.
        """

        def settle(transaction: Transaction) -> None:
            effect = load(transaction, "id = :id", id=effect_id)
            if effect is not None and effect.state == "waiting":
                _settle(transaction, effect, by, result, "", now(transaction))

        await self._database.run(settle)

    # ---- tools -----------------------------------------------------------------------------------------------------

    async def switches(self) -> list[Switch]:
        """What is switched off."""
        rows = await self._rows("SELECT * FROM effect_switch ORDER BY tool, tenant")
        return [msgspec.convert(row, Switch) for row in rows]

    async def switch(self, tool: str, tenant: str, *, on: bool, by: str, reason: str = "") -> bool:
        """Switch a tool off or on for a tenant; empty = every one. From its return on nothing new is sent. Returns
        whether that changed anything.

        Raises: InputError when `by` is no person's name.
        """
        person = checked_person(by)
        sql = (
            "DELETE FROM effect_switch WHERE tool = :tool AND tenant = :tenant"
            if on
            else "INSERT INTO effect_switch (tool, tenant, person, reason, at) "
            "VALUES (:tool, :tenant, :person, :reason, {now}) ON CONFLICT (tool, tenant) DO NOTHING"
        )

        def change(transaction: Transaction) -> bool:
            values = {} if on else {"person": person, "reason": _note(reason)}
            changed = transaction.change(sql, tool=clean(tool), tenant=clean(tenant), **values)
            if changed:
                kind = "switched_on" if on else "switched_off"
                audit(transaction, kind, actor=person, tool=tool, tenant=tenant, data={"reason": reason})
            return bool(changed)

        return await self._database.run(change)

    async def tools(self) -> list[KnownTool]:
        """The tools that have been used, or listed, under the contract."""
        return [msgspec.convert(row, KnownTool) for row in await self._rows("SELECT * FROM effect_tool ORDER BY tool")]

    async def accept(self, tool: str, *, by: str, definition: str | None = None) -> KnownTool:
        """Let a changed tool act as its server now defines it. definition: the one that `by` has seen; None = whichever
        it is.

        Raises: InputError when there is no change to accept, or it has changed again.
        """
        person = checked_person(by)

        def change(transaction: Transaction) -> KnownTool:
            changed = transaction.row(
                "UPDATE effect_tool SET definition = offered, offered = NULL, person = :person, at = {now} "
                "WHERE tool = :tool AND offered = COALESCE(:definition, offered) RETURNING *",
                tool=tool,
                person=person,
                definition=definition,
            )
            if changed is None:
                raise InputError(f"{clean(tool)[:100]} has no such change to accept; see: siafu effects tools")
            audit(transaction, "tool_accepted", actor=person, tool=tool, data={"definition": changed["definition"]})
            return msgspec.convert(changed, KnownTool)

        return await self._database.run(change)

    async def _rows(self, sql: str, **values: Any) -> list[Mapping[str, Any]]:
        return await self._database.run(lambda transaction: transaction.rows(sql, **values))


def checked_person(by: str, *requesters: str) -> str:
    """The name of a person who may decide. Two spellings of one name are one person.

    Raises: InputError when it is empty, an agent's, or one of the requesters'.
    """
    name = clean(by).strip()
    if not _plain(name) or len(name) > MAX_NAME:
        raise InputError(f"a decision needs the name of a person, of 1 to {MAX_NAME} characters")
    if _plain(name).startswith(AGENT):
        raise InputError("agents decide nothing: it takes a person")
    if _plain(name) in {_plain(requester) for requester in requesters}:
        raise InputError(f"{name} asked for it, and so may not decide on it: somebody else has to")
    return name


def _plain(name: str) -> str:
    """Without case, width, spaces and signs that cannot be seen (category Cf, such as a zero-width space)."""
    shown = (sign for sign in name if unicodedata.category(sign) != "Cf")
    return "".join(unicodedata.normalize("NFKC", "".join(shown)).casefold().split())


def _note(text: str) -> str:
    return clean(text)[:MAX_NOTE]


def _decide(transaction: Transaction, approval_id: str, approve: bool, by: str, note: str) -> Approval:
    effect = load(transaction, "approval_id = :id", id=approval_id)
    row = transaction.row("SELECT * FROM effect_approval WHERE id = :id {for_update}", id=approval_id)
    if row is None:
        raise InputError(f"there is no approval {clean(approval_id)[:60]!r}; see: siafu approvals list")
    at = now(transaction)
    approval = as_approval(row, at)
    person = checked_person(by, approval.requester)
    if approval.state != "pending" or effect is None:
        raise InputError(f"this approval is not open any more; its state is {approval.state}")
    approval = msgspec.structs.replace(
        approval, state="approved" if approve else "denied", decided_by=person, decided_at=at, note=_note(note)
    )
    transaction.change(
        "UPDATE effect_approval SET state = :state, decided_by = :person, decided_at = :at, note = :note "
        "WHERE id = :id",
        id=approval.id,
        state=approval.state,
        person=person,
        at=at,
        note=approval.note,
    )
    if not approve:
        transaction.change("UPDATE effect SET state = 'denied', updated_at = :at WHERE id = :id", id=effect.id, at=at)
    audit(transaction, approval.state, effect, actor=person, data={"note": approval.note})
    return approval


def _resolve(transaction: Transaction, effect_id: str, done: bool, by: str, result: str, note: str) -> Effect:
    effect = load(transaction, "id = :id", id=effect_id)
    if effect is None:
        raise InputError(f"there is no effect {clean(effect_id)[:60]!r}; see: siafu effects list")
    person = checked_person(by, effect.customer)
    at = now(transaction)
    if effect.lease_until is not None and at < effect.lease_until:
        raise InputError(f"it is being called just now; its lease ends in {effect.lease_until - at:.0f} s")
    if effect.state not in ("manual_review", "unknown", "waiting", "dispatching"):
        raise InputError(f"there is nothing to settle: its state is {effect.state}")
    return _settle(transaction, effect, person, clean(result) if done else None, note, at)


def _settle(transaction: Transaction, effect: Effect, by: str, result: str | None, note: str, at: float) -> Effect:
    done = result is not None
    if not done:
        release(transaction, effect)
    settled = msgspec.structs.replace(
        effect,
        state="succeeded" if done else "refused",
        result=result,
        day=effect.day if done else None,
        epoch=effect.epoch + 1,
        lease_until=None,
        updated_at=at,
    )
    transaction.change(
        "UPDATE effect SET state = :state, result = :result, day = :day, epoch = :epoch, lease_until = NULL, "
        "updated_at = :updated_at WHERE id = :id",
        **{name: getattr(settled, name) for name in ("id", "state", "result", "day", "epoch", "updated_at")},
    )
    kind = "settled_done" if done else "settled_not_done"
    audit(transaction, kind, settled, actor=by, data={"note": _note(note)})
    return settled
