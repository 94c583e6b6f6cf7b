"""The transactions of the money layer in any order, with any of them left out, against a ledger made of plain dicts."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import find, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from siafu.apps.support.shop.money import answers, approvals, rows
from siafu.apps.support.shop.money.books import Again, Books, Claimed, End, Refused, Review, Terms
from siafu.apps.support.shop.money.payments import Capabilities, Declined, Paid
from siafu.apps.support.shop.money.policy import RefundPolicy
from siafu.apps.support.shop.money.records import Intent
from siafu.errors import InputError
from siafu.store.database import Database, Transaction

from .kit import ask, order

TOTAL, CHECKED = 1_000, 600
POLICY = RefundPolicy(
    by_status=False, approval_above={"KRW": CHECKED}, second_refund=False, equal_amount_hours=None, daily_refunds=None
)
KEYS, ORDERS = st.sampled_from("abc"), st.sampled_from(["1", "2"])
AMOUNTS = st.none() | st.sampled_from([1, 300, 600, 601, 1_000, 1_001])
ENDS = st.sampled_from(["paid", "declined", "again", "unsent", "review"])
HELD = ("pending_approval", "reserved", "dispatching", "unknown", "manual_review")
_tenants = itertools.count()


class Entry(msgspec.Struct):
    """What the model knows of one refund. leased: a lease holds; epoch: of the newest."""

    order: str
    amount: int
    state: str
    epoch: int = 0
    attempts: int = 0
    leased: bool = False
    paused: bool = False


class Ledger(RuleBasedStateMachine):
    """Each rule acts on the database and on the model; the answers must agree at once, the sums after every step."""

    db: Database
    kind: type[Books] = Books

    def __init__(self) -> None:
        super().__init__()
        self.tenant = f"t{next(_tenants)}"
        self.books = self.kind(POLICY, owner="a", lease=1000.0)
        self.can = Capabilities(idempotency=True, lookup=True, name=self.tenant)
        self.entries: dict[str, Entry] = {}
        self.ids: dict[str, str] = {}
        self.leases: list[tuple[str, Intent]] = []
        self.paid = itertools.count()

    def left(self, of: str) -> int:
        entries = [entry for entry in self.entries.values() if entry.order == of]
        return TOTAL - sum(entry.amount for entry in entries if entry.state in (*HELD, "succeeded"))

    @rule(key=KEYS, of=ORDERS, amount=AMOUNTS, expected=st.none() | st.sampled_from(["right", "wrong"]))
    def claim(self, key: str, of: str, amount: int | None, expected: Literal["right", "wrong"] | None) -> None:
        left, there = self.left(of), self.entries.get(key)
        seen = None if expected is None else TOTAL - left + (expected == "wrong")
        asked = ask(key, amount, tenant=self.tenant, order=order(of, TOTAL), expected_refunded_minor=seen)
        outcome = self.claimed(asked)
        wanted = left if amount is None else amount
        if there is not None:
            same = there.order == of and amount in (None, there.amount)
            assert outcome == ("found" if same else "idempotency_key_reused")
        elif expected == "wrong" and left:
            assert outcome == "stale_refund_total"
        elif not 0 < wanted <= left:
            assert outcome == "exceeds_refundable"
        else:
            assert outcome == "made"
            self.entries[key] = Entry(of, wanted, "pending_approval" if wanted > CHECKED else "reserved", paused=True)

    def claimed(self, asked: Any) -> str:
        terms = Terms(open=True, today=0.0)
        try:
            found: Claimed = self.db.transact(lambda tx: self.books.claim(tx, asked, terms))
        except Refused as refused:
            return refused.refusal.code
        self.ids[asked.key[-1]] = found.intent.refund_id
        return "made" if found.first else "found"

    def one(self, data: st.DataObject) -> tuple[str, Entry]:
        return data.draw(st.sampled_from(sorted(self.entries.items(), key=lambda item: item[0])))

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), stale=st.sampled_from([False, False, False, True]))
    def take(self, data: st.DataObject, stale: bool) -> None:
        """A lease; `stale`: asked for by somebody who looked before the last one was given."""
        key, entry = self.one(data)
        seen = entry.epoch - (stale and entry.epoch > 0)
        taken = self.db.transact(lambda tx: self.books.take(tx, self.ids[key], seen=seen, can=self.can))
        if entry.state in ("reserved", "dispatching", "unknown") and not entry.leased and seen == entry.epoch:
            assert isinstance(taken, Intent)
            entry.state, entry.leased, entry.epoch, entry.attempts = "dispatching", True, seen + 1, entry.attempts + 1
            assert (taken.lease_epoch, taken.attempts) == (entry.epoch, entry.attempts)
            self.leases.append((key, taken))
        else:
            assert taken is None

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), end=ENDS)
    def settle(self, data: st.DataObject, end: str) -> None:
        """Any lease ever given comes back, also twice, in any order, or never: that is a crash."""
        key, lease = data.draw(st.sampled_from(self.leases))
        entry = self.entries[key]
        kept = self.db.transact(lambda tx: self.books.settle(tx, lease, self.end(end, lease)))
        assert kept == (entry.state == "dispatching" and entry.epoch == lease.lease_epoch)
        if not kept:
            return
        entry.leased, entry.paused = False, end in ("again", "unsent")
        if end == "unsent":
            entry.attempts -= 1
        after = {"paid": "succeeded", "declined": "declined", "review": "manual_review", "again": "unknown"}
        entry.state = after.get(end, "unknown" if entry.attempts else "reserved")

    def end(self, name: str, lease: Intent) -> End:
        if name == "paid":
            return Paid(
                id=f"re_{next(self.paid)}",
                payment="",
                amount=lease.amount_minor,
                currency="KRW",
                reference=lease.psp_key,
            )
        ends: dict[str, End] = {
            "declined": Declined("no"),
            "again": Again("?", 1000.0),
            "unsent": Again("?", 1000.0, sent=False),
            "review": Review("?"),
        }
        return ends[name]

    @rule()
    def time_passes(self) -> None:
        """Leases and pauses end."""
        self.db.transact(
            lambda tx: tx.change(
                """UPDATE refund_intent SET lease_until = lease_until - 9000, next_attempt_at = next_attempt_at - 9000
                   WHERE tenant_id = :tenant""",
                tenant=self.tenant,
            )
        )
        for entry in self.entries.values():
            entry.leased = entry.paused = False

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), what=st.sampled_from(["approve", "deny", "expire"]))
    def decide(self, data: st.DataObject, what: str) -> None:
        key, entry = self.one(data)
        changed = self.decided(key, what)
        unused = what == "expire" and entry.state == "reserved" and entry.amount > CHECKED  # approved, nothing was sent
        assert changed == (entry.state == "pending_approval" or unused)
        if changed:
            entry.state = {"approve": "reserved", "deny": "rejected", "expire": "cancelled"}[what]
            entry.paused = entry.paused and what != "approve"

    def decided(self, key: str, what: str) -> bool:
        refund = self.ids[key]
        if what == "expire":
            sql = """UPDATE approval SET expires_at = {now} WHERE refund_id = (SELECT refund_id FROM refund_intent
                WHERE refund_id = :id AND state IN ('pending_approval', 'reserved'))"""
            self.db.transact(lambda tx: tx.change(sql, id=refund))
            return [each.refund_id for each in self.db.transact(approvals.expire)] == [refund]
        row = self.db.transact(lambda tx: tx.row("SELECT id FROM approval WHERE refund_id = :id", id=refund))
        if row is None:
            return False
        approve, desk = what == "approve", approvals.decide_now
        try:
            self.db.transact(lambda tx: desk(tx, row["id"], approve=approve, by="park", note=""))
        except InputError:
            return False
        return True

    @precondition(lambda self: self.entries)
    @rule(data=st.data(), made=st.booleans())
    def resolve(self, data: st.DataObject, made: bool) -> None:
        key, entry = self.one(data)
        name = f"re_{next(self.paid)}" if made else None
        try:
            self.db.transact(lambda tx: self.books.resolve(tx, self.ids[key], psp_refund_id=name, by="park"))
        except InputError:
            assert entry.state != "manual_review"
            return
        assert entry.state == "manual_review"
        entry.state = "succeeded" if made else "declined"

    @invariant()
    def the_books_agree(self) -> None:
        payments = self.db.transact(
            lambda tx: tx.rows("SELECT * FROM payment WHERE tenant_id = :tenant", tenant=self.tenant)
        )
        for row in payments:
            entries = [entry for entry in self.entries.values() if entry.order == row["order_id"]]
            assert row["refunded_minor"] == sum(e.amount for e in entries if e.state == "succeeded")
            assert row["reserved_minor"] == sum(e.amount for e in entries if e.state in HELD)
        stored = self.db.transact(
            lambda tx: tx.rows("SELECT * FROM refund_intent WHERE tenant_id = :tenant", tenant=self.tenant)
        )
        assert {row["idem_key"][-1]: row["state"] for row in stored} == {
            key: entry.state for key, entry in self.entries.items()
        }

    @invariant()
    def the_completer_sees_what_is_left_over(self) -> None:
        due = self.db.transact(lambda tx: self.books.due(tx, self.can.name, 1_000_000))
        open_ = ("reserved", "dispatching", "unknown")
        expected = {k for k, e in self.entries.items() if e.state in open_ and not e.leased and not e.paused}
        assert {intent.idem_key[-1] for intent in due if intent.tenant_id == self.tenant} == expected


def test_any_order_of_steps_and_crashes(db: Database) -> None:
    machine = type("TheLedger", (Ledger,), {"db": db})
    run_state_machine_as_test(machine, settings=settings(max_examples=20, stateful_step_count=30, deadline=None))


class Hasty(Books):
    """Frees the money of a refund whose end is not known."""

    def _again(self, tx: Transaction, found: Intent, end: Again) -> None:
        rows.end(tx, found, "declined", answers.declined("timeout"))


class Only:
    """Draws the one that there is to choose from."""

    def draw(self, among: Any) -> Any:
        return find(among, lambda _: True)


@pytest.mark.parametrize("kind", [Books, Hasty])
def test_the_model_can_fail(db: Database, kind: type[Books]) -> None:
    """Control: it notices money that is freed although it may have been paid."""
    ledger = type("TheLedger", (Ledger,), {"db": db, "kind": kind})()
    ledger.claim(key="a", of="1", amount=300, expected=None)
    ledger.take(data=Only(), stale=False)
    ledger.settle(data=Only(), end="again")
    if kind is Books:
        ledger.the_books_agree()
        return
    with pytest.raises(AssertionError):
        ledger.the_books_agree()
