"""The rows that the transactions of the money layer share."""

from __future__ import annotations

from typing import Any

from siafu.apps.support.shop.money.records import Intent, OrderMoney, State, Told
from siafu.apps.support.shop.refusal import Refusal
from siafu.border.canonical import dumps
from siafu.store.database import Transaction

LEFT = "waits_for_its_provider"  # the event of `left`
# When the lease or the pause ends that a refund waits for; NULL = it has neither.
UNTIL = "CASE WHEN lease_until > coalesce(next_attempt_at, 0.0) THEN lease_until ELSE next_attempt_at END"
_STORED = ", ".join(name for name in Intent.__struct_fields__ if name not in ("questions", "now"))
INTENT = (
    f"SELECT {_STORED}, (SELECT approval.reason FROM approval WHERE approval.id = approval_id) AS questions, "  # noqa: S608
    "{now} AS now FROM refund_intent "
)


def intent(tx: Transaction, refund_id: str, *, lock: bool = False) -> Intent:
    """The refund, which exists: none is ever deleted. `lock`: nobody else changes it before this transaction ends."""
    return Intent(**tx.rows(INTENT + "WHERE refund_id = :id" + (" {for_update}" if lock else ""), id=refund_id)[0])


def by_key(tx: Transaction, tenant: str, key: str) -> list[Intent]:
    """The refund of this key, locked; empty when there is none."""
    found = tx.rows(INTENT + "WHERE tenant_id = :tenant AND idem_key = :key {for_update}", tenant=tenant, key=key)
    return [Intent(**row) for row in found]


def left(tx: Transaction, found: Intent) -> bool:
    """Whether it is noted that its end is left to a provider that is not there, and nothing has happened since."""
    newest = tx.row("SELECT kind FROM refund_event WHERE refund_id = :id ORDER BY seq DESC LIMIT 1", id=found.refund_id)
    return found.state == "unknown" and newest is not None and newest["kind"] == LEFT


def money(tx: Transaction, tenant: str, payment_id: str) -> OrderMoney | None:
    """None when no refund was ever asked for on this payment."""
    row = tx.row(
        """SELECT captured_minor, refunded_minor, reserved_minor, count(refund_id) AS refunds,
               max(refund_intent.updated_at) AS refunded_at
           FROM payment LEFT JOIN refund_intent ON refund_intent.tenant_id = payment.tenant_id
               AND refund_intent.payment_id = payment.payment_id AND state = 'succeeded'
           WHERE payment.tenant_id = :tenant AND payment.payment_id = :payment
           GROUP BY captured_minor, refunded_minor, reserved_minor""",
        tenant=tenant,
        payment=payment_id,
    )
    return OrderMoney(**row) if row else None


def told(tx: Transaction, state: State | None = None) -> list[Told]:
    """All refunds of this state (None = all), oldest first."""
    found = tx.rows(
        f"""SELECT refund_id, tenant_id, customer, order_id, amount_minor, currency, state, attempts, psp AS provider,
               psp_key AS reference, psp_refund_id AS paid_as, approval_id, created_at, updated_at,
               CASE WHEN state = 'pending_approval' THEN
                       (SELECT expires_at FROM approval WHERE approval.id = refund.approval_id)
                   ELSE {UNTIL} END AS until,
               (SELECT kind || ' ' || data FROM refund_event AS event WHERE event.refund_id = refund.refund_id
                ORDER BY seq DESC LIMIT 1) AS last
           FROM refund_intent AS refund WHERE :state = '' OR state = :state
           ORDER BY created_at, refund_id""",  # noqa: S608 - the words are ours
        state=state or "",
    )
    return [Told(**row) for row in found]


def note(tx: Transaction, found: Intent, kind: str, **data: Any) -> None:
    """Append to the refund's history, which nobody can change. The caller has locked or just made the intent."""
    tx.change(
        """INSERT INTO refund_event (refund_id, seq, epoch, kind, at, data)
           SELECT :id, coalesce(max(seq), 0) + 1, :epoch, :kind, {now}, :data FROM refund_event
           WHERE refund_id = :id""",
        id=found.refund_id,
        epoch=found.lease_epoch,
        kind=kind,
        data=dumps(data).decode(),
    )


def end(tx: Transaction, found: Intent, state: State, refusal: Refusal, **data: Any) -> None:
    """Final, and no money was moved: the reservation is free again. The caller has the intent locked."""
    tx.change(
        """UPDATE refund_intent SET state = :state, response = :response, lease_until = NULL, next_attempt_at = NULL,
           updated_at = {now} WHERE refund_id = :id""",
        state=state,
        response=dumps(refusal).decode(),
        id=found.refund_id,
    )
    tx.change(
        """UPDATE payment SET reserved_minor = reserved_minor - :amount
           WHERE tenant_id = :tenant AND payment_id = :payment""",
        amount=found.amount_minor,
        tenant=found.tenant_id,
        payment=found.payment_id,
    )
    note(tx, found, state, **data)
