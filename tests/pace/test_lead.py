from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siafu.pace.lead import Lead

LONG = 60.0


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def entering(lead: Lead, count: int, *, priority: int = 2, most: float = LONG) -> list[asyncio.Task[bool]]:
    return [asyncio.create_task(lead.enter(0.0, priority, most)) for _ in range(count)]


async def test_one_leads_and_the_others_go_when_it_is_warm() -> None:
    lead = Lead()
    assert await lead.enter(0.0, 2, LONG)
    others = entering(lead, 3)
    await settle()
    assert not any(other.done() for other in others)
    assert lead.warm(10.0) == 3
    lead.left()
    assert await asyncio.gather(*others) == [False] * 3
    assert not await lead.enter(9.9, 2, LONG)
    assert await lead.enter(10.0, 2, LONG)


async def test_when_it_fails_the_next_leads_one_at_a_time() -> None:
    lead = Lead()
    assert await lead.enter(0.0, 2, LONG)
    first, second = entering(lead, 2)
    await settle()
    lead.left()
    assert await first and not second.done()
    lead.left()
    assert await second
    lead.left()
    assert await lead.enter(0.0, 2, LONG)


async def test_a_cancelled_place_is_passed_on_also_in_the_moment_in_which_it_leads() -> None:
    lead = Lead()
    assert await lead.enter(0.0, 2, LONG)
    gone, chosen, last = entering(lead, 3)
    await settle()
    gone.cancel()
    await settle()
    lead.left()  # `chosen` leads now, and is cancelled before it hears of it
    chosen.cancel()
    assert await last
    assert [task.cancelled() for task in (gone, chosen)] == [True, True]


async def test_nobody_waits_longer_than_it_wants_nor_for_less_priority() -> None:
    lead = Lead()
    assert await lead.enter(0.0, 2, LONG)
    assert not await lead.enter(0.0, 1, LONG)
    assert not await lead.enter(0.0, 2, 0.01)
    assert lead.warm(1.0) == 0


async def test_all_who_wait_can_be_turned_away_each_with_an_error_of_its_own() -> None:
    lead = Lead()
    assert await lead.enter(0.0, 2, LONG)
    others = entering(lead, 2)
    await settle()
    others[1].cancel()
    lead.turn_away(lambda: ConnectionError("closed"))
    with pytest.raises(ConnectionError):
        await others[0]
    assert (await asyncio.wait({others[1]}))[0] and others[1].cancelled()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 30))
def test_whatever_happens_there_is_one_leader_at_most_and_nobody_is_forgotten(seed: int, count: int) -> None:
    async def play() -> None:
        rng, lead, leading, warmed = Random(seed), Lead(), 0, False

        async def one() -> None:
            nonlocal leading, warmed
            leads = await lead.enter(0.0, 2, LONG)
            if not leads:
                assert warmed
                return
            leading += 1
            assert leading == 1
            try:
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
                if rng.random() < 0.2:
                    warmed = True
                    lead.warm(1.0)
            finally:
                leading -= 1
                lead.left()

        tasks = [asyncio.create_task(one()) for _ in range(count)]
        while not all(task.done() for task in tasks):
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
            await asyncio.sleep(0)
        errors = [task.exception() for task in tasks if not task.cancelled()]
        assert errors == [None] * len(errors)

    asyncio.run(asyncio.wait_for(play(), 20))
