"""Single transactions, in the orders that only happen when processes die or sleep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from siafu.apps.support.shop import brakes
from siafu.apps.support.shop.money import rows
from siafu.apps.support.shop.money.books import Again, Books, End, Review, Terms, call_of
from siafu.apps.support.shop.money.payments import Capabilities, Declined, Paid
from siafu.apps.support.shop.money.policy import NO_RULES
from siafu.apps.support.shop.money.records import Intent
from siafu.errors import Conflict, InputError
from siafu.store.database import Database

from .kit import Bank, ask, books, code, done, events, intents, let_time_pass, order, shop, states

BOOKS = Books(NO_RULES, owner="a", lease=60.0)
TERMS = Terms(open=True, today=0.0)
CAN = Capabilities(idempotency=True, lookup=True, name="payments")
PAID = Paid(id="re_1", payment="pay_1001", amount=3_000, currency="KRW", reference="")


def claimed(db: Database) -> Intent:
    return db.transact(lambda tx: BOOKS.claim(tx, ask("1", 3_000), TERMS)).intent


def taken(db: Database, found: Intent) -> Intent:
    lease = db.transact(lambda tx: BOOKS.take(tx, found.refund_id, seen=found.lease_epoch, can=CAN))
    assert isinstance(lease, Intent)
    return lease


def settled(db: Database, lease: Intent, end: End) -> bool:
    return db.transact(lambda tx: BOOKS.settle(tx, lease, end))


@pytest.mark.parametrize("late", [PAID, Declined("no"), Again("?", 1.0), Again("?", 1.0, sent=False), Review("?")])
def test_what_an_old_lease_learned_is_not_kept(db: Database, late: End) -> None:
    """The newer holder is still calling; the older one wakes up first."""
    old = taken(db, claimed(db))
    let_time_pass(db)
    new = taken(db, old)
    assert (old.lease_epoch, new.lease_epoch) == (1, 2)
    assert not settled(db, old, late)
    assert (states(db), books(db)) == ({"dispatching": 1}, (0, 3_000))
    assert settled(db, new, PAID)
    assert not settled(db, new, PAID)
    assert (states(db), books(db)) == ({"succeeded": 1}, (3_000, 0))
    assert events(db) == ["claimed", "dispatching", "dispatching", "fenced", "succeeded", "fenced"]


def test_every_attempt_sends_the_same_call(db: Database) -> None:
    """Providers refuse a key that comes back with another body."""
    first = taken(db, claimed(db))
    let_time_pass(db)
    assert call_of(taken(db, first)) == call_of(first)


def test_one_lease_at_a_time_and_only_on_what_was_seen(db: Database) -> None:
    found = claimed(db)
    lease = taken(db, found)
    for seen in (0, 1, 2):
        assert db.transact(lambda tx, seen=seen: BOOKS.take(tx, found.refund_id, seen=seen, can=CAN)) is None  # type: ignore[misc]
    let_time_pass(db)
    assert db.transact(lambda tx: BOOKS.take(tx, found.refund_id, seen=0, can=CAN)) is None
    assert taken(db, lease).lease_epoch == 2


@pytest.mark.parametrize(
    ("end", "state", "money"),
    [
        (PAID, "succeeded", (3_000, 0)),
        (Declined("no"), "declined", (0, 0)),
        (Again("?", 1.0), "unknown", (0, 3_000)),
        (Again("?", 1.0, sent=False), "reserved", (0, 3_000)),
        (Review("?"), "manual_review", (0, 3_000)),
    ],
)
def test_only_a_definite_end_moves_or_frees_the_money(
    db: Database, end: End, state: str, money: tuple[int, int]
) -> None:
    assert settled(db, taken(db, claimed(db)), end)
    assert (states(db), books(db)) == ({state: 1}, money)


@pytest.mark.parametrize(("made", "state", "money"), [("re_7", "succeeded", (3_000, 0)), (None, "declined", (0, 0))])
def test_a_person_closes_a_refund_under_review(
    db: Database, made: str | None, state: str, money: tuple[int, int]
) -> None:
    found = claimed(db)
    resolve: Callable[[], None] = lambda: db.transact(  # noqa: E731
        lambda tx: BOOKS.resolve(tx, found.refund_id, psp_refund_id=made, by="park")
    )
    with pytest.raises(InputError, match="under review"):
        resolve()
    settled(db, taken(db, found), Review("?"))
    for asker in (found.customer, found.actor, "agent:other"):
        with pytest.raises(InputError):
            db.transact(lambda tx: BOOKS.resolve(tx, found.refund_id, psp_refund_id=made, by=asker))  # noqa: B023
    assert states(db) == {"manual_review": 1}
    resolve()
    assert (states(db), books(db)) == ({state: 1}, money)
    with pytest.raises(InputError):
        resolve()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE payment SET reserved_minor = reserved_minor + 1",
        "UPDATE payment SET refunded_minor = refunded_minor + 1, reserved_minor = -1",
        "UPDATE payment SET refunded_minor = -1",
        "DELETE FROM refund_intent",
        "UPDATE refund_intent SET state = 'succeeded' WHERE psp_refund_id IS NULL",
        "UPDATE refund_intent SET idem_key = 'short'",
        "UPDATE refund_event SET kind = 'succeeded'",
        "DELETE FROM refund_event",
    ],
)
def test_what_the_tables_alone_refuse(db: Database, sql: str) -> None:
    whole = ask("1", 10_000)
    db.transact(lambda tx: BOOKS.claim(tx, whole, TERMS))
    with pytest.raises(Conflict):
        db.transact(lambda tx: tx.change(sql))


def test_sec36_the_history_names_who_and_why(db: Database) -> None:
    lease = taken(db, claimed(db))
    settled(db, lease, PAID)
    found = db.transact(lambda tx: tx.rows("SELECT epoch, kind, data FROM refund_event ORDER BY seq"))
    assert [row["epoch"] for row in found] == [0, 1, 1]
    assert '"actor":"agent:refund"' in found[0]["data"]
    assert '"psp_refund_id":"re_1"' in found[2]["data"]


async def test_sec19_the_kill_switch_stops_the_next_call(db: Database) -> None:
    bank = Bank(script=["unsent"])
    refunds = shop(db, bank)
    await refunds.refund(ask("1", 3_000))
    switch: Any = lambda state: db.transact(  # noqa: E731
        lambda tx: brakes.switch(tx, state, "process_refund", "", by="park", reason="test")
    )
    switch("off")
    let_time_pass(db)
    assert code(await refunds.refund(ask("1", 3_000))) == "in_progress"  # it will be made when the switch is on again
    assert code(await refunds.refund(ask("2", 3_000))) == "tool_disabled"
    let_time_pass(db)
    await refunds.complete()
    assert await refunds.complete() == 0  # it makes room for others meanwhile
    assert (bank.calls, len(intents(db)), books(db)) == ([], 1, (0, 3_000))
    switch("on")
    let_time_pass(db)
    await refunds.complete()
    assert (len(bank.calls), books(db)) == (1, (3_000, 0))


async def test_sec19_the_daily_cap_counts_what_is_reserved(db: Database) -> None:
    db.transact(lambda tx: brakes.cap(tx, "process_refund", "", "KRW", 5_000))
    refunds = shop(db, Bank())
    assert code(await refunds.refund(ask("1", 3_000))) == "ok"
    assert code(await refunds.refund(ask("2", 3_000))) == "daily_limit"
    assert code(await refunds.refund(ask("1", 3_000))) == "ok"  # a repetition is nothing new
    assert code(await refunds.refund(ask("2", 2_000))) == "ok"
    assert books(db) == (5_000, 0)


async def test_a_bare_client_asks_once_a_day_for_the_same(db: Database) -> None:
    """It has no request of its own: order and amount are the request, until they came to nothing or a day is over."""
    bank = Bank(script=["declined"])
    refunds = shop(db, bank)
    bare = ask("", 1_000, actor="kim")
    assert [code(await refunds.refund(bare)) for _ in range(3)] == ["declined", "ok", "ok"]
    assert len(bank.calls) == 2
    assert code(await refunds.refund(ask("", 1_500, actor="kim"))) == "ok"
    assert books(db) == (2_500, 0)
    db.transact(lambda tx: tx.change("UPDATE refund_intent SET created_at = created_at - 86500"))
    assert not done(await refunds.refund(bare)).replayed
    assert done(await refunds.refund(bare)).replayed
    assert books(db) == (3_500, 0)


async def test_the_money_of_an_order(db: Database) -> None:
    refunds = shop(db, Bank(script=["paid", "lost"]))
    assert await refunds.state("", "kim", "1001") is None
    await refunds.refund(ask("1", 3_000))
    await refunds.refund(ask("2", 2_000))
    money = await refunds.state("", "kim", "1001")
    assert money is not None
    assert (money.captured_minor, money.refunded_minor, money.reserved_minor) == (10_000, 3_000, 2_000)
    assert (money.committed_minor, money.refundable_minor) == (5_000, 5_000)
    assert await refunds.state("", "lee", "1001") is None
    assert await refunds.state("다른 가게", "kim", "1001") is None


@pytest.mark.parametrize("status", ["cancelled", "refunded"])
def test_nothing_can_be_refunded_of_an_order_that_was_closed_before(db: Database, status: Any) -> None:
    from_before = order(status=status)
    asked = ask("1", 1, order=from_before)
    with pytest.raises(Exception, match="exceeds_refundable"):
        db.transact(lambda tx: BOOKS.claim(tx, asked, TERMS))
    assert db.transact(lambda tx: rows.money(tx, "", "pay_1001")) is None
