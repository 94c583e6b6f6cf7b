"""The money's transactions, each one call of `Database.run`: claim, take, settle. No network, no waiting.

What keeps them right under any interleaving: a key is unique, a reservation is one conditional UPDATE under a CHECK,
a lease is compare-and-set on the epoch that was seen, and only the newest epoch may settle.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias
from uuid import uuid4

import msgspec

from siafu.apps.support.shop import brakes
from siafu.apps.support.shop.money import answers, approvals
from siafu.apps.support.shop.money.keys import asked_print, effect_print
from siafu.apps.support.shop.money.payments import Call, Declined, NotSent, Paid, Unclear
from siafu.apps.support.shop.money.policy import History, RefundPolicy, questions, refused
from siafu.apps.support.shop.money.records import TOOL, WITHOUT_EFFECT, Intent, OrderMoney, RefundAsk
from siafu.apps.support.shop.orders import Order
from siafu.apps.support.shop.refusal import Refusal
from siafu.border.canonical import dumps
from siafu.errors import Conflict
from siafu.store.database import Transaction

_COLUMNS = ", ".join(name for name in Intent.__struct_fields__ if name not in ("order_id", "psp_payment_ref", "now"))
_INTENT = (
    f"SELECT {', '.join('i.' + name for name in _COLUMNS.split(', '))}, order_id, psp_payment_ref, {{now}} AS now "  # noqa: S608
    "FROM refund_intent i JOIN payment p ON p.tenant_id = i.tenant_id AND p.payment_id = i.payment_id "
)
_LOCK = "{for_update}"
_OPEN = "state IN ('reserved', 'dispatching', 'unknown')"
_DAY = 86_400


class Refused(Exception):
    """Ends a transaction that must leave nothing behind. `refusal`: the answer."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal


class Again(msgspec.Struct, frozen=True):
    """Still unknown: look into it in `seconds`."""

    why: str
    seconds: float


class Review(msgspec.Struct, frozen=True):
    """Only a person can find out."""

    why: str


End: TypeAlias = Paid | Declined | NotSent | Again | Review


class Claimed(msgspec.Struct, frozen=True):
    """first: this call made the intent. Otherwise it was there, and is only carried on when it is due."""

    intent: Intent
    first: bool
