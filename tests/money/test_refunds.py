"""Refunds as a caller sees them: waiting, cancelling, a provider that is away, the completer; cases from the field."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paysim import running_payments
from siafu.apps.support.shop import brakes
from siafu.apps.support.shop.money import refunds as steps
from siafu.apps.support.shop.money.books import call_of
from siafu.apps.support.shop.money.payments import Call, HttpPayments
from siafu.apps.support.shop.money.policy import NO_RULES
from siafu.apps.support.shop.money.records import Intent
from siafu.apps.support.shop.money.refunds import Refunds
from siafu.errors import StoreError
from siafu.pace.clock import SystemClock
from siafu.store.database import Database

from .kit import (
    KEYS_ONLY,
    LOOKUP,
    NEITHER,
    Bank,
    ask,
    books,
    code,
    done,
    intents,
    let_time_pass,
    open_db,
    order,
    shop,
    states,
)


async def test_without_payments_nothing_is_stored(db: Database) -> None:
    assert code(await shop(db, None).refund(ask("1", 3_000))) == "payments_unavailable"
    nobody = HttpPayments("http://127.0.0.1:9")
    outcome = await shop(db, nobody).refund(ask("1", 3_000))
    assert (code(outcome), outcome.retryable) == ("payments_unavailable", True)  # type: ignore[union-attr]
    assert intents(db) == []
    await nobody.aclose()


@pytest.mark.parametrize(
    ("script", "expected"),
    [("paid", "ok"), ("lost", "unknown_outcome"), ("unsent", "in_progress"), ("declined", "declined")],
)
async def test_what_was_begun_is_told_when_the_provider_is_away_or_refunds_are_off(
    db: Database, script: str, expected: str
) -> None:
    """A run that goes on asks again; "nothing was refunded" would be a lie."""
    assert code(await shop(db, Bank(script=[script])).refund(ask("1", 3_000))) == expected
    let_time_pass(db)
    nobody = HttpPayments("http://127.0.0.1:9")
    for provider in (None, nobody):
        assert code(await shop(db, provider).refund(ask("1", 3_000))) == expected
        assert code(await shop(db, provider).refund(ask("2", 3_000))) == "payments_unavailable"
    await nobody.aclose()
    db.transact(lambda tx: brakes.switch(tx, "off", "process_refund", "", by="park", reason="test"))
    let_time_pass(db)
    assert code(await shop(db, Bank()).refund(ask("1", 3_000))) == expected
    assert code(await shop(db, Bank()).refund(ask("2", 3_000))) == "tool_disabled"
    assert len(intents(db)) == 1


async def test_a_cancelled_caller_does_not_cut_the_refund(db: Database) -> None:
    bank = Bank()
    gate = bank.gate = asyncio.Event()
    refunds = shop(db, bank, lease=60.0)
    task = asyncio.create_task(refunds.refund(ask("1", 3_000)))
    await asyncio.wait_for(bank.arrived.wait(), 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    await refunds.aclose()
    assert (states(db), books(db)) == ({"succeeded": 1}, (3_000, 0))


@pytest.mark.parametrize("lease", [1.0, 15.0])
async def test_a_call_ends_well_before_its_lease(db: Database, lease: float) -> None:
    given: list[float] = []

    class Watched(Bank):
        async def refund(self, call: Call, seconds: float) -> Any:
            given.append(seconds)
            return await super().refund(call, seconds)

    await Refunds(db, Watched(), NO_RULES, clock=SystemClock(), owner="a", lease=lease).refund(ask("1", 3_000))
    assert 0 < given[0] <= 0.7 * lease


async def test_a_process_that_slept_before_its_call_does_not_make_it(db: Database) -> None:
    """Its lease is nearly over, so somebody else may be calling by now."""

    class Sleepy(SystemClock):
        jump = 0.0

        def now(self) -> float:
            self.jump += 30.0
            return super().now() + self.jump

    bank = Bank(NEITHER)
    assert code(await shop(db, bank, clock=Sleepy()).refund(ask("1", 3_000))) == "in_progress"
    assert (bank.calls, states(db), books(db)) == ([], {"reserved": 1}, (0, 3_000))
    let_time_pass(db)
    await shop(db, bank).complete()
    assert (len(bank.calls), states(db)) == (1, {"succeeded": 1})


async def test_no_refund_is_begun_while_the_provider_is_silent(db: Database) -> None:
    bank = Bank(script=["before"] * 5)
    refunds = shop(db, bank)
    codes = [code(await refunds.refund(ask(f"p{n}", 100, order=order(f"{2000 + n}")))) for n in range(7)]
    assert codes == ["unknown_outcome"] * 5 + ["payments_unavailable"] * 2
    assert states(db) == {"unknown": 5}
    let_time_pass(db)
    await refunds.complete()  # what was begun is still carried on, and shows that it answers again
    assert states(db) == {"succeeded": 5}
    assert code(await refunds.refund(ask("p5", 100, order=order("2005")))) == "ok"


async def test_a_lookup_that_finds_a_refund_shows_that_the_provider_answers(db: Database) -> None:
    bank = Bank(LOOKUP, script=["lost"] * 5)
    refunds = shop(db, bank)
    for n in range(5):
        await refunds.refund(ask(f"p{n}", 100, order=order(f"{2000 + n}")))
    assert code(await refunds.refund(ask("p5", 100, order=order("2005")))) == "payments_unavailable"
    let_time_pass(db)
    await refunds.complete()
    assert code(await refunds.refund(ask("p6", 100, order=order("2006")))) == "ok"


async def test_a_call_that_is_refused_as_invalid_says_nothing_of_the_one_before(db: Database) -> None:
    """Such as a provider that was updated between the two."""
    bank = Bank(KEYS_ONLY, script=["lost", "invalid"])
    refunds = shop(db, bank)
    await refunds.refund(ask("1", 3_000))
    let_time_pass(db)
    await refunds.complete()
    assert (states(db), books(db)) == ({"unknown": 1}, (0, 3_000))  # still reserved: nobody else gets it
    let_time_pass(db)
    await refunds.complete()
    assert (states(db), books(db), len(bank.paid)) == ({"succeeded": 1}, (3_000, 0), 1)
    bank.script = ["invalid"]
    assert code(await refunds.refund(ask("2", 3_000))) == "declined"  # the first call of a refund: a clear no


async def test_errors_that_a_provider_answers_are_no_silence(db: Database) -> None:
    bank = Bank(script=["error"] * 6)
    refunds = shop(db, bank)
    codes = [code(await refunds.refund(ask(f"p{n}", 100, order=order(f"{2000 + n}")))) for n in range(7)]
    assert codes == ["unknown_outcome"] * 6 + ["ok"]


async def test_a_mistake_in_one_round_does_not_end_the_completer(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither one outside of the refunds, nor one in the first of them: the others are carried on in the same round."""
    monkeypatch.setattr(steps, "COMPLETER_SECONDS", 0.01)
    bank = Bank(script=["lost"] * 3)
    refunds = shop(db, bank, lease=30.0)
    for n in range(3):
        await refunds.refund(ask(f"p{n}", 100, order=order(f"{2000 + n}")))
    let_time_pass(db)
    mistakes = iter([KeyError("capabilities"), None])
    find, broken = bank.find, f"siafu-rf-{intents(db)[0]['refund_id']}"

    async def capabilities(*, fresh: bool = False) -> Any:
        if (mistake := next(mistakes, None)) is not None:
            raise mistake
        return bank.can

    async def failing(call: Call, seconds: float) -> Any:
        if call.key == broken:
            raise IndexError("a mistake in the client")
        return await find(call, seconds)

    bank.capabilities, bank.find = capabilities, failing  # type: ignore[method-assign]
    task = asyncio.create_task(refunds.run_completer())
    async with asyncio.timeout(10):
        while states(db)["succeeded"] < 2:
            await asyncio.sleep(0.01)
    assert not task.done()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert states(db) == {"succeeded": 2, "dispatching": 1}
    assert "a mistake in the client" in caplog.text


