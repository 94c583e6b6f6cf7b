"""What agents hand over to people: one ticket a call, kept until somebody closes it."""

from __future__ import annotations

import secrets
from typing import Literal

import msgspec

from siafu.apps.support.shop import brakes
from siafu.apps.support.shop.refusal import Refusal
from siafu.border.canonical import fingerprint
from siafu.store.database import Transaction

TicketState = Literal["open", "closed"]


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """A matter for a person."""

    ticket_id: str
    state: TicketState
    subject: str


class Matter(Ticket, frozen=True, kw_only=True):
    """A ticket as the shop's people see it. Times: seconds since 1970."""

    tenant_id: str
    customer: str
    summary: str
    opened_at: float
    closed_at: float | None


def open_ticket(
    tx: Transaction, tenant: str, customer: str, subject: str, summary: str, key: str = ""
) -> Ticket | Refusal:
    """Open a ticket. The same `key` gets the same ticket, whatever it says; without one ("") an open ticket of the
    customer with the same words is taken for this one.
    """
    made = Ticket(ticket_id=f"tkt-{secrets.token_hex(8)}", state="open", subject=subject)
    who = {"tenant": tenant, "customer": customer, "key": key, "text": fingerprint([subject, summary])}
    if tx.change(
        """INSERT INTO ticket (ticket_id, tenant_id, customer, effect_key, subject, summary, text_sha256, state,
           opened_at) VALUES (:id, :tenant, :customer, :key, :subject, :summary, :text, 'open', {now})
           ON CONFLICT DO NOTHING""",
        **who,
        id=made.ticket_id,
        subject=subject,
        summary=summary,
    ):
        refusal = brakes.take(tx, "open_ticket", tenant, {"calls": 1})
        if refusal:
            tx.change("DELETE FROM ticket WHERE ticket_id = :id", id=made.ticket_id)
        return refusal or made
    found = tx.rows(
        """SELECT ticket_id, state, subject FROM ticket WHERE tenant_id = :tenant AND customer = :customer
           AND effect_key = :key AND (effect_key <> '' OR text_sha256 = :text) ORDER BY opened_at DESC""",
        **who,
    )
    return Ticket(**found[0])


def close_ticket(tx: Transaction, ticket_id: str) -> bool:
    """Close an open ticket; False when there is none with this number."""
    sql = "UPDATE ticket SET state = 'closed', closed_at = {now} WHERE ticket_id = :id AND state = 'open'"
    return tx.change(sql, id=ticket_id) > 0


def tickets(tx: Transaction, state: TicketState | None = None) -> list[Matter]:
    """All of this state (None = all), oldest first."""
    rows = tx.rows(
        """SELECT ticket_id, state, subject, tenant_id, customer, summary, opened_at, closed_at FROM ticket
           WHERE :state = '' OR state = :state ORDER BY opened_at, ticket_id""",
        state=state or "",
    )
    return [Matter(**row) for row in rows]
