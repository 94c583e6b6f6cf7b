"""Who is next, in the cases that the simulation (tests/dst) found; and what needed a task that is gone."""

from __future__ import annotations

from typing import Any

import pytest

from siafu.errors import InputError
from siafu.store.task_desk import Which
from siafu.store.task_records import AGED_SECONDS, AGED_SHARE, Failed

from .task_house import LEASE, House, new


async def order(house: House, most: int, **more: Any) -> str:
    """The tenants of the next claims."""
    return "".join([(await house.claim(1, **more))[0].tenant for _ in range(most)])


async def test_tenants_of_one_submission_take_turns(house: House) -> None:
    await house.added(*(new(tenant="a") for _ in range(3)), *(new(tenant="b") for _ in range(3)))
    assert await order(house, 6) == "ababab"


async def test_what_is_blocked_gets_its_turn_when_it_can_begin(house: House) -> None:
    """Otherwise a plan of hundred steps would go before all others once its first has succeeded."""
    first = await house.one(tenant="a", priority=1)
    await house.added(*(new(tenant="a", needs=(first,)) for _ in range(3)))
    await house.added(*(new(tenant="b") for _ in range(6)))
    root = await house.claimed()
    assert await order(house, 2) == "bb"
    await house.done(root)
    assert await order(house, 6) == "ababab"


async def test_who_waits_for_others_keeps_no_newcomer_waiting(house: House) -> None:
    first = await house.one(tenant="a", priority=1)
    await house.added(*(new(tenant="a", needs=(first,)) for _ in range(9)))
    await house.one(tenant="b")
    await house.done(await house.claimed())
    assert "b" in await order(house, 2)


async def test_what_people_retry_comes_behind_the_turn_that_is_next(house: House) -> None:
    ids = await house.added(*(new(tenant="a") for _ in range(3)))
    for lease in await house.claim(3):
        await house.store.end(lease.id, lease.epoch, Failed(code="bad", message=""))
    await house.added(*(new(tenant="b") for _ in range(6)))
    assert await order(house, 2) == "bb"
    assert await house.desk.retry(ids) == 3
    assert (await order(house, 4)).count("b") == 2


async def test_a_newcomer_is_next_although_an_old_task_went_before_its_turn(house: House) -> None:
    await house.added(*(new(tenant="a") for _ in range(6)))
    late = (await house.added(*(new(tenant="b") for _ in range(6))))[-1]
    house.pass_time(AGED_SECONDS + 1, late)
    (old,) = await house.claim(1, before=AGED_SHARE - 1)
    assert old.id == late
    await house.one(tenant="c")
    assert "c" in await order(house, 3)


@pytest.mark.parametrize("how", ["purged", "forgotten"])
async def test_what_needed_a_task_that_failed_and_is_gone_cannot_be_retried(house: House, how: str) -> None:
    need = await house.one(customer="kim")
    other = await house.one(needs=(need,), customer="lee")
    lease = await house.claimed()
    await house.store.end(lease.id, lease.epoch, Failed(code="bad", message=""))
    assert (await house.task(other)).code == "need_failed"
    if how == "purged":
        house.pass_time(100, need)
        assert await house.desk.purge(Which(), 50) == 1
    else:
        assert await house.desk.forget("kim", "") == 1
    with pytest.raises(InputError):
        await house.task(need)
    assert await house.desk.retry([other]) == 0
    task = await house.task(other)
    assert (task.state, task.code) == ("cancelled", "need_gone") and need in task.message


async def test_what_needed_a_task_that_succeeded_and_is_gone_can_be_retried(house: House) -> None:
    need = await house.one()
    other = await house.one(needs=(need,))
    await house.done(await house.claimed())
    lease = await house.claimed()
    await house.store.end(lease.id, lease.epoch, Failed(code="bad", message=""))
    house.pass_time(100, need)
    assert await house.desk.purge(Which(), 50) == 1
    assert await house.desk.retry([other]) == 1
    assert (await house.claimed()).id == other


HOWS = ("at once", "first to last", "last to first", "all but some", "forgotten", "expired")


@pytest.mark.parametrize("how", HOWS)
async def test_what_ends_before_it_began_has_used_no_turn(house: House, how: str) -> None:
    deadline = 60.0 if how == "expired" else None
    mine = await house.added(*(new(tenant="a", customer="kim", deadline=deadline) for _ in range(30)))
    await house.added(*(new(tenant="b") for _ in range(60)))
    assert await order(house, 4) == "abab"
    gone, kept = mine[2:], 0
    if how == "all but some":
        gone, kept = [*mine[2:10], *mine[14:]], 4
    if how == "expired":
        house.pass_time(61)
        await house.store.tick("w", {}, LEASE, renew=False)
    elif how == "forgotten":
        await house.desk.forget("kim", "a")
    else:
        gone.sort(key=mine.index, reverse=how == "last to first")
        for part in [gone] if how == "at once" else [[id] for id in gone]:
            await house.desk.cancel(part)
    await house.added(*(new(tenant="a") for _ in range(3)))
    found = await order(house, kept + 3 + (15 if kept else 6))  # what is left is where it was, and the new ones behind
    assert found.count("a") == kept + 3, found


async def test_nobody_gains_a_turn_by_cancelling(house: House) -> None:
    """A tenant that submits and cancels again and again gets no more turns than others."""
    await house.added(*(new(tenant="b") for _ in range(40)))
    found = ""
    for _ in range(15):
        await house.desk.cancel([await house.one(tenant="a")])
        await house.one(tenant="a")
        found += await order(house, 2)
    assert found.count("a") <= found.count("b") + 1
