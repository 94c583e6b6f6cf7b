"""Refunds that a person decides: bound, expiring, used once, and never by the one who asked."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from typing import Any

import pytest

from siafu.apps.support.shop.money.approvals import ShopApprovals
from siafu.apps.support.shop.money.books import Books
from siafu.apps.support.shop.money.policy import RefundPolicy
from siafu.apps.support.shop.money.records import Intent, RefundAsk
from siafu.apps.support.shop.money.refunds import Refunds
from siafu.apps.support.shop.money.rows import INTENT
from siafu.errors import InputError, StoreError
from siafu.store.approval import Approval, ApprovalDesk
from siafu.store.database import Database

from .kit import (
    LOOKUP,
    Bank,
    ask,
    books,
    code,
    done,
    events,
    intents,
    let_days_pass,
    let_time_pass,
    order,
    shop,
    states,
)

POLICY = RefundPolicy(by_status=False)


def large(key: str = "1", **more: Any) -> RefundAsk:
    """An ask that a person must decide."""
    return ask(key, 150_000, **{"order": order(total=200_000), **more})


async def waiting(db: Database) -> Approval:
    (found,) = await ShopApprovals(db).approvals("pending")
    return found


async def approved(db: Database, refunds: Refunds) -> Approval:
    """Of a large refund, which nothing has carried out so far."""
    await refunds.refund(large())
    return await ShopApprovals(db).decide((await waiting(db)).id, approve=True, by="park")


async def test_a_large_refund_waits_for_a_person_with_its_money_reserved(db: Database) -> None:
    bank = Bank()
    refunds = shop(db, bank, POLICY)
    for _ in range(2):
        outcome = await refunds.refund(large())
        assert code(outcome) == "pending_approval"
        assert not outcome.retryable  # type: ignore[union-attr]
    assert (states(db), books(db), bank.calls) == ({"pending_approval": 1}, (0, 150_000), [])
    let_time_pass(db)
    assert await refunds.complete() == 0
    approval = await waiting(db)
    assert outcome.details["approval_id"] == approval.id  # type: ignore[union-attr, index]
    assert (approval.tool, approval.requester, approval.reason) == ("process_refund", "kim", "amount")
    assert json.loads(approval.arguments) == {
        "amount_minor": 150_000,
        "currency": "KRW",
        "customer": "kim",
        "order_id": "1001",
        "payment_id": "pay_1001",
        "refund_id": intents(db)[0]["refund_id"],
        "tenant": "",
    }
    assert approval.arguments_sha256 == hashlib.sha256(approval.arguments.encode()).hexdigest()
    assert approval.expires_at - approval.created_at == pytest.approx(72 * 3600, abs=1)


@pytest.mark.parametrize("who", ["completer", "next call"])
async def test_an_approved_refund_is_made_once(db: Database, who: str) -> None:
    bank = Bank()
    refunds = shop(db, bank, POLICY)
    desk: ApprovalDesk = ShopApprovals(db)
    await refunds.refund(large())
    waits = await waiting(db)
    approved = await desk.decide(waits.id, approve=True, by="박 매니저", note="확인함")
    assert (approved.state, approved.decided_by, approved.note) == ("approved", "박 매니저", "확인함")
    restarted = shop(db, bank, POLICY, owner="later")
    if who == "completer":
        assert await restarted.complete() == 1
    else:
        assert not done(await restarted.refund(large())).replayed
    assert done(await restarted.refund(large())).replayed
    used = await desk.approval(waits.id)
    assert used is not None
    assert (used.state, used.decided_by, len(bank.calls), books(db)) == ("used", "박 매니저", 1, (150_000, 0))
    assert events(db) == ["claimed", "approved", "dispatching", "succeeded"]
    with pytest.raises(InputError, match="used already"):
        await desk.decide(waits.id, approve=True, by="박 매니저")


async def test_a_denied_refund_frees_its_money_and_stays_denied(db: Database) -> None:
    bank = Bank()
    refunds = shop(db, bank, POLICY)
    await refunds.refund(large())
    waits = await waiting(db)
    assert (await ShopApprovals(db).decide(waits.id, approve=False, by="park")).state == "denied"
    outcome = await refunds.refund(large())
    assert (code(outcome), outcome.details) == ("declined", {"reason": "denied"})  # type: ignore[union-attr]
    let_time_pass(db)
    await refunds.complete()
    assert (states(db), books(db), bank.calls) == ({"rejected": 1}, (0, 0), [])


@pytest.mark.parametrize("noticed_by", ["completer", "next call", "desk"])
async def test_a_decision_that_nobody_makes_expires(db: Database, noticed_by: str) -> None:
    bank = Bank()
    refunds = shop(db, bank, POLICY)
    desk = ShopApprovals(db)
    await refunds.refund(large())
    waits = await waiting(db)
    db.transact(lambda tx: tx.change("UPDATE approval SET expires_at = {now}"))
    if noticed_by == "completer":
        await refunds.complete()
    elif noticed_by == "next call":
        assert code(await refunds.refund(large())) == "declined"
    with pytest.raises(InputError, match="expired already"):
        await desk.decide(waits.id, approve=True, by="park")
    assert [approval.state for approval in await desk.approvals()] == ["expired"]
    assert (states(db), books(db), bank.calls) == ({"cancelled": 1}, (0, 0), [])
    outcome = await refunds.refund(large())
    assert outcome.details == {"reason": "expired"}  # type: ignore[union-attr]


@pytest.mark.parametrize("noticed_by", ["completer", "next call", "desk", "take"])
async def test_an_approval_that_nothing_ran_for_is_not_used_after_its_time(db: Database, noticed_by: str) -> None:
    """Approved, and then no shop ran for ten days: the money is free again, and the state says so."""
    bank = Bank()
    refunds = shop(db, bank, POLICY)
    desk = ShopApprovals(db)
    waits = await approved(db, refunds)
    (before,) = [Intent(**row) for row in db.transact(lambda tx: tx.rows(INTENT))]
    let_days_pass(db, 10)
    if noticed_by == "completer":
        assert await refunds.complete() == 0
    elif noticed_by == "next call":
        assert code(await refunds.refund(large())) == "declined"
    elif noticed_by == "desk":
        await desk.approvals()
    else:  # somebody had found it due just before
        can = await bank.capabilities()
        taker = Books(POLICY, owner="a", lease=30.0)
        assert db.transact(lambda tx: taker.take(tx, before.refund_id, seen=0, can=can)) is None
    assert (states(db), books(db), bank.calls) == ({"cancelled": 1}, (0, 0), [])
    late = await desk.approval(waits.id)
    assert late is not None and (late.state, late.decided_by) == ("expired", "park")
    outcome = await refunds.refund(large())
    assert (code(outcome), outcome.details) == ("declined", {"reason": "not_carried_out"})  # type: ignore[union-attr]
    assert events(db) == ["claimed", "approved", "cancelled"]
    with pytest.raises(InputError, match="expired already"):
        await desk.decide(waits.id, approve=True, by="park")
    assert code(await refunds.refund(ask("2", 1_000, order=order(total=200_000)))) == "ok"
    assert books(db) == (1_000, 0)


async def test_an_approved_refund_is_made_until_the_last_moment(db: Database) -> None:
    """Control: one hour less than the approval holds."""
    refunds = shop(db, Bank(), POLICY)
    await approved(db, refunds)
    let_days_pass(db, 3 - 1 / 24)
    assert await refunds.complete() == 1
    assert states(db) == {"succeeded": 1}


@pytest.mark.parametrize(("script", "after"), [("lost", "succeeded"), ("unsent", "cancelled")])
async def test_only_what_may_have_been_sent_goes_on_after_the_approval_ends(
    db: Database, script: str, after: str
) -> None:
    bank = Bank(LOOKUP, script=[script])
    refunds = shop(db, bank, POLICY)
    await approved(db, refunds)
    await refunds.complete()
    let_days_pass(db, 10)
    await refunds.complete()
    assert (states(db), len(bank.calls)) == ({after: 1}, 1 if script == "lost" else 0)
    assert books(db) == ((150_000, 0) if script == "lost" else (0, 0))


async def test_one_process_gives_up_while_another_takes(db: Database) -> None:
    """At the very moment of the end each refund is either sent or given up, never both."""
    bank = Bank()
    processes = [shop(db, bank, POLICY, owner=name) for name in "abcd"]
    for n in range(6):
        await processes[0].refund(large(str(n), order=order(f"300{n}", 200_000)))
    desk = ShopApprovals(db)
    for waits in await desk.approvals("pending"):
        await desk.decide(waits.id, approve=True, by="park")
    db.transact(lambda tx: tx.change("UPDATE approval SET expires_at = {now} + 0.05"))
    for _ in range(4):
        await asyncio.gather(*(process.complete() for process in processes))
    wait = asyncio.get_running_loop().time() + 10
    while states(db)["reserved"] and asyncio.get_running_loop().time() < wait:
        await processes[0].complete()
    found = states(db)
    assert found["succeeded"] + found["cancelled"] == 6
    assert len(bank.calls) == found["succeeded"]
    assert len(await desk.approvals("expired")) == found["cancelled"]


@pytest.mark.parametrize(
    "by",
    [
        "kim",
        "KIM ",
        "ｋｉｍ",
        "k i\u200bm",
        "agent:refund",
        "Agent:Other",
        "ａgent:x",
        "a\u2060gent:x",
        "",
        "  ",
        "\u200b",
    ],
)
async def test_sec4_who_asks_never_decides_and_no_agent_does(db: Database, by: str) -> None:
    await shop(db, Bank(), POLICY).refund(large())
    waits = await waiting(db)
    with pytest.raises(InputError):
        await ShopApprovals(db).decide(waits.id, approve=True, by=by)
    assert (await waiting(db)).state == "pending"


async def test_the_tables_alone_refuse_the_requester(db: Database) -> None:
    await shop(db, Bank(), POLICY).refund(large())
    with pytest.raises(StoreError):
        db.transact(lambda tx: tx.change("UPDATE approval SET state = 'approved', decided_by = 'kim'"))


async def test_sec18_a_changed_argument_voids_the_decision(db: Database) -> None:
    bank = Bank()
    refunds = shop(db, bank, POLICY)
    await approved(db, refunds)
    db.transact(lambda tx: tx.change("UPDATE refund_intent SET amount_minor = 190000"))
    await refunds.complete()
    assert (states(db), bank.calls) == ({"manual_review": 1}, [])


async def test_two_people_at_once_decide_once(db: Database) -> None:
    await shop(db, Bank(), POLICY).refund(large())
    waits = await waiting(db)

    async def decide(n: int) -> str:
        try:
            return (await ShopApprovals(db).decide(waits.id, approve=n % 2 == 0, by=f"person {n}")).state
        except InputError:
            return "too late"

    found = Counter(await asyncio.gather(*map(decide, range(8))))
    assert found["too late"] == 7
    assert found["approved"] + found["denied"] == 1


async def test_an_unknown_approval_is_said_so(db: Database) -> None:
    assert await ShopApprovals(db).approval("nope") is None
    with pytest.raises(InputError, match="siafu approvals list"):
        await ShopApprovals(db).decide("nope", approve=True, by="park")


async def test_rules_see_each_other_when_two_requests_come_at_once(db: Database) -> None:
    """The second refund of an order waits for a person, whoever was first: no two slip through together."""
    bank = Bank()
    processes = [shop(db, bank, POLICY, owner=name) for name in "abcdefgh"]
    outcomes = await asyncio.gather(*(p.refund(ask(f"p{n}", 100 + n)) for n, p in enumerate(processes)))
    assert Counter(map(code, outcomes)) == {"ok": 1, "pending_approval": 7}
    assert len(bank.calls) == 1


async def test_the_fourth_refund_of_a_day_waits_for_a_person(db: Database) -> None:
    refunds = shop(db, Bank(script=["declined"]), POLICY)
    codes = [code(await refunds.refund(ask(f"p{n}", 100, order=order(f"{2000 + n}")))) for n in range(5)]
    assert codes == ["declined", "ok", "ok", "ok", "pending_approval"]  # what came to nothing does not count
    assert (await waiting(db)).reason == "daily_refunds"
    db.transact(lambda tx: tx.change("UPDATE refund_intent SET created_at = created_at - 90000"))
    assert code(await refunds.refund(ask("next day", 100, order=order("2009")))) == "ok"
