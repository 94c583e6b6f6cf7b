"""Orders, asks and a scripted payment provider for the money layer's tests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from siafu.apps.support.shop import schema as shop_schema
from siafu.apps.support.shop.money.payments import Call, Capabilities, Declined, NotSent, Outcome, Paid, Unclear
from siafu.apps.support.shop.money.policy import NO_RULES, RefundPolicy
from siafu.apps.support.shop.money.records import RefundAsk, RefundDone, RefundOutcome
from siafu.apps.support.shop.money.refunds import Refunds
from siafu.apps.support.shop.money.schema import MIGRATIONS, SCHEMA
from siafu.apps.support.shop.orders import Currency, Item, Order, Status, money_text
from siafu.apps.support.shop.refusal import Refusal
from siafu.pace.clock import SystemClock
from siafu.store.database import Database, Transaction

IDEMPOTENT, LOOKUP, NEITHER = Capabilities(True, True), Capabilities(False, True), Capabilities(False, False)
KEYS_ONLY = Capabilities(True, False)
MODES = {"idempotent": IDEMPOTENT, "lookup": LOOKUP, "neither": NEITHER}
LEASE = 1.0  # of the processes that are killed and stopped


def open_db(url: str) -> Database:
    """The shop's tables, then the money's, as the shop opens them."""
    Database(url, shop_schema.MIGRATIONS, what="the shop's database", schema="shop").close()
    return Database(url, MIGRATIONS, what="the shop's database", schema=SCHEMA)


def order(
    order_id: str = "1001", total: int = 10_000, *, status: Status = "paid", currency: Currency = "KRW", **more: Any
) -> Order:
    item = Item(sku="SKU-2005", name_ko="무선 마우스", name_en="Mouse", quantity=1, unit_price_minor=total)
    fields: dict[str, Any] = {
        "order_id": order_id,
        "status": status,
        "status_ko": "결제완료",
        "currency": currency,
        "total_minor": total,
        "total_text": money_text(total, currency),
        "items": [item],
        "ordered_at": "2026-11-01T00:00:00+00:00",
        "shipped_at": None,
        "delivered_at": None,
        "expected_on": None,
        "carrier": None,
        "tracking_number": None,
    }
    return Order(**{**fields, **more})


def ask(key: str = "1", amount: int | None = None, **more: Any) -> RefundAsk:
    """An ask of kim's for an order of 10,000 won. `key`: a short name; "" = a bare client."""
    fields: dict[str, Any] = {
        "tenant": "",
        "customer": "kim",
        "order": order(),
        "amount_minor": amount,
        "key": f"rr:{key:0>36}" if key else "",
        "actor": "agent:refund",
        "run": "r",
        "task": key,
    }
    return RefundAsk(**{**fields, **more})


class Bank:
    """A provider in this process, which pays whatever it is told. `script`: what happens to the next calls, by name:
    paid, lost (paid, no answer), before (not paid, no answer), error (a 500, not paid), invalid (a 400, not paid),
    declined, unsent; when it is used up: paid.
    """

    def __init__(self, can: Capabilities = IDEMPOTENT, script: Iterable[str] = (), name: str = "payments") -> None:
        self.can, self.script = msgspec.structs.replace(can, name=name), list(script)
        self.paid: list[Paid] = []
        self.calls: list[Call] = []
        self.lookups = 0
        self.blind = False  # lookups are not answered
        self.gate: asyncio.Event | None = None  # the next call waits for it
        self.arrived = asyncio.Event()
        self.on_call: Callable[[Call], None] | None = None
        self._known: dict[str, Paid] = {}

    async def capabilities(self, *, fresh: bool = False) -> Capabilities:
        return self.can

    async def refund(self, call: Call, seconds: float) -> Outcome:
        self.arrived.set()
        if self.on_call is not None:
            self.on_call(call)
        what = self.script.pop(0) if self.script else "paid"
        if what == "unsent":
            return NotSent("no connection")
        self.calls.append(call)
        gate, self.gate = self.gate, None
        if gate is not None:
            try:
                async with asyncio.timeout(seconds):
                    await gate.wait()
            except TimeoutError:
                return Unclear("timeout")
        else:
            await asyncio.sleep(0)
        if what == "invalid":
            return Declined("invalid_request", at_all=False)
        if what == "declined":
            return Declined("card_expired")
        if what == "before":
            return Unclear("reset")
        if what == "error":
            return Unclear("HTTP 500", answered=True)
        if self.can.idempotency and call.key in self._known:
            return self._known[call.key]
        name = f"re_{len(self.paid) + 1}"
        made = Paid(id=name, payment=call.payment, amount=call.amount, currency=call.currency, reference=call.key)
        self._known.setdefault(call.key, made)
        self.paid.append(made)
        return Unclear("reset") if what == "lost" else made

    async def find(self, call: Call, seconds: float) -> Paid | Unclear | NotSent | None:
        self.lookups += 1
        return Unclear("reset") if self.blind else self._known.get(call.key)

    @property
    def total(self) -> int:
        return sum(made.amount for made in self.paid)

    @property
    def dispatches(self) -> Counter[str]:
        """How often each intent was sent."""
        return Counter(call.key for call in self.calls)


def shop(
    db: Database,
    bank: Any,
    policy: RefundPolicy = NO_RULES,
    *,
    owner: str = "a",
    lease: float = 30.0,
    clock: Any = None,
) -> Refunds:
    return Refunds(db, bank, policy, clock=clock or SystemClock(), owner=owner, lease=lease)


def code(outcome: RefundOutcome) -> str:
    return outcome.code if isinstance(outcome, Refusal) else "ok"


def done(outcome: RefundOutcome) -> RefundDone:
    assert isinstance(outcome, RefundDone), outcome
    return outcome


def books(db: Database, order_id: str = "1001") -> tuple[int, int]:
    """(refunded, reserved) of an order."""
    row = db.transact(lambda tx: tx.row("SELECT * FROM payment WHERE order_id = :id", id=order_id))
    return (row["refunded_minor"], row["reserved_minor"]) if row else (0, 0)


def intents(db: Database) -> list[Any]:
    return db.transact(lambda tx: tx.rows("SELECT * FROM refund_intent ORDER BY created_at, refund_id"))


def states(db: Database) -> Counter[str]:
    return Counter(row["state"] for row in intents(db))


def events(db: Database) -> list[str]:
    return [row["kind"] for row in db.transact(lambda tx: tx.rows("SELECT kind FROM refund_event ORDER BY at, seq"))]


def let_time_pass(db: Database) -> None:
    """As if every lease and pause were over."""
    db.transact(
        lambda tx: tx.change(
            "UPDATE refund_intent SET lease_until = lease_until - 9e6, next_attempt_at = next_attempt_at - 9e6"
        )
    )


def let_days_pass(db: Database, days: float) -> None:
    """As if the database's clock went on by so much: everything that is stored is so much older."""
    times = {
        "refund_intent": ("created_at", "updated_at", "lease_until", "next_attempt_at", "first_dispatch_at"),
        "approval": ("created_at", "expires_at", "decided_at"),
    }

    def age(tx: Transaction) -> None:
        for table, columns in times.items():
            older = ", ".join(f"{column} = {column} - :seconds" for column in columns)
            tx.change(f"UPDATE {table} SET {older}", seconds=days * 86_400)

    db.transact(age)
