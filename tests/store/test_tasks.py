"""The contract of work items, on every database they run on."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

import pytest

from siafu.errors import Conflict, Fenced, InputError, StoreError
from siafu.store.records import JournalEntry
from siafu.store.task_desk import Which
from siafu.store.task_records import (
    BOUND,
    MAX_PAYLOAD,
    MOST_DELIVERIES,
    Accepted,
    Cancelled,
    Expired,
    Failed,
    HandedBack,
    Later,
    NotAccepted,
    Succeeded,
    task_key,
)

from .task_house import LEASE, House, new


def entry(seq: int = 0, outcome: bytes = b'"\xea\xb0\x80"') -> JournalEntry:
    return JournalEntry(path="/답", seq=seq, kind="model", fingerprint="f", outcome=outcome, usd_pico=7)


# ---- accepting ---------------------------------------------------------------------------------------------------


async def test_what_was_accepted_is_claimed_once_and_ends_once(house: House) -> None:
    ids = await house.added(*(new(f"r{n}", run="실행", customer="kim") for n in range(250)))
    taken = await asyncio.gather(*(house.claim(30, worker=f"w{n}") for n in range(10)))
    leases = list(itertools.chain.from_iterable(taken))
    assert Counter(lease.id for lease in leases) == Counter(ids)
    assert {
        (lease.payload, lease.run, lease.customer, lease.epoch, lease.retried, lease.begun) for lease in leases
    } == {('{"text":"안녕"}', "실행", "kim", 1, False, False)}
    ended = await asyncio.gather(*(house.store.end(each.id, each.epoch, Succeeded("1")) for each in leases))
    assert Counter(ended) == {"succeeded": 250}
    assert await house.states() == {"succeeded": 250}
    assert await house.claim(1) == []


async def test_one_key_is_one_task(house: House) -> None:
    first, again, other = await house.store.accept([new("k1"), new("k1"), new("k1", payload="{}")])
    assert isinstance(first, Accepted) and first.fresh
    assert again == Accepted(id=first.id, state="ready", fresh=False)
    assert other == NotAccepted(code="key_reused", id=first.id)
    # Later, when it has ended, and for every other tenant.
    await house.done(await house.claimed())
    answers = await house.store.accept([new("k1"), new("k1", customer="lee"), new("k1", tenant="other")])
    assert answers[:2] == [
        Accepted(id=first.id, state="succeeded", fresh=False),
        NotAccepted(code="key_reused", id=first.id),
    ]
    assert isinstance(answers[2], Accepted) and answers[2].fresh


async def test_one_key_submitted_at_once_by_many_is_one_task(sql_url: str) -> None:
    houses = [House(sql_url) for _ in range(4)]
    try:
        answers = await asyncio.gather(*(each.store.accept([new("same")]) for each in houses for _ in range(5)))
        found = [answer for (answer,) in answers]
        assert len({answer.id for answer in found}) == 1
        assert sum(isinstance(answer, Accepted) and answer.fresh for answer in found) == 1
    finally:
        for each in houses:
            await each.aclose()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"payload": "x" * (MAX_PAYLOAD + 1)}, "4,194,305 bytes"),
        ({"priority": 0}, "priority"),
        ({"priority": 4}, "priority"),
        ({"deadline": 0.0}, "deadline"),
        ({"once": ""}, "once"),
        ({"run": "가" * 401}, "run"),
        ({"needs": tuple(f"t_{n}" for n in range(101))}, "needs 101"),
    ],
)
async def test_what_cannot_be_kept_is_refused_and_nothing_else_lost(house: House, wrong: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        await house.store.accept([new("good"), new(**{"once": "bad", **wrong})])
    assert await house.states() == {}
    await house.one(once="good")


async def test_a_text_with_half_a_character_is_kept_with_a_mark(house: House) -> None:
    task = await house.task(await house.one(payload='"\ud800\x00"', customer="\x00"))
    assert (task.payload, task.customer) == ('"\ufffd\ufffd"', "\ufffd")


# ---- the order ---------------------------------------------------------------------------------------------------


async def test_priority_goes_first_and_tenants_take_turns(house: House) -> None:
    await house.added(*(new(tenant="big", run=f"big{n}") for n in range(6)))
    await house.added(*(new(tenant="small", run=f"small{n}") for n in range(2)))
    await house.one(priority=1, tenant="big", run="now")
    await house.one(priority=3, tenant="small", run="last")
    order = [lease.run for lease in await house.claim(7)]  # not eight: the oldest would come into it
    assert order == ["now", "big0", "small0", "big1", "small1", "big2", "big3"]
    assert [lease.run for lease in await house.claim(7, before=7)] == ["big4", "big5", "last"]


async def test_who_was_idle_has_saved_nothing_up(house: House) -> None:
    await house.added(*(new(tenant="a", run=f"a{n}") for n in range(100)))
    for lease in await house.claim(60):
        await house.done(lease)
    await house.claim(2)
    await house.added(*(new(tenant="b", run=f"b{n}") for n in range(5)))
    assert [lease.run for lease in await house.claim(7)] == ["a62", "b0", "a63", "b1", "a64", "b2", "a65"]


async def test_the_oldest_gets_one_claim_in_eight_once_it_has_waited_a_minute(house: House) -> None:
    old = await house.one(priority=3, run="old")
    await house.added(*(new(priority=1, run="new") for _ in range(30)))
    assert {lease.run for lease in await house.claim(16)} == {"new"}
    house.pass_time(61, old)
    assert [lease.run for lease in await house.claim(1, before=16)] == ["new"]
    assert Counter(lease.run for lease in await house.claim(7, before=17)) == {"new": 6, "old": 1}


async def test_a_worker_gets_only_kinds_it_can_do(house: House) -> None:
    await house.one(kind="other")
    assert await house.claim(5) == []
    assert [lease.kind for lease in await house.claim(5, kind="other")] == ["other"]


# ---- leases ------------------------------------------------------------------------------------------------------


async def test_g2_a_worker_that_lost_its_lease_can_write_nothing(house: House) -> None:
    await house.one()
    first = await house.claimed("first")
    await house.store.append(first.id, first.epoch, entry(outcome=b"1"))
    house.pass_time(LEASE + 1)
    assert await house.sweep() == 1
    second = await house.claimed("second")
    assert (second.id, second.epoch, second.begun, second.retried) == (first.id, 2, True, False)
    assert await house.store.entries(second.id) == [entry(outcome=b"1")]
    with pytest.raises(Fenced, match="another worker"):
        await house.store.append(first.id, first.epoch, entry(outcome=b"2"))
    assert await house.store.end(first.id, first.epoch, Succeeded('"late"')) is None
    found = await house.store.tick("first", {first.id: first.epoch}, LEASE, renew=True)
    assert found.lost == {first.id}
    await house.done(second)
    assert await house.store.end(first.id, first.epoch, Failed(code="x", message="x")) is None
    task = await house.task(first.id)
    assert (task.result, task.fenced, task.state) == ('"됐어요"', 4, "succeeded")
    assert await house.store.entries(first.id) == [entry(outcome=b"1")]


async def test_a_worker_that_renews_what_it_has_just_ended_was_not_fenced(house: House) -> None:
    await house.one()
    mine = await house.claimed()
    await house.done(mine)
    assert (await house.store.tick("w", {mine.id: mine.epoch}, LEASE, renew=True)).lost == {mine.id}
    assert (await house.task(mine.id)).fenced == 0


async def test_g9_a_lease_that_is_renewed_lasts(house: House) -> None:
    await house.added(new(), new())
    mine, other = await house.claim(2)
    for _ in range(4):
        house.pass_time(LEASE - 1)
        found = await house.store.tick("w", {mine.id: mine.epoch}, LEASE, renew=True)
        assert found.lost == frozenset()
    # The other one was not renewed, and was not dead letter yet either.
    assert (await house.task(other.id)).state == "ready"
    assert (await house.task(mine.id)).lease_epoch == 1
    await house.done(mine)


async def test_a_lease_of_a_paused_worker_that_nobody_wanted_is_still_its_own(house: House) -> None:
    await house.one()
    lease = await house.claimed()
    house.pass_time(LEASE + 1)
    assert (await house.store.tick("w", {lease.id: lease.epoch}, LEASE, renew=True)).lost == frozenset()
    await house.done(lease)


async def test_g17_after_three_deliveries_that_came_to_nothing_it_is_dead(house: House) -> None:
    poison, fine = await house.added(new("poison"), new("fine"))
    for number in range(1, MOST_DELIVERIES + 1):
        lease, *_ = await house.claim(2)
        assert (lease.id, lease.epoch) == (poison, number)
        house.pass_time(LEASE + 1, poison)
        await house.sweep()
    task = await house.task(poison)
    assert (task.state, task.code, task.deliveries) == ("dead_letter", "worker_lost", 3)
    assert [lease.id for lease in await house.claim(5)] == []  # the first claim took the other one
    assert (await house.task(fine)).deliveries == 1


async def test_an_error_that_may_pass_is_tried_again_later_and_counts_as_a_delivery(house: House) -> None:
    id = await house.one()
    failed = Failed(code="overloaded", message="지금은 안 돼요", passing=True)
    for seconds in (5, 10):
        lease = await house.claimed()
        assert await house.store.end(id, lease.epoch, failed) == "waiting"
        task = await house.task(id)
        assert task.ready_at - task.created_at >= seconds
        assert await house.sweep() == 0
        house.pass_time(seconds)
        assert await house.sweep() == 1
    lease = await house.claimed()
    assert lease.retried
    assert await house.store.end(id, lease.epoch, failed) == "dead_letter"
    assert ((await house.task(id)).code, (await house.task(id)).message) == ("overloaded", "지금은 안 돼요")


async def test_an_error_that_stays_fails_at_once(house: House) -> None:
    await house.one()
    lease = await house.claimed()
    verdict = Failed(code="request_refused", message="no", result='{"id":1}')
    assert await house.store.end(lease.id, lease.epoch, verdict) == "failed"
    assert (await house.task(lease.id)).result == '{"id":1}'


async def test_what_waits_for_a_person_or_is_handed_back_is_no_failed_delivery(house: House) -> None:
    id = await house.one()
    for _ in range(2 * MOST_DELIVERIES):
        lease = await house.claimed()
        assert await house.store.end(id, lease.epoch, Later(code="pending_approval", result='"wait"')) == "waiting"
        task = await house.task(id)
        assert (task.waits_for, task.result, task.deliveries) == ("pending_approval", '"wait"', 0)
        house.pass_time(301)
        assert await house.sweep() == 1
        lease = await house.claimed()
        assert await house.store.end(id, lease.epoch, HandedBack()) == "ready"
    await house.done(await house.claimed())


async def test_a_crash_after_an_error_leaves_the_error_known(house: House) -> None:
    """So what failed then is still tried anew, and not told from the journal."""
    id = await house.one()
    lease = await house.claimed()
    await house.store.end(id, lease.epoch, Failed(code="overloaded", message="", passing=True))
    house.pass_time(5)
    await house.sweep()
    await house.claimed()
    house.pass_time(LEASE + 1)
    await house.sweep()
    assert (await house.claimed()).retried


# ---- deadlines, needs, cancelling --------------------------------------------------------------------------------


async def test_a_deadline_ends_what_waits_and_is_told_to_who_works(house: House) -> None:
    await house.added(new(deadline=60.0), new(deadline=60.0))
    lease = await house.claimed()
    assert lease.seconds_left is not None and 50 < lease.seconds_left <= 60
    house.pass_time(61)
    assert await house.sweep() == 2  # one was ready; the lease of the other is over, too
    assert await house.states() == {"expired": 2}


async def test_a_worker_may_say_itself_that_time_is_over(house: House) -> None:
    await house.one(deadline=60.0)
    lease = await house.claimed()
    assert await house.store.end(lease.id, lease.epoch, Expired()) == "expired"


async def test_a_task_begins_when_all_it_needs_has_succeeded(house: House) -> None:
    first, second = await house.added(new(run="first"), new(run="second"))
    third = await house.one(run="third", needs=(first, second, first))
    fourth = await house.one(run="fourth", needs=(third,))
    one, two = await house.claim(5)
    await house.done(one)
    assert await house.claim(5) == []
    await house.done(two)
    assert [lease.id for lease in await house.claim(5)] == [third]
    assert (await house.task(fourth)).state == "blocked"


async def test_what_needs_a_task_that_does_not_succeed_is_cancelled_with_it(house: House) -> None:
    first = await house.one()
    second = await house.one(needs=(first,))
    third, other = await house.added(new(needs=(second,)), new())
    lease, other_lease = await house.claim(2)
    await house.store.end(first, lease.epoch, Failed(code="bad", message="bad"))
    for id in (second, third):
        task = await house.task(id)
        assert (task.state, task.code) == ("cancelled", "need_failed")
    assert other_lease.id == other
    answers = await house.store.accept([new(needs=(second,)), new(needs=("t_no",)), new(needs=(other,), tenant="x")])
    assert answers == [
        NotAccepted(code="need_failed", id=second),
        NotAccepted(code="need_unknown", id="t_no"),
        NotAccepted(code="need_unknown", id=other),
    ]


async def test_cancelling_ends_what_has_not_begun_and_reaches_what_runs(house: House) -> None:
    running, ready, done = await house.added(new(), new(), new())
    lease, _, last = await house.claim(3)
    await house.store.end(ready, 1, HandedBack())
    await house.done(last)
    assert await house.desk.cancel([running, ready, done, "t_no"]) == 1
    assert [(await house.task(id)).state for id in (running, ready, done)] == ["leased", "cancelled", "succeeded"]
    others = await house.store.tick("other", {}, LEASE, renew=False)
    mine = await house.store.tick("w", {running: 1}, LEASE, renew=False)
    assert others.to_cancel == frozenset() and mine.to_cancel == {running}
    assert await house.store.end(running, lease.epoch, Cancelled()) == "cancelled"


@pytest.mark.parametrize("verdict", [HandedBack(), Later(code="x"), Failed(code="x", message="", passing=True), None])
async def test_a_cancelled_task_is_never_begun_again(house: House, verdict: Any) -> None:
    id = await house.one()
    lease = await house.claimed()
    await house.desk.cancel([id])
    if verdict is None:  # its worker dies
        house.pass_time(LEASE + 1)
        await house.sweep()
    else:
        await house.store.end(id, lease.epoch, verdict)
    assert (await house.task(id)).state == "cancelled"


async def test_work_that_was_done_before_the_cancellation_arrived_counts(house: House) -> None:
    id = await house.one()
    lease = await house.claimed()
    await house.desk.cancel([id])
    await house.done(lease)


async def test_retrying_goes_on_from_the_journal(house: House) -> None:
    id, good = await house.added(new(deadline=60.0), new())
    lease, other = await house.claim(2)
    await house.store.append(id, lease.epoch, entry())
    await house.store.end(id, lease.epoch, Failed(code="bad", message="bad"))
    await house.done(other)
    house.pass_time(61)
    assert await house.desk.retry([id, good]) == 1
    again = await house.claimed()
    assert (again.id, again.epoch, again.retried, again.begun, again.seconds_left) == (id, 2, True, True, None)
    assert await house.store.entries(id) == [entry()]
    await house.done(again)
    assert (await house.task(id)).code == ""


async def test_what_needs_others_is_retried_once_they_can_succeed(house: House) -> None:
    first = await house.one(deadline=60.0)
    second = await house.one(needs=(first,), deadline=60.0)
    house.pass_time(61)
    assert await house.sweep() == 2
    assert [(await house.task(id)).state for id in (first, second)] in (["expired"] * 2, ["expired", "cancelled"])
    assert await house.desk.retry([second]) == 0
    assert await house.desk.retry([second, first]) == 2
    assert (await house.task(second)).state == "blocked"
    await house.done(await house.claimed())
    await house.done(await house.claimed())
    assert await house.states() == {"succeeded": 2}


# ---- keeping and forgetting --------------------------------------------------------------------------------------


async def test_purging_removes_what_has_ended_long_ago_and_frees_its_key(house: House) -> None:
    old, _ = await house.added(new("old"), new("young"))
    for lease in await house.claim(2):
        await house.store.append(lease.id, lease.epoch, entry())
        await house.done(lease)
    await house.one(once="open")
    house.pass_time(3600, old)
    assert await house.desk.purge(Which(), 3000) == 1
    assert await house.states() == {"succeeded": 1, "ready": 1}
    assert await house.store.entries(old) == []
    assert await house.one(once="old") != old


async def test_forgetting_a_customer_removes_all_of_theirs_and_stops_what_runs(house: House) -> None:
    running, done, ready = await house.added(*(new(customer="kim") for _ in range(3)))
    other = await house.one(customer="kim", tenant="elsewhere", priority=3)
    needs = await house.one(customer="lee", needs=(ready,))
    lease, ended = await house.claim(2)
    assert {lease.id, ended.id} == {running, done}
    await house.store.append(lease.id, lease.epoch, entry())
    await house.done(ended)
    assert await house.desk.forget("kim", "") == 3
    assert await house.store.end(lease.id, lease.epoch, Succeeded('"kim"')) is None
    with pytest.raises(Fenced):
        await house.store.append(lease.id, lease.epoch, entry())
    assert (await house.store.tick("w", {lease.id: 1}, LEASE, renew=True)).lost == {lease.id}
    assert (await house.task(needs)).state == "cancelled"
    assert (await house.task(other)).state == "ready"
    sql = "SELECT (SELECT COUNT(*) FROM task WHERE customer = 'kim') + (SELECT COUNT(*) FROM task_journal) AS n"
    assert house.database.transact(lambda tx: tx.rows(sql))[0]["n"] == 1


async def test_pages_hold_everything_once_in_the_order_of_submission(house: House) -> None:
    await house.added(*(new(run=f"{n:03}") for n in range(25)))
    runs: list[str] = []
    last = None
    while page := await house.desk.find(Which(), limit=10, after=last):
        last, runs = page[-1], runs + [task.run for task in page]
    assert runs == [f"{n:03}" for n in range(25)]
    for lease in await house.claim(7):
        await house.done(lease)
    first = await house.desk.ended(Which(), limit=4)
    rest = await house.desk.ended(Which(), limit=4, after=first[-1])
    assert len({task.id for task in first + rest}) == 7


async def test_an_id_that_names_no_one_task(house: House) -> None:
    await house.added(*(new() for _ in range(17)))
    one = (await house.desk.find(Which(), limit=1))[0].id
    with pytest.raises(InputError, match=r"several tasks are meant by 't_': t_\S+ \(.*\), t_.* and more; say more"):
        await house.desk.one("t_")
    for begin in ("", "t_zz", "x", "t_%", "t_" + "0" * 32, one.upper(), one + "0"):
        with pytest.raises(InputError, match="there is no task"):
            await house.desk.one(begin)


async def test_a_name_that_looks_like_the_beginning_of_an_id_is_not_mistaken_for_one(house: House) -> None:
    (other,) = await house.added(new())
    (named,) = await house.added(new(run="r", once=task_key("r", other[:4])))
    with pytest.raises(InputError, match=f"several tasks are meant .*{other}.*r/{other[:4]}"):
        await house.desk.one(other[:4])
    assert (await house.desk.one(other)).id == other
    assert (await house.desk.one(f"r/{other[:4]}")).id == named


async def test_the_beginning_of_an_id_is_enough(house: House) -> None:
    ids = await house.added(*(new() for _ in range(30)))
    for id in ids:
        assert (await house.desk.one(id[:20])).id == id


# ---- the tables alone --------------------------------------------------------------------------------------------


async def test_the_tables_refuse_what_makes_no_sense(house: House) -> None:
    await house.one()
    for change in (
        "state = 'leased'",
        "state = 'succeeded', ended_at = {now}",  # without a result
        "state = 'failed'",
        "state = 'blocked'",
        "state = 'nonsense'",
        "priority = 4",
        "deps_left = 1, state = 'blocked', ended_at = {now}",
        "deps_left = 1",
    ):
        with pytest.raises(Conflict):
            await house.database.run(lambda tx, change=change: tx.change(f"UPDATE task SET {change}"))  # type: ignore[misc]


async def test_an_error_of_one_is_an_error_for_all_who_share_the_transaction(house: House) -> None:
    async def bad() -> None:
        await house.store.together.run(lambda tx: tx.change("UPDATE nonsense SET x = 1"))

    outcomes = await asyncio.gather(house.one(), bad(), house.one(), return_exceptions=True)
    assert isinstance(outcomes[1], StoreError)
    assert len(await house.desk.find(Which(), limit=9)) == sum(isinstance(each, str) for each in outcomes)
    await house.one()


async def test_what_was_submitted_under_a_key_and_what_has_ended_is_found(house: House) -> None:
    first, second = await house.added(new("첫째"), new("둘째"))
    await house.added(new("첫째", tenant="other"))
    assert await house.desk.known("", ["둘째", "첫째", "셋째"]) == {"첫째": first, "둘째": second}
    assert await house.desk.known("", []) == {}
    await house.done(await house.claimed())
    assert await house.desk.ended_of([first, second, "t_0"]) == {first, "t_0"}


async def test_a_task_is_found_by_its_name_whatever_slashes_are_in_it_and_whoever_it_is_for(house: House) -> None:
    named = {"6월/월": ("문의/1", "1"), "r": ("문의/1", "r%", "1' OR 1")}
    ids = {
        (run, name): await house.one(run=run, once=task_key(run, name) + (f"{BOUND}kim" if run == "r" else ""))
        for run, names in named.items()
        for name in names
    }
    for (run, name), id in ids.items():
        assert (await house.desk.one(f"{run}/{name}")).id == id
    assert (await house.desk.one("1")).id == ids["6월/월", "1"]
    for wrong in ("문의/1", "r", "월/1", "rx", "1\x1fkim", "", "/"):
        with pytest.raises(InputError, match="several" if wrong == "문의/1" else "there is no"):
            await house.desk.one(wrong)
