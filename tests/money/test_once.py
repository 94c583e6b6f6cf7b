"""One request, one refund: keys, leases, fencing, lost answers. The same on both databases."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from siafu.store.database import Database

from .kit import (
    IDEMPOTENT,
    KEYS_ONLY,
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
    order,
    shop,
    states,
)


async def test_one_refund(db: Database) -> None:
    bank = Bank()
    refunds = shop(db, bank)
    outcome = done(await refunds.refund(ask("1", 3_000)))
    assert (outcome.amount_minor, outcome.refunded_minor, outcome.refundable_minor) == (3_000, 3_000, 7_000)
    assert (outcome.amount_text, outcome.replayed, outcome.status) == ("3,000원", False, "refunded")
    assert books(db) == (3_000, 0)
    assert bank.total == 3_000
    assert bank.calls[0].payment == "pay_1001"
    assert bank.calls[0].metadata == {"refund_id": outcome.refund_id}
    assert events(db) == ["claimed", "dispatching", "succeeded"]


async def test_t1_one_key_thirty_two_times_at_once(db: Database) -> None:
    bank = Bank()
    processes = [shop(db, bank, owner=name) for name in "abcdefgh"]
    outcomes = await asyncio.gather(*(processes[n % 8].refund(ask("same", 3_000)) for n in range(32)))
    codes = Counter(map(code, outcomes))
    assert codes["ok"] >= 1
    assert codes["ok"] + codes["in_progress"] == 32
    assert len(bank.paid) == len(bank.calls) == 1
    assert books(db) == (3_000, 0)
    again = done(await processes[0].refund(ask("same", 3_000)))
    first = next(done(outcome) for outcome in outcomes if code(outcome) == "ok" and not done(outcome).replayed)
    assert again == msgspec.structs.replace(first, replayed=True)
    assert len(bank.calls) == 1


async def test_t2_forty_partials_of_700_on_10_000_are_fourteen(db: Database) -> None:
    """Each caller read a total of 0, and reads again when it is stale, as the tools tell it to."""
    bank = Bank()
    processes = [shop(db, bank, owner=name) for name in "abcd"]

    async def one(n: int) -> str:
        seen = 0
        while True:
            outcome = await processes[n % 4].refund(ask(f"p{n}", 700, expected_refunded_minor=seen))
            if code(outcome) != "stale_refund_total":
                return code(outcome)
            money = await processes[n % 4].state("", "kim", "1001")
            assert money is not None
            seen = money.committed_minor

    codes = Counter(await asyncio.gather(*map(one, range(40))))
    assert codes == {"ok": 14, "exceeds_refundable": 26}
    assert books(db) == (9_800, 0)
    assert bank.total == 9_800
    assert len(intents(db)) == 14


async def test_t2_the_database_alone_keeps_the_sum(db: Database) -> None:
    """As above, without the precondition: all forty reservations meet in one row."""
    bank = Bank()
    processes = [shop(db, bank, owner=name) for name in "abcd"]
    outcomes = await asyncio.gather(*(processes[n % 4].refund(ask(f"p{n}", 700)) for n in range(40)))
    assert Counter(map(code, outcomes)) == {"ok": 14, "exceeds_refundable": 26}
    assert books(db) == (9_800, 0)


async def test_t3_the_same_key_with_another_amount_is_refused(db: Database) -> None:
    bank = Bank()
    refunds = shop(db, bank)
    first = done(await refunds.refund(ask("1", 3_000)))
    other = await refunds.refund(ask("1", 4_000))
    assert code(other) == "idempotency_key_reused"
    assert not other.retryable  # type: ignore[union-attr]
    assert other.details["first"] == {  # type: ignore[union-attr, index]
        "amount_minor": 3_000,
        "currency": "KRW",
        "state": "succeeded",
        "refund_id": first.refund_id,
    }
    assert len(bank.calls) == 1


async def test_a_key_never_tells_of_another_customers_refund(db: Database) -> None:
    refunds = shop(db, Bank())
    await refunds.refund(ask("1", 3_000))
    for other in ({"order": order("1002")}, {"customer": "lee"}):
        outcome = await refunds.refund(ask("1", 3_000, **other))
        assert code(outcome) == "idempotency_key_reused"
        assert outcome.details == {"first": {}}  # type: ignore[union-attr]


async def test_an_amount_left_away_is_the_stored_one(db: Database) -> None:
    """Whatever remains by now: the request is the same."""
    bank = Bank()
    refunds = shop(db, bank)
    assert done(await refunds.refund(ask("part", 4_000))).amount_minor == 4_000
    assert done(await refunds.refund(ask("part"))).amount_minor == 4_000
    assert done(await refunds.refund(ask("rest"))).amount_minor == 6_000
    assert done(await refunds.refund(ask("rest"))).replayed
    assert done(await refunds.refund(ask("rest", 6_000))).replayed
    assert code(await refunds.refund(ask("more"))) == "exceeds_refundable"
    assert (len(bank.calls), books(db)) == (2, (10_000, 0))


async def test_another_wording_of_the_reason_is_the_same_request(db: Database) -> None:
    bank = Bank()
    refunds = shop(db, bank)
    await refunds.refund(ask("1", 3_000, reason="고장"))
    assert done(await refunds.refund(ask("1", 3_000, reason="it is broken"))).replayed


async def test_t5_a_holder_that_sleeps_past_its_lease_is_fenced(db: Database) -> None:
    bank = Bank()
    gate = bank.gate = asyncio.Event()
    sleeper, heir = shop(db, bank, owner="a", lease=60.0), shop(db, bank, owner="b")
    task = asyncio.create_task(sleeper.refund(ask("1", 3_000)))
    await asyncio.wait_for(bank.arrived.wait(), 10)
    assert code(await heir.refund(ask("1", 3_000))) == "in_progress"
    let_time_pass(db)  # for the sleeper it stands still
    assert not done(await heir.refund(ask("1", 3_000))).replayed
    gate.set()
    assert done(await task).replayed
    assert (sleeper.fenced, heir.fenced) == (1, 0)
    assert "fenced" in events(db)
    assert len(bank.paid) == 1
    assert books(db) == (3_000, 0)


@pytest.mark.parametrize("can", [IDEMPOTENT, KEYS_ONLY, LOOKUP], ids=["both", "keys", "lookup"])
async def test_t6_half_of_the_answers_are_lost(db: Database, can: object) -> None:
    bank = Bank(can, script=["lost", "paid"] * 25)  # type: ignore[arg-type]
    refunds = shop(db, bank)
    outcomes = [await refunds.refund(ask(f"p{n}", 100, order=order(f"{2000 + n}"))) for n in range(50)]
    assert Counter(map(code, outcomes)) == {"ok": 25, "unknown_outcome": 25}
    assert states(db) == {"succeeded": 25, "unknown": 25}
    let_time_pass(db)
    assert await refunds.complete() == 25
    assert states(db) == {"succeeded": 50}
    assert len(bank.paid) == 50
    if can != KEYS_ONLY:
        assert set(bank.dispatches.values()) == {1}  # it looked first
    assert await refunds.complete() == 0


async def test_t7_a_provider_that_offers_neither_is_asked_at_most_once(db: Database) -> None:
    bank = Bank(NEITHER, script=["lost", "paid", "before", "paid"] * 10)
    refunds = shop(db, bank)
    outcomes = [await refunds.refund(ask(f"p{n}", 100, order=order(f"{2000 + n}"))) for n in range(40)]
    assert Counter(map(code, outcomes)) == {"ok": 20, "unknown_outcome": 20}
    for _ in range(3):
        let_time_pass(db)
        await refunds.complete()
    assert states(db) == {"succeeded": 20, "manual_review": 20}
    assert set(bank.dispatches.values()) == {1}
    assert bank.lookups == 0
    assert books(db, "2000") == (0, 100)  # still reserved: it may have been paid
    assert code(await refunds.refund(ask("p0", 100, order=order("2000")))) == "unknown_outcome"


async def test_a_lookup_that_finds_nothing_is_no_leave_to_call_again(db: Database) -> None:
    """The first call may still be on its way. After twenty looks a person is asked."""
    bank = Bank(LOOKUP, script=["before"])
    refunds = shop(db, bank)
    await refunds.refund(ask("1", 3_000))
    for _ in range(19):
        assert states(db) == {"unknown": 1}
        let_time_pass(db)
        await refunds.complete()
    assert states(db) == {"manual_review": 1}
    assert (len(bank.calls), books(db)) == (1, (0, 3_000))


async def test_an_old_key_is_looked_up_and_never_sent_again(db: Database) -> None:
    bank = Bank(IDEMPOTENT, script=["before"])
    refunds = shop(db, bank)
    await refunds.refund(ask("1", 3_000))
    let_time_pass(db)
    db.transact(lambda tx: tx.change("UPDATE refund_intent SET first_dispatch_at = first_dispatch_at - 23 * 3600"))
    await refunds.complete()
    assert (states(db), len(bank.calls), bank.lookups) == ({"manual_review": 1}, 1, 1)


async def test_a_call_that_never_left_does_not_count(db: Database) -> None:
    """Also where a second call would be one too many: there was no first."""
    bank = Bank(NEITHER, script=["unsent", "unsent"])
    refunds = shop(db, bank)
    assert code(await refunds.refund(ask("1", 3_000))) == "in_progress"
    for _ in range(2):
        assert (states(db), books(db)) == ({"reserved": 1}, (0, 3_000))
        let_time_pass(db)
        await refunds.complete()
    assert (states(db), books(db), len(bank.calls)) == ({"succeeded": 1}, (3_000, 0), 1)


async def test_a_call_that_never_left_does_not_undo_one_that_may_have(db: Database) -> None:
    bank = Bank(KEYS_ONLY, script=["lost", "unsent"])
    refunds = shop(db, bank)
    await refunds.refund(ask("1", 3_000))
    for expected in ("unknown", "succeeded"):
        let_time_pass(db)
        await refunds.complete()
        assert states(db) == {expected: 1}
    assert len(bank.paid) == 1


async def test_a_decline_frees_the_money_and_stays_the_answer(db: Database) -> None:
    bank = Bank(script=["declined"])
    refunds = shop(db, bank)
    for _ in range(2):
        outcome = await refunds.refund(ask("1", 3_000))
        assert code(outcome) == "declined"
        assert outcome.details == {"reason": "by_provider", "provider_code": "card_expired"}  # type: ignore[union-attr]
    assert (len(bank.calls), books(db)) == (1, (0, 0))
    assert done(await refunds.refund(ask("2", 10_000))).refundable_minor == 0


async def test_unknown_is_told_as_unknown_and_waits_before_it_is_looked_into(db: Database) -> None:
    """A caller that repeats at once neither uses up the attempts nor calls the provider."""
    bank = Bank(script=["lost"])
    refunds = shop(db, bank)
    first = await refunds.refund(ask("1", 3_000))
    db.transact(lambda tx: tx.change("UPDATE refund_intent SET next_attempt_at = {now} + 60"))
    second = await refunds.refund(ask("1", 3_000))
    assert (code(first), code(second)) == ("unknown_outcome", "unknown_outcome")
    assert second.retry_after_ms and 50_000 < second.retry_after_ms <= 60_000  # type: ignore[union-attr]
    assert (bank.lookups, len(bank.calls), books(db)) == (0, 1, (0, 3_000))
    let_time_pass(db)
    assert done(await refunds.refund(ask("1", 3_000))).amount_minor == 3_000
    assert (bank.lookups, len(bank.calls), books(db)) == (1, 1, (3_000, 0))


async def test_a_provider_that_mixes_up_its_ids_is_caught(db: Database) -> None:
    """Two refunds here cannot both be the same one there."""
    one, two = Bank(), Bank()  # the second counts from re_1 again
    await shop(db, one).refund(ask("1", 3_000))
    assert code(await shop(db, two).refund(ask("2", 3_000))) == "unknown_outcome"
    assert (states(db), books(db)) == ({"succeeded": 1, "manual_review": 1}, (3_000, 3_000))
    other = Bank(name="another")  # ids are a provider's own
    assert code(await shop(db, other).refund(ask("3", 3_000))) == "ok"


async def test_t9_one_refund_in_flight_where_the_provider_cannot_tell_repetitions(db: Database) -> None:
    bank = Bank(LOOKUP)
    gate = bank.gate = asyncio.Event()
    processes = [shop(db, bank, owner=name, lease=60.0) for name in "abc"]
    tasks = [asyncio.create_task(p.refund(ask(f"p{n}", 1_000))) for n, p in enumerate(processes)]
    await asyncio.wait(tasks, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait([task for task in tasks if not task.done()], timeout=0.2)
    gate.set()
    assert Counter(map(code, await asyncio.gather(*tasks))) == {"ok": 1, "in_progress": 2}
    for _ in range(2):
        let_time_pass(db)
        await processes[0].complete()
    assert (states(db), books(db)) == ({"succeeded": 3}, (3_000, 0))


async def test_t9_eight_requests_that_all_read_a_total_of_nothing(db: Database) -> None:
    bank = Bank()
    processes = [shop(db, bank, owner=name) for name in "abcdefgh"]
    outcomes = await asyncio.gather(
        *(p.refund(ask(f"p{n}", 1_000, expected_refunded_minor=0)) for n, p in enumerate(processes))
    )
    assert Counter(map(code, outcomes)) == {"ok": 1, "stale_refund_total": 7}
    assert (len(bank.calls), books(db)) == (1, (1_000, 0))


async def test_the_precondition_counts_money_that_is_on_its_way(db: Database) -> None:
    refunds = shop(db, Bank(script=["lost"]))
    await refunds.refund(ask("1", 3_000, expected_refunded_minor=0))
    stale = await refunds.refund(ask("2", 3_000, expected_refunded_minor=0))
    assert code(stale) == "stale_refund_total"
    assert stale.details == {  # type: ignore[union-attr]
        "reason": "changed",
        "currency": "KRW",
        "captured_minor": 10_000,
        "refunded_minor": 0,
        "reserved_minor": 3_000,
        "refundable_minor": 7_000,
    }
    assert code(await refunds.refund(ask("2", 3_000, expected_refunded_minor=3_000))) == "ok"


async def test_a_refusal_leaves_the_key_free(db: Database) -> None:
    refunds = shop(db, Bank())
    assert code(await refunds.refund(ask("1", 10_001))) == "exceeds_refundable"
    assert code(await refunds.refund(ask("1", 5_000, expected_refunded_minor=1))) == "stale_refund_total"
    assert code(await refunds.refund(ask("1", 0))) == "exceeds_refundable"
    assert (intents(db), books(db)) == ([], (0, 0))
    assert code(await refunds.refund(ask("1", 5_000))) == "ok"


async def test_tenants_have_their_own_keys_and_orders(db: Database) -> None:
    bank = Bank()
    refunds = shop(db, bank)
    for tenant in ("", "가게2"):
        assert not done(await refunds.refund(ask("1", 6_000, tenant=tenant))).replayed
    assert [call.payment for call in bank.calls] == ["pay_1001", "가게2:pay_1001"]
