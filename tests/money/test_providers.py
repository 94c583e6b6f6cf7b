"""A shop that changes its payment provider while refunds are open: each stays with the one it was sent to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paysim import running_payments
from services import Postgres, new_database
from siafu.apps.support.shop import schema as shop_schema
from siafu.apps.support.shop.money.payments import Call, HttpPayments
from siafu.apps.support.shop.money.policy import RefundPolicy
from siafu.apps.support.shop.money.reconcile import reconcile, reconciled
from siafu.apps.support.shop.money.schema import MIGRATIONS, SCHEMA
from siafu.errors import ConfigError, InputError
from siafu.store.database import Database

from .kit import (
    IDEMPOTENT,
    LOOKUP,
    NEITHER,
    Bank,
    ask,
    books,
    code,
    done,
    events,
    intents,
    let_time_pass,
    open_db,
    order,
    shop,
    states,
)


@pytest.mark.parametrize("can", [IDEMPOTENT, LOOKUP, NEITHER])
async def test_an_open_refund_is_never_looked_up_or_repeated_at_another_provider(db: Database, can: Any) -> None:
    first, second = Bank(script=["lost"], name="first"), Bank(can, name="second")
    assert code(await shop(db, first).refund(ask("1", 3_000))) == "unknown_outcome"
    moved = shop(db, second)
    for _ in range(3):
        let_time_pass(db)
        await moved.complete()
        assert code(await moved.refund(ask("1", 3_000))) == "unknown_outcome"
    assert (second.calls, second.lookups, states(db), books(db)) == ([], 0, {"unknown": 1}, (0, 3_000))
    assert events(db) == ["claimed", "dispatching", "unknown", "waits_for_its_provider"]  # told once
    let_time_pass(db)
    assert await shop(db, first).complete() == 1
    assert (states(db), books(db), len(first.paid)) == ({"succeeded": 1}, (3_000, 0), 1)


async def test_a_process_that_died_in_its_call_leaves_it_to_the_provider_it_called(db: Database) -> None:
    """Its call may still be answered, after another provider is there; what it then knows is fenced."""
    first, second = Bank(name="first"), Bank(name="second")

    def meanwhile(_: Call) -> None:
        let_time_pass(db)

    first.on_call = meanwhile  # the lease is over while the call is under way
    old = shop(db, first)

    async def refund(call: Call, seconds: float) -> Any:
        outcome = await Bank.refund(first, call, seconds)
        await shop(db, second).complete()
        return outcome

    first.refund = refund  # type: ignore[method-assign]
    assert code(await old.refund(ask("1", 3_000))) == "unknown_outcome"
    assert (second.calls, second.lookups, old.fenced, states(db)) == ([], 0, 1, {"unknown": 1})
    let_time_pass(db)
    await shop(db, Bank(name="second")).complete()
    del first.refund
    await old.complete()
    assert (states(db), len(first.paid)) == ({"succeeded": 1}, 1)


async def test_what_was_never_sent_goes_to_the_provider_that_is_there(db: Database) -> None:
    """Here a refund whose only attempt cannot have arrived."""
    first, second = Bank(script=["unsent"], name="first"), Bank(NEITHER, name="second")
    await shop(db, first).refund(ask("1", 3_000))
    let_time_pass(db)
    assert await shop(db, second).complete() == 1
    (row,) = intents(db)
    assert (row["state"], row["psp"], row["serialise"], len(second.paid)) == ("succeeded", "second", 1, 1)


async def test_a_person_settles_what_a_provider_that_is_gone_has_left(db: Database) -> None:
    bank, policy = Bank(script=["lost", "lost", "lost"], name="first"), RefundPolicy()
    for n in range(3):
        await shop(db, bank).refund(ask(str(n), 3_000, order=order(f"200{n}")))
    open_, other, third = (row["refund_id"] for row in intents(db))
    people = shop(db, None, policy)
    with pytest.raises(InputError, match="under review"):
        await people.resolve(open_, psp_refund_id=None, by="park")  # its own provider may still be asked
    let_time_pass(db)
    await shop(db, Bank(name="second")).complete()
    await people.resolve(open_, psp_refund_id="re_1", by="park")
    await people.resolve(other, psp_refund_id=None, by="park")
    assert [row["state"] for row in intents(db)] == ["succeeded", "declined", "unknown"]
    let_time_pass(db)
    await shop(db, bank).complete()  # the first is back, and begins with what is left to it
    with pytest.raises(InputError, match="under review"):
        await people.resolve(third, psp_refund_id=None, by="park")
    assert (len(bank.calls), states(db)) == (3, {"succeeded": 2, "declined": 1})


async def test_each_provider_is_held_against_its_own_refunds(db: Database) -> None:
    first, second = Bank(script=["paid", "lost"], name="first"), Bank(script=["paid"], name="second")
    for n in range(2):
        await shop(db, first).refund(ask(str(n), 1_000))
    assert code(await shop(db, second).refund(ask("2", 1_000))) == "ok"
    assert [(one.kind, one.state) for one in await reconcile(db, "second", second.paid)] == [("elsewhere", "unknown")]
    assert [one.kind for one in await reconcile(db, "first", first.paid)] == ["not_booked", "total"]
    let_time_pass(db)
    await shop(db, first).complete()
    assert await reconcile(db, "first", first.paid) == await reconcile(db, "second", second.paid) == []
    assert [one.kind for one in await reconcile(db, "second", second.paid * 2)] == ["total", "twice"]  # control


async def test_another_ledger_at_the_same_address_is_another_provider(db: Database, tmp_path: Path) -> None:
    """The shop that runs on asks again who is there before it sends anything a second time."""
    with running_payments(tmp_path / "first.jsonl") as sim:
        sim.set_faults({"kind": "lost_before"})
        url, port = sim.url, sim.url.rpartition(":")[2]
        client = HttpPayments(url)
        refunds = shop(db, client)
        assert code(await refunds.refund(ask("1", 3_000))) == "unknown_outcome"
    let_time_pass(db)
    with running_payments(tmp_path / "second.jsonl", port=port) as sim:
        assert code(await refunds.refund(ask("1", 3_000))) == "unknown_outcome"
        await refunds.complete()
        assert sim.requests() == []
        assert [one.kind for one in await reconciled(db, client)] == ["elsewhere"]
        assert done(await refunds.refund(ask("2", 3_000)))
        assert [intent["psp"] for intent in intents(db)][1] == (await client.capabilities()).name
    let_time_pass(db)
    with running_payments(tmp_path / "first.jsonl", port=port) as sim:
        assert done(await refunds.refund(ask("1", 3_000)))
        assert len(sim.effects()) == 1
        assert await reconciled(db, client) == []
    await client.aclose()


async def test_who_a_provider_is() -> None:
    """What the operator calls it, else what it calls itself, else where it is."""
    for given, said, name in [("ours", "theirs", "ours"), ("", " theirs ", "theirs"), ("", "", "http://localhost:9/A")]:
        can = NEITHER.__class__(idempotency=True, lookup=True, name=said)
        client = HttpPayments("http://LOCALHOST:9/A/", given=can, name=given)
        assert (await client.capabilities()).name == name
        await client.aclose()
    with pytest.raises(ConfigError, match="200 characters"):
        HttpPayments("http://localhost:9", name="x" * 201)


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """Without tables."""
    with new_database(postgres) as name:
        yield postgres.url(name)


async def test_a_database_of_before(sql_url: str) -> None:
    """What was sent before providers had names waits for one that is told to be it; what was not sent goes on. The
    approvals of then are kept.
    """
    Database(sql_url, shop_schema.MIGRATIONS, what="the shop's database", schema="shop").close()
    old = Database(sql_url, MIGRATIONS[:1], what="the shop's database", schema=SCHEMA)

    def fill(tx: Any) -> None:
        tx.change(
            """INSERT INTO payment (tenant_id, payment_id, order_id, owner_sub, psp_payment_ref, currency,
               captured_minor, reserved_minor) VALUES ('', 'pay_1001', '1001', 'kim', 'pay_1001', 'KRW', 10000, 6000)"""
        )
        for name, state, attempts in (("a", "unknown", 1), ("b", "reserved", 0), ("c", "pending_approval", 0)):
            tx.change(
                f"""INSERT INTO refund_intent (refund_id, tenant_id, idem_key, asked, fingerprint, payment_id, order_id,
                   psp_payment_ref, amount_minor, currency, customer, actor, run, task, reason, state, psp, psp_key,
                   attempts, serialise, created_at, updated_at)
                   VALUES ('{name}', '', 'a key of 20 signs, {name}', '', '{name * 64}', 'pay_1001', '1001', 'pay_1001',
                   2000, 'KRW', 'kim', 'agent:x', '', '', '', '{state}', 'payments', '{name}', {attempts}, 0, 1, 1)"""
            )
        for name, state, by in (("a", "used", "'park'"), ("b", "approved", "'park'"), ("c", "pending", "NULL")):
            tx.change(
                f"""INSERT INTO approval (id, refund_id, tool, arguments, arguments_sha256, requester, actor, reason,
                   state, created_at, expires_at, decided_by)
                   VALUES ('ra-{name}', '{name}', 't', '{{}}', '', 'kim', '', '', '{state}', 1, {{now}} + 1000, {by})"""
            )
            tx.change(f"UPDATE refund_intent SET approval_id = 'ra-{name}' WHERE refund_id = '{name}'")

    old.transact(fill)
    old.close()
    db = open_db(sql_url)
    try:
        assert [(row["refund_id"], row["psp"]) for row in intents(db)] == [("a", "payments"), ("b", ""), ("c", "")]
        kept = db.transact(lambda tx: tx.rows("SELECT refund_id, state, decided_by FROM approval ORDER BY 1"))
        assert [tuple(row.values()) for row in kept] == [
            ("a", "used", "park"),
            ("b", "approved", "park"),
            ("c", "pending", None),
        ]
        bank = Bank(name="new")
        await shop(db, bank).complete()
        assert (bank.calls, bank.lookups) == ([], 0)
        db.transact(lambda tx: tx.change("UPDATE approval SET expires_at = 1"))
        await shop(db, bank).complete()
        told = [(row["refund_id"], row["state"]) for row in intents(db)]
        assert told == [("a", "unknown"), ("b", "manual_review"), ("c", "cancelled")]  # b: its hash is none
    finally:
        db.close()
