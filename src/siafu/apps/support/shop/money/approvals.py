"""Refunds that a person decides. A decision binds the exact arguments, expires, and is used once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from uuid import uuid4

from siafu.apps.support.shop.money import answers, rows
from siafu.apps.support.shop.money.records import TOOL, Intent
from siafu.apps.support.shop.refusal import GivenUp
from siafu.border.canonical import canonical
from siafu.border.text import clean, preview
from siafu.errors import InputError
from siafu.store.approval import Approval, ApprovalState
from siafu.store.database import Database, Transaction
from siafu.store.effect_people import checked_person

_ALL = f"SELECT {', '.join(Approval.__struct_fields__)} FROM approval "  # noqa: S608
_ONE = _ALL + "WHERE id = :id"


def bound(found: Intent) -> str:
    """The arguments that a decision binds, as canonical JSON."""
    names = ("refund_id", "order_id", "payment_id", "amount_minor", "currency", "customer")
    return canonical({"tenant": found.tenant_id, **{name: getattr(found, name) for name in names}}).decode()


def ask_a_person(tx: Transaction, found: Intent, reasons: Sequence[str], hours: float) -> None:
    """Put the decision on the desk. The intent was made in this transaction."""
    approval_id, arguments = f"ra-{uuid4().hex[:12]}", bound(found)
    tx.change(
        """INSERT INTO approval (id, refund_id, tool, arguments, arguments_sha256, requester, actor, reason, state,
               created_at, expires_at)
           VALUES (:id, :refund, :tool, :arguments, :sha, :requester, :actor, :reason, 'pending', {now},
               {now} + :kept)""",
        id=approval_id,
        refund=found.refund_id,
        tool=TOOL,
        reason=", ".join(reasons),
        arguments=arguments,
        sha=_sha256(arguments),
        requester=found.customer,
        actor=found.actor,
        kept=hours * 3600,
    )
    tx.change(
        "UPDATE refund_intent SET approval_id = :approval WHERE refund_id = :id",
        approval=approval_id,
        id=found.refund_id,
    )


def use(tx: Transaction, found: Intent) -> bool:
    """Whether what runs now is what a person approved; the decision is used up by it."""
    return (
        found.approval_id is None
        or tx.change(
            """UPDATE approval SET state = 'used' WHERE id = :id AND refund_id = :refund
           AND state IN ('approved', 'used') AND arguments_sha256 = :sha""",
            id=found.approval_id,
            refund=found.refund_id,
            sha=_sha256(bound(found)),
        )
        == 1
    )


def expire(tx: Transaction) -> list[Intent]:
    """Give up what `lapse` gives up; returns the refunds as they are now."""
    late = tx.rows(
        """SELECT refund_intent.refund_id FROM refund_intent JOIN approval ON approval.id = approval_id
           WHERE approval_id IS NOT NULL AND refund_intent.state IN ('pending_approval', 'reserved')
           AND expires_at <= {now} ORDER BY 1"""
    )
    ids = [row["refund_id"] for row in late if lapse(tx, rows.intent(tx, row["refund_id"], lock=True))]
    return [rows.intent(tx, refund_id) for refund_id in ids]


def lapse(tx: Transaction, found: Intent) -> bool:
    """Give up a refund whose approval came too late, or was given and not used in time, and free its money. One that
    may have been sent goes on. The caller has the intent locked. True: it is given up now.
    """
    if found.state not in ("pending_approval", "reserved") or not tx.change(
        "UPDATE approval SET state = 'expired' WHERE id = :id AND expires_at <= {now}", id=found.approval_id
    ):
        return False
    why: GivenUp = "expired" if found.state == "pending_approval" else "not_carried_out"
    rows.end(tx, found, "cancelled", answers.given_up(why), why=why)
    return True


class ShopApprovals:
    """The shop's desk (an `ApprovalDesk`): refunds that the policy leaves to a person.

    An approved refund is carried out by the completer, or by the next call with its key, until the approval expires.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    async def approvals(self, state: ApprovalState | None = None) -> list[Approval]:
        """All of this state (None = all), oldest first."""
        await self._db.run(expire)
        found = await self._db.run(
            lambda tx: tx.rows(_ALL + "WHERE state = :state OR :state = '' ORDER BY created_at, id", state=state or "")
        )
        return [Approval(**row) for row in found]

    async def approval(self, approval_id: str) -> Approval | None:
        await self._db.run(expire)
        return await self._db.run(lambda tx: _approval(tx, approval_id))

    async def decide(self, approval_id: str, *, approve: bool, by: str, note: str = "") -> Approval:
        """Record a person's decision; returns the approval as it is now.

        Raises: InputError when it is unknown, already decided, expired, or `by` is the requester, the agent that asked
        for it or any other agent.
        """
        who = checked_person(by)
        await self._db.run(expire)
        return await self._db.run(lambda tx: decide_now(tx, approval_id, approve=approve, by=who, note=clean(note)))


def _approval(tx: Transaction, approval_id: str) -> Approval | None:
    row = tx.row(_ONE, id=approval_id)
    return Approval(**row) if row else None


def decide_now(tx: Transaction, approval_id: str, *, approve: bool, by: str, note: str) -> Approval:
    """`ShopApprovals.decide` in a transaction. Raises: InputError."""
    row = tx.row("SELECT refund_id, requester, actor FROM approval WHERE id = :id", id=approval_id)
    if row is None:
        raise InputError(f"there is no approval {preview(approval_id, 40)!r}; see: siafu approvals list")
    by = checked_person(by, row["requester"], row["actor"])
    found = rows.intent(tx, row["refund_id"], lock=True)  # before the approval, in the order of all others
    if not tx.change(
        """UPDATE approval SET state = :state, decided_by = :by, decided_at = {now}, note = :note
           WHERE id = :id AND state = 'pending' AND expires_at > {now}""",
        state="approved" if approve else "denied",
        by=by,
        note=note,
        id=approval_id,
    ):
        now = _approval(tx, approval_id)
        raise InputError(
            f"approval {approval_id} is {now.state if now and now.state != 'pending' else 'expired'} already"
        )
    if approve:
        tx.change(
            """UPDATE refund_intent SET state = 'reserved', next_attempt_at = NULL, updated_at = {now}
               WHERE refund_id = :id AND state = 'pending_approval'""",
            id=found.refund_id,
        )
        rows.note(tx, found, "approved", by=by, approval=approval_id)
    else:
        rows.end(tx, found, "rejected", answers.given_up("denied"), by=by, approval=approval_id)
    return Approval(**tx.rows(_ONE, id=approval_id)[0])


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
