from __future__ import annotations

import asyncio
import time

import pytest

from siafu.pace.clock import Clock, SystemClock, VirtualClock


async def test_virtual_time_jumps_and_keeps_order() -> None:
    clock, log = VirtualClock(), []
    start, real = clock.now(), time.monotonic()

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        log.append((seconds, clock.now() - start))

    async with asyncio.TaskGroup() as group:
        for seconds in (3600.0, 5.0, 60.0, 5.0):
            group.create_task(sleeper(seconds))
    assert log == [(5.0, 5.0), (5.0, 5.0), (60.0, 60.0), (3600.0, 3600.0)]
    assert time.monotonic() - real < 10
    assert clock.wall() == 1_767_225_600.0 + 3600


async def test_virtual_time_waits_for_tasks_that_can_run() -> None:
    clock = VirtualClock()
    start = clock.now()

    async def busy() -> float:
        for _ in range(20):
            await asyncio.sleep(0)
        return clock.now() - start

    worker = asyncio.create_task(busy())
    await clock.sleep(10)
    assert await worker == 0.0


async def test_a_cancelled_sleeper_does_not_move_virtual_time() -> None:
    clock = VirtualClock()
    start = clock.now()
    sleeper = asyncio.create_task(clock.sleep(1000))
    await asyncio.sleep(0)
    sleeper.cancel()
    await clock.sleep(1)
    assert clock.now() - start == 1


def test_a_virtual_clock_goes_on_in_the_next_loop() -> None:
    clock = VirtualClock()
    start = clock.now()
    for seconds in (1, 2):
        asyncio.run(clock.sleep(seconds))
    assert clock.now() - start == 3


def test_a_virtual_clock_survives_a_loop_that_ended_with_sleepers() -> None:
    clock = VirtualClock()

    async def leave() -> None:
        task = asyncio.create_task(clock.sleep(50))
        await asyncio.sleep(0)
        assert not task.done()

    asyncio.run(leave())
    start = clock.now()
    asyncio.run(clock.sleep(1))
    assert clock.now() - start == 1


@pytest.mark.parametrize("clock", [SystemClock(), VirtualClock()], ids=["system", "virtual"])
async def test_no_wait_still_lets_others_run(clock: Clock) -> None:
    log: list[str] = []
    other = asyncio.create_task(asyncio.sleep(0))
    other.add_done_callback(lambda _: log.append("other"))
    for _ in range(3):
        await clock.sleep(-1)
    assert log == ["other"]


async def test_the_system_clock_waits_at_least_that_long() -> None:
    clock = SystemClock()
    start = clock.now()
    await clock.sleep(0.05)
    assert clock.now() - start >= 0.05
    assert abs(clock.wall() - time.time()) < 5
