"""Pieces set aside for a customer: never more than there are, and each reservation once a key.

A reservation is held until it is released. Whoever changes a product's stock holds its row first, so that what was
looked at is still true when it is changed.
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

import msgspec

from siafu.apps.support.shop import brakes
from siafu.apps.support.shop.refusal import Refusal
from siafu.store.database import Transaction

MOST_PIECES = 100  # in one reservation
ReservationId = Annotated[
    str,
    msgspec.Meta(pattern="^rsv-[0-9a-f]{16}$", description="Reservation number (예약번호), as reserve_stock gave it."),
]


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Pieces of one product set aside; `held` until they are given back."""

    reservation_id: str
    sku: str
    quantity: int
    state: Literal["held", "released"]


class Held(Reservation, frozen=True, kw_only=True):
    """A reservation as the shop's people see it. Times: seconds since 1970."""

    tenant_id: str
    customer: str
    reserved_at: float
    released_at: float | None


_RESERVATION = "SELECT reservation_id, sku, quantity, state FROM stock_reservation WHERE "
_BY_KEY = _RESERVATION + "tenant_id = :tenant AND customer = :customer AND effect_key = :key"
_ALIKE = _BY_KEY + " AND sku = :sku AND quantity = :quantity AND state = 'held'"


def reserve(
    tx: Transaction, tenant: str, customer: str, sku: str, quantity: int, key: str = ""
) -> Reservation | Refusal:
    """Set pieces aside. The same `key` gets the same reservation, also after it was released; without one ("") a held
    reservation of as many pieces of the same product is taken for this one.
    """
    product = tx.row("SELECT stock FROM product WHERE sku = :sku {for_update}", sku=sku)
    if product is None:
        return sku_not_found()
    asked: dict[str, Any] = {"tenant": tenant, "customer": customer, "key": key, "sku": sku, "quantity": quantity}
    known = tx.row(_BY_KEY, tenant=tenant, customer=customer, key=key) if key else tx.row(_ALIKE, **asked)
    if known:
        found = Reservation(**known)
        return found if (found.sku, found.quantity) == (sku, quantity) else _reused(found)
    if product["stock"] < quantity:
        return Refusal(code="insufficient_stock", message=f"Only {product['stock']} of {sku} are left.")
    if refusal := brakes.take(tx, "reserve_stock", tenant, {"calls": 1}):
        return refusal
    made = Reservation(reservation_id=f"rsv-{secrets.token_hex(8)}", sku=sku, quantity=quantity, state="held")
    tx.change("UPDATE product SET stock = stock - :quantity WHERE sku = :sku", sku=sku, quantity=quantity)
    tx.change(
        """INSERT INTO stock_reservation (reservation_id, tenant_id, customer, effect_key, sku, quantity, state,
           reserved_at) VALUES (:id, :tenant, :customer, :key, :sku, :quantity, 'held', {now})""",
        id=made.reservation_id,
        **asked,
    )
    return made


def release(tx: Transaction, tenant: str, customer: str, reservation_id: str) -> Reservation | Refusal:
    """Give a customer's reserved pieces back; one that was released already stays so, and nothing is given twice."""
    mine = {"id": reservation_id, "tenant": tenant, "customer": customer}
    row = tx.row(_RESERVATION + "reservation_id = :id AND tenant_id = :tenant AND customer = :customer", **mine)
    if row is None:
        return Refusal(
            code="reservation_not_found",
            message="This customer has no reservation with that number. Use the one that reserve_stock gave.",
        )
    give_back(tx, reservation_id)
    return msgspec.structs.replace(Reservation(**row), state="released")


def give_back(tx: Transaction, reservation_id: str) -> bool:
    """Release a reservation, whoever holds it; False when no such one is held."""
    row = tx.row("SELECT sku, quantity FROM stock_reservation WHERE reservation_id = :id", id=reservation_id)
    if row is None:
        return False
    tx.row("SELECT 1 FROM product WHERE sku = :sku {for_update}", sku=row["sku"])
    held = """UPDATE stock_reservation SET state = 'released', released_at = {now}
              WHERE reservation_id = :id AND state = 'held'"""
    if not tx.change(held, id=reservation_id):
        return False
    tx.change("UPDATE product SET stock = stock + :more WHERE sku = :sku", sku=row["sku"], more=row["quantity"])
    return True


def reservations(tx: Transaction, state: str | None = None) -> list[Held]:
    """All of this state (None = all), oldest first."""
    rows = tx.rows(
        """SELECT reservation_id, tenant_id, customer, sku, quantity, state, reserved_at, released_at
           FROM stock_reservation WHERE :state = '' OR state = :state ORDER BY reserved_at, reservation_id""",
        state=state or "",
    )
    return [Held(**row) for row in rows]


def sku_not_found() -> Refusal:
    """The answer about a product that does not exist."""
    return Refusal(
        code="sku_not_found",
        message="There is no product with that SKU. Find the right SKU with search_products.",
    )


def _reused(first: Reservation) -> Refusal:
    return Refusal(
        code="idempotency_key_reused",
        message=f"This call already reserved {first.quantity} of {first.sku} as {first.reservation_id}, which is "
        f"{first.state}. One call, one reservation.",
    )
