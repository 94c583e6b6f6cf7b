"""What makes two calls the same refund: keys from trusted values, never from what a model wrote."""

from __future__ import annotations

from uuid import UUID, uuid5

from siafu.border.canonical import canonical, fingerprint

_NAMESPACE = UUID("5f0c2a0e-98f4-4c5c-8f5e-6a3f0a2d7c11")


def request_key(run: str, request: str, order_id: str) -> str:
    """The key of the one refund that a customer's request may bring on an order. A resumed run gives the same."""
    return f"rr:{uuid5(uuid5(_NAMESPACE, run + chr(0) + request), order_id)}"


def asked_print(customer: str, order_id: str, amount_minor: int | None) -> str:
    """What a client without requests of its own asks for; two such calls in a row are one request."""
    return str(uuid5(_NAMESPACE, canonical([customer, order_id, amount_minor]).decode()))


def effect_print(tenant: str, payment_id: str, amount_minor: int, currency: str) -> str:
    """What a key stands for. The reason and every other free text is left out: a model words it anew each time."""
    return fingerprint([tenant, payment_id, amount_minor, currency])
