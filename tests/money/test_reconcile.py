"""The books held against the provider's list."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paysim import running_payments
from siafu.apps.support.shop.money.payments import HttpPayments, Paid
from siafu.apps.support.shop.money.reconcile import Booked, compare, reconcile, reconciled
from siafu.errors import ToolUnavailable
from siafu.store.database import Database

from .kit import LOOKUP, NEITHER, Bank, ask, order, shop


def paid(reference: str, amount: int = 700, payment: str = "pay_1", name: str = "") -> Paid:
    return Paid(id=name or f"re_{reference}", payment=payment, amount=amount, currency="KRW", reference=reference)


def booked(key: str, state: str = "succeeded", amount: int = 700, payment: str = "pay_1") -> Booked:
    return Booked(psp_key=key, psp_payment_ref=payment, amount_minor=amount, state=state)  # type: ignore[arg-type]


def kinds(totals: dict[str, int], intents: list[Booked], statement: list[Paid]) -> list[tuple[str, str, str]]:
    found = compare(totals, intents, statement)
    return [(difference.kind, difference.payment, difference.reference) for difference in found]


def test_books_that_agree() -> None:
    assert kinds({}, [], []) == []
    assert kinds({"pay_1": 700, "pay_2": 0}, [booked("a"), booked("b", "declined")], [paid("a")]) == []


def test_each_kind_of_difference() -> None:
    assert kinds({"pay_1": 0}, [], [paid("x")]) == [("no_intent", "pay_1", "x"), ("total", "pay_1", "")]
    assert kinds({}, [], [paid("x", payment="pay_9")]) == [("no_intent", "pay_9", "x"), ("total", "pay_9", "")]
    twice = [paid("a"), paid("a", name="re_2")]
    assert kinds({"pay_1": 700}, [booked("a")], twice) == [("total", "pay_1", ""), ("twice", "pay_1", "a")]
    assert kinds({"pay_1": 0}, [booked("a", "unknown")], [paid("a")]) == [
        ("not_booked", "pay_1", "a"),
        ("total", "pay_1", ""),
    ]
    assert kinds({"pay_1": 700}, [booked("a")], []) == [("not_made", "pay_1", "a"), ("total", "pay_1", "")]


@given(st.lists(st.tuples(st.sampled_from(["pay_1", "pay_2"]), st.integers(1, 9_999)), max_size=6), st.data())
def test_any_one_change_is_seen(refunds: list[tuple[str, int]], data: st.DataObject) -> None:
    statement = [paid(f"k{n}", amount, payment) for n, (payment, amount) in enumerate(refunds)]
    intents = [booked(f"k{n}", "succeeded", amount, payment) for n, (payment, amount) in enumerate(refunds)]
    totals = {payment: sum(amount for of, amount in refunds if of == payment) for payment, _ in refunds}
    assert compare(totals, intents, statement) == []
    if not refunds:
        return
    n = data.draw(st.integers(0, len(refunds) - 1))
    assert compare(totals, intents, statement[:n] + statement[n + 1 :])
    assert compare(totals, intents, [*statement, statement[n]])
    assert compare(totals, intents[:n] + intents[n + 1 :], statement)
    assert compare({**totals, refunds[n][0]: totals[refunds[n][0]] - 1}, intents, statement)


async def test_the_stored_books(db: Database) -> None:
    bank = Bank(NEITHER, script=["paid", "lost", "declined"])
    refunds = shop(db, bank)
    for n in range(3):
        await refunds.refund(ask(f"p{n}", 100, order=order(f"{2000 + n}")))
    found = await reconcile(db, "payments", bank.paid)
    assert [(difference.kind, difference.payment, difference.state) for difference in found] == [
        ("not_booked", "pay_2001", "manual_review"),
        ("total", "pay_2001", None),
    ]
    (under_review,) = [
        row
        for row in db.transact(lambda tx: tx.rows("SELECT * FROM refund_intent"))
        if row["psp_key"] == found[0].reference
    ]
    await refunds.resolve(under_review["refund_id"], psp_refund_id=bank.paid[1].id, by="park")
    assert await reconcile(db, "payments", bank.paid) == []


async def test_against_the_providers_own_list(db: Database, tmp_path: Path) -> None:
    with running_payments(tmp_path / "paid.jsonl", mode="lookup") as sim:
        client = HttpPayments(sim.url)
        refunds = shop(db, client)
        for n in range(101):  # more than a page
            await refunds.refund(ask(f"p{n}", 10))
        assert await reconciled(db, client) == []
        sim.set_faults({"kind": "lost"})
        await refunds.refund(ask("lost", 10))
        found = await reconciled(db, client)
        assert [(one.kind, one.state) for one in found] == [("not_booked", "unknown"), ("total", None)]
        await client.aclose()


async def test_what_is_booked_while_the_list_is_read_is_no_difference(db: Database) -> None:
    bank = Bank(LOOKUP, script=["lost", "lost"])
    refunds = shop(db, bank)
    for n in range(2):
        await refunds.refund(ask(f"p{n}", 100, order=order(f"{2000 + n}")))

    class Reading(HttpPayments):
        async def statement(self) -> list[Paid]:
            due = "CASE WHEN order_id = '2000' THEN 0.0 ELSE 1e12 END"  # the other pause is random and may be over
            db.transact(lambda tx: tx.change(f"UPDATE refund_intent SET next_attempt_at = {due}"))
            await refunds.complete()
            return bank.paid

    found = await reconciled(db, Reading("http://127.0.0.1:9", given=LOOKUP, name="payments"))
    assert [(one.kind, one.payment) for one in found] == [("not_booked", "pay_2001"), ("total", "pay_2001")]


async def test_a_provider_without_a_list_and_one_whose_list_does_not_end(tmp_path: Path) -> None:
    with running_payments(tmp_path / "paid.jsonl", mode="neither") as sim:
        client = HttpPayments(sim.url)
        with pytest.raises(ToolUnavailable, match="404"):
            await client.statement()
        await client.aclose()

    async def same(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        page = (
            b'{"data":[{"id":"re_1","payment":"p","amount":1,"currency":"KRW","reference":"r","status":"succeeded"}],'
        )
        page += b'"more":true}'
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(page) + page)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(same, "127.0.0.1", 0)
    client = HttpPayments(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with asyncio.timeout(10):
        assert [paid.id for paid in await client.statement()] == ["re_1"]
    await client.aclose()
    server.close()