async def test_a_database_that_fails_after_the_call_leaves_it_to_the_completer(db: Database) -> None:
    bank = Bank()
    refunds = shop(db, bank)
    run = db.run

    async def failing(work: Any) -> Any:
        if bank.paid:
            raise StoreError("the disk is full")
        return await run(work)

    db.run = failing  # type: ignore[assignment, method-assign]
    assert code(await refunds.refund(ask("1", 3_000))) == "unknown_outcome"
    db.run = run  # type: ignore[method-assign]
    assert (states(db), books(db)) == ({"dispatching": 1}, (0, 3_000))
    let_time_pass(db)
    assert await refunds.complete() == 1
    assert (states(db), books(db), len(bank.calls)) == ({"succeeded": 1}, (3_000, 0), 1)


async def test_the_completer_goes_on_after_an_error_and_ends_when_cancelled(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(steps, "COMPLETER_SECONDS", 0.01)
    bank = Bank(script=["lost"])
    refunds = shop(db, bank)
    await refunds.refund(ask("1", 3_000))
    let_time_pass(db)
    complete, failures = refunds.complete, iter([StoreError("away")])

    async def once_failing() -> int:
        for error in failures:
            raise error
        return await complete()

    monkeypatch.setattr(refunds, "complete", once_failing)
    task = asyncio.create_task(refunds.run_completer())
    async with asyncio.timeout(10):
        while not states(db)["succeeded"]:
            await asyncio.sleep(0.01)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert "away" in caplog.text
    assert books(db) == (3_000, 0)


async def test_what_cannot_go_on_does_not_keep_others_waiting(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """One refund of a payment is in doubt, and the older ones behind it fill a whole round."""
    monkeypatch.setattr(steps, "A_ROUND", 3)
    bank = Bank(LOOKUP, script=["before", "unsent"])
    refunds = shop(db, bank)
    for n in range(4):
        await refunds.refund(ask(f"p{n}", 100))
    assert await refunds.refund(ask("other", 100, order=order("1002")))
    db.transact(lambda tx: tx.change("UPDATE refund_intent SET next_attempt_at = 0 WHERE state = 'reserved'"))
    for _ in range(2):
        await refunds.complete()
    assert (states(db), books(db, "1002")) == ({"unknown": 1, "reserved": 3, "succeeded": 1}, (100, 0))


async def test_two_completers_share_the_work_and_do_none_of_it_twice(db: Database) -> None:
    bank = Bank(script=["lost"] * 4)
    first, second = shop(db, bank, owner="a"), shop(db, bank, owner="b")
    for n in range(4):
        await first.refund(ask(f"p{n}", 100, order=order(f"{2000 + n}")))
    let_time_pass(db)
    await asyncio.gather(first.complete(), second.complete())
    assert (states(db), len(bank.calls), bank.lookups) == ({"succeeded": 4}, 4, 4)


@pytest.mark.parametrize("mode", ["idempotent", "lookup"])
async def test_lost_answers_over_a_real_socket(db: Database, tmp_path: Path, mode: str) -> None:
    """The whole way, with every second answer lost in some way. Judged from the provider's ledger."""
    kinds = ("lost", "error_after", "unparsable")
    rules = [{"kind": kinds[n % 3], "match": f"pay_{2000 + n}"} for n in range(0, 20, 2)]
    with running_payments(tmp_path / "paid.jsonl", mode=mode) as sim:
        sim.set_faults(*rules)
        client = HttpPayments(sim.url)
        refunds = shop(db, client, lease=10.0)
        for n in range(20):
            await refunds.refund(ask(f"p{n}", 100 + n, order=order(f"{2000 + n}")))
        assert states(db) == {"succeeded": 10, "unknown": 10}
        let_time_pass(db)
        await refunds.complete()
        stats, requests = sim.stats(), [request for request in sim.requests() if request["what"] == "refund"]
        await client.aclose()
    assert states(db) == {"succeeded": 20}
    assert (stats["effects"], stats["duplicates"]) == (20, 0)
    assert (
        stats["paid"]["KRW"] == sum(100 + n for n in range(20)) == sum(books(db, f"{2000 + n}")[0] for n in range(20))
    )
    assert set(Counter(request["reference"] for request in requests).values()) == {1}  # it looked before it called


async def test_the_count_of_payments_can_fail(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: with a new key for each attempt the same losses are paid twice, and it shows."""

    def attempt(found: Intent) -> Call:
        return msgspec.structs.replace(call_of(found), key=f"{found.psp_key}-{found.lease_epoch}")

    monkeypatch.setattr(steps, "call_of", attempt)
    bank = Bank(script=["lost"])
    refunds = shop(db, bank)
    await refunds.refund(ask("1", 3_000))
    let_time_pass(db)
    await refunds.complete()
    assert bank.total == 6_000 != sum(books(db))


async def test_f32_a_lease_that_runs_out_is_fenced_and_the_holder_is_told(db: Database) -> None:
    """The holder sleeps past its lease, another one goes on: one effect, and the first learns that it lost."""
    bank = Bank()
    gate = bank.gate = asyncio.Event()
    holder, other = shop(db, bank, owner="holder", lease=60.0), shop(db, bank, owner="other")
    task = asyncio.create_task(holder.refund(ask("1", 3_000)))
    await asyncio.wait_for(bank.arrived.wait(), 10)
    let_time_pass(db)
    await other.complete()
    gate.set()
    assert done(await task).replayed
    assert (holder.fenced, len(bank.paid), books(db)) == (1, 1, (3_000, 0))


async def test_f33_one_key_at_once_then_changed_then_after_a_clean_failure(db: Database) -> None:
    bank = Bank()
    one, two = shop(db, bank, owner="a"), shop(db, bank, owner="b")
    assert code(await one.refund(ask("1", 10_001))) == "exceeds_refundable"  # before any effect: the key stays free
    codes = Counter(map(code, await asyncio.gather(one.refund(ask("1", 3_000)), two.refund(ask("1", 3_000)))))
    assert codes["ok"] >= 1
    assert codes["ok"] + codes["in_progress"] == 2
    assert code(await two.refund(ask("1", 3_001))) == "idempotency_key_reused"
    assert (len(bank.calls), books(db)) == (1, (3_000, 0))


@pytest.mark.parametrize(("total", "parts"), [(3_020, (1_185, 1_835)), (14_505, (14_505,))])
async def test_f49_sums_are_exact_to_the_cent(db: Database, total: int, parts: tuple[int, ...]) -> None:
    """30.20 USD as 11.85 and 18.35; 145.05 USD at once; then not a cent more."""
    bank = Bank()
    refunds = shop(db, bank)
    paid = order("1001", total, currency="USD")
    for n, part in enumerate(parts):
        outcome = done(await refunds.refund(ask(f"p{n}", part, order=paid)))
    assert (outcome.refunded_minor, outcome.refundable_minor) == (total, 0)
    assert code(await refunds.refund(ask("more", 1, order=paid))) == "exceeds_refundable"
    assert all(type(call.amount) is int for call in bank.calls)
    assert outcome.amount_text == f"${parts[-1] // 100}.{parts[-1] % 100:02}"


async def test_f50_twenty_at_once_never_exceed_the_payment(sql_url: str) -> None:
    """6.00 of 10.00 from two connections at once: with keys of their own one goes through, with one key it is one."""
    bank = Bank()
    paid = order("1001", 1_000, currency="USD"), order("1002", 1_000, currency="USD")
    first, second = open_db(sql_url), open_db(sql_url)
    shops = shop(first, bank, owner="a"), shop(second, bank, owner="b")
    own = await asyncio.gather(*(shops[n % 2].refund(ask(f"p{n}", 600, order=paid[0])) for n in range(20)))
    assert Counter(map(code, own)) == {"ok": 1, "exceeds_refundable": 19}
    same = await asyncio.gather(*(shops[n % 2].refund(ask("same", 600, order=paid[1])) for n in range(20)))
    assert {code(outcome) for outcome in same} <= {"ok", "in_progress"}
    assert len({done(outcome).refund_id for outcome in same if code(outcome) == "ok"}) == 1
    assert [books(first, one.order_id) for one in paid] == [(600, 0), (600, 0)]
    assert bank.total == 1_200
    first.close()
    second.close()
