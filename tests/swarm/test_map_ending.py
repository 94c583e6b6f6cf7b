"""How a map ends: by itself, by a limit, by whoever holds it; always with everything awaited that was cancelled."""

from __future__ import annotations

import asyncio
import gc
import itertools
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from siafu.agents.task import TaskContext
from siafu.errors import (
    AccessRefused,
    BudgetReached,
    DeadlineReached,
    InputError,
    QuotaExhausted,
    SiafuError,
    StoreError,
    UnpricedModel,
)
from siafu.gateway.scripted import Scripted
from siafu.pace.clock import SystemClock, VirtualClock
from swarm.nest import DictStore, collect, results, start


class Ants:
    """Work that waits for ever and counts what becomes of it. `stubborn`: how often it swallows being cancelled."""

    def __init__(self, *, stubborn: int = 0, quick: int = 0) -> None:
        self.begun = self.ended = self.swallowed = 0
        self.stubborn = stubborn
        self.quick = quick

    async def work(self, item: int, ctx: TaskContext) -> int:
        if item < self.quick:
            return item
        self.begun += 1
        left = self.stubborn
        try:
            while True:
                try:
                    await asyncio.Future()
                except asyncio.CancelledError:
                    if not left:
                        await asyncio.sleep(0)  # cleaning up takes its time
                        raise
                    left -= 1
                    self.swallowed += 1
        finally:
            self.ended += 1

    def fingerprint(self) -> str:
        return "ants"


async def settle(check: Any) -> None:
    async with asyncio.timeout(10):
        while not check():
            await asyncio.sleep(0)


def others() -> int:
    """Tasks beside this one."""
    return len(asyncio.all_tasks()) - 1


async def test_closing_awaits_what_it_cancels() -> None:
    ants = Ants(quick=1)
    run = start(ants, itertools.count(), concurrency=5)
    assert (await anext(run)).value == 0
    await settle(lambda: ants.begun == 5)
    await run.aclose()
    assert (ants.ended, others()) == (5, 0)
    await run.aclose()
    assert [r async for r in run] == []
    assert run.summary.stopped == "closed"
    assert run.summary.left == run.summary.read - 1


async def test_leaving_the_context_closes() -> None:
    ants = Ants()
    async with start(ants, range(9), concurrency=3) as run:
        waiting = asyncio.ensure_future(anext(run))
        await settle(lambda: ants.begun == 3)
    assert ants.ended == 3
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert others() == 0


async def test_a_run_closed_before_its_first_result_never_starts() -> None:
    run = start(Ants(), itertools.count())
    await run.aclose()
    assert [r async for r in run] == []
    assert (run.summary.read, others()) == (0, 0)


async def test_cancelling_the_reader_cancels_the_work() -> None:
    ants = Ants()
    reader = asyncio.create_task(collect(start(ants, range(9), concurrency=4)))
    await settle(lambda: ants.begun == 4)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert (ants.ended, others()) == (4, 0)


async def test_a_break_leaks_nothing() -> None:
    ants = Ants(quick=1)

    async def read() -> None:
        async for _ in start(ants, itertools.count(), concurrency=4):
            break

    await read()
    gc.disable()  # the handle is let go of by itself, not by the cycle collector
    try:
        await settle(lambda: others() == 0)
    finally:
        gc.enable()
    assert ants.ended == ants.begun


def test_a_break_at_the_end_of_a_script_leaves_no_warning() -> None:
    script = """
import asyncio, itertools
from siafu.agents.task import Surroundings
from siafu.gateway.scripted import Scripted
from siafu.pace.clock import SystemClock
from siafu.swarm.map import map_items
from siafu.swarm.options import MapOptions

async def work(item, ctx):
    try:
        await asyncio.sleep(item)
    finally:
        await asyncio.sleep(0)

async def main():
    around = Surroundings(endpoint=Scripted([]), clock=SystemClock())
    async for r in map_items(work, itertools.count(), around=around, options=MapOptions(concurrency=5)):
        break

asyncio.run(main())
asyncio.run(main())
kept = []
async def keep():
    around = Surroundings(endpoint=Scripted([]), clock=SystemClock())
    kept.append(map_items(work, itertools.count(), around=around))
    await anext(kept[0])
asyncio.run(keep())
"""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script], capture_output=True, text=True, timeout=60
    )
    said = [line for line in done.stderr.splitlines() if "Executing <" not in line]  # of a busy machine
    assert (done.returncode, said) == (0, [])


@pytest.mark.parametrize("stubborn", [1, 100])
async def test_work_that_swallows_being_cancelled_does_not_hang_the_end(stubborn: int) -> None:
    ants = Ants(stubborn=stubborn)
    run = start(ants, range(3), concurrency=3, grace=0.05)
    reader = asyncio.ensure_future(anext(run))
    await settle(lambda: ants.begun == 3)
    async with asyncio.timeout(10):
        await run.aclose()
    with pytest.raises(StopAsyncIteration):
        await reader
    assert run.summary.abandoned == (0 if stubborn == 1 else 3)
    assert ants.ended == (3 if stubborn == 1 else 0)
    ants_left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    for _ in range(100):
        for task in ants_left:
            task.cancel()
        await asyncio.sleep(0)
    await settle(lambda: others() == 0)


async def test_an_input_that_swallows_being_cancelled_does_not_hang_the_end(caplog: pytest.LogCaptureFixture) -> None:
    swallowed = 0

    async def stubborn() -> AsyncIterator[int]:
        nonlocal swallowed
        yield 0
        while swallowed < 4:
            try:
                await asyncio.Future()
            except asyncio.CancelledError:
                swallowed += 1

    run = start(Ants(quick=1), stubborn(), grace=0.02)
    assert (await anext(run)).ok
    async with asyncio.timeout(10):
        await run.aclose()
    assert "did not end" in caplog.text
    for _ in range(4):
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
    await settle(lambda: others() == 0)


# ---- fail fast --------------------------------------------------------------------------------------------------


async def test_fail_fast_cancels_the_rest_and_raises() -> None:
    ants = Ants(quick=3)

    async def work(item: int, ctx: TaskContext) -> int:
        if item == 7:
            await settle(lambda: ants.begun == 6)
            raise KeyError("seven")
        return await ants.work(item, ctx)

    run = start(work, itertools.count(), concurrency=7, on_error="fail_fast")
    found = []
    with pytest.raises(KeyError, match="seven") as caught:
        async for result in run:
            found.append(result.value)  # noqa: PERF401  what came before the error counts
    assert found == [0, 1, 2]
    assert caught.value.__notes__ == ["while working on item '7' (no. 8)"]
    assert (ants.ended, others()) == (ants.begun, 0)
    assert run.summary.stopped == "failed"


async def test_fail_fast_counts_items_that_cannot_run() -> None:
    with pytest.raises(InputError, match="has the key 'a' too"):
        await results(Ants(quick=9), [1, 2], key=lambda i: "a", on_error="fail_fast")


async def test_fail_fast_raises_again_what_an_earlier_session_recorded() -> None:
    store = DictStore()

    async def work(item: int, ctx: TaskContext) -> int:
        raise KeyError("seven")

    assert [r.ok for r in await results(work, [7], store=store)] == [False]
    with pytest.raises(SiafuError, match="KeyError: 'seven' \\(in an earlier session; see retry_failed\\)"):
        await results(work, [7], store=store.next_session(), on_error="fail_fast")


# ---- time -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", [SystemClock(), VirtualClock()])
async def test_an_item_that_takes_too_long_is_an_error_and_its_work_is_cancelled(clock: Any) -> None:
    ants = Ants(quick=1)
    found = await results(ants, [1, 0], item_timeout=0.05, ordered=True, clock=clock)
    assert [r.error.code if r.error else None for r in found] == ["deadline_reached", None]
    assert found[0].seconds >= 0.05
    assert (ants.begun, ants.ended) == (1, 1)
    await settle(lambda: others() == 0)  # the virtual clock has a task of its own


async def test_calls_know_the_deadline_of_their_item() -> None:
    endpoint, clock = Scripted(lambda request, context: "ok"), VirtualClock()
    await results("{item}", ["a"], endpoint=endpoint, clock=clock, item_timeout=30, deadline=100)
    await results("{item}", ["a"], endpoint=endpoint, clock=clock, item_timeout=30, deadline=10)
    await results("{item}", ["a"], endpoint=endpoint, clock=clock)
    assert [c.deadline and c.deadline - clock.now() for c in endpoint.contexts] == [30, 10, None]


@pytest.mark.parametrize("stubborn", [1, 100])
async def test_late_work_that_swallows_being_cancelled_frees_its_place(stubborn: int) -> None:
    ants = Ants(stubborn=stubborn, quick=1)
    run = start(ants, [1, 0], item_timeout=0.05, concurrency=1, grace=0.05, ordered=True)
    found = await collect(run)
    assert [r.ok for r in found] == [False, True]
    assert run.summary.abandoned == (0 if stubborn == 1 else 1)
    for _ in range(100):
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)


@pytest.mark.parametrize("with_store", [False, True])
async def test_when_the_whole_time_is_over_the_rest_is_left_not_failed(with_store: bool) -> None:
    store = DictStore() if with_store else None
    ants = Ants(quick=2)
    run = start(ants, range(10), concurrency=4, deadline=0.1, store=store)
    assert sorted(r.value for r in await collect(run)) == [0, 1]
    summary = run.summary
    assert (summary.ok, summary.failed, summary.left, summary.stopped) == (2, 0, 8, "deadline_reached")
    assert (ants.ended, others()) == (4, 0)
    assert store is None or len(store.records) == 2


async def test_items_for_which_the_time_is_too_short_do_not_block_shorter_ones() -> None:
    async def work(item: int, ctx: TaskContext) -> int:
        if item % 10:
            raise DeadlineReached("no time for another call")
        return item

    run = start(work, range(100), deadline=50, concurrency=2, lookahead=1)
    assert [r.value for r in await collect(run)] == list(range(0, 100, 10))
    assert (run.summary.ok, run.summary.left, run.summary.stopped) == (10, 90, "deadline_reached")


async def test_a_call_that_meets_the_end_of_the_run_does_not_fail_its_item() -> None:
    async def work(item: int, ctx: TaskContext) -> None:
        raise DeadlineReached("no time for another call")

    run = start(work, range(3), deadline=50)
    assert await collect(run) == []
    assert (run.summary.left, run.summary.failed) == (3, 0)
    assert [r.error.code for r in await results(work, range(3), deadline=50, item_timeout=20) if r.error] == [
        "deadline_reached"
    ] * 3


# ---- what pauses ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [BudgetReached("5 USD are spent"), QuotaExhausted("no credit"), AccessRefused("401"), UnpricedModel("?")]
)
async def test_what_every_item_would_meet_stops_new_items_and_lets_the_others_end(error: SiafuError) -> None:
    store = DictStore()
    stopped = asyncio.Event()
    begun = []

    async def work(item: int, ctx: TaskContext) -> int:
        begun.append(item)
        if item == 2:
            stopped.set()
            raise error
        await stopped.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        return item

    run = start(work, itertools.count(), concurrency=3, store=store)
    assert sorted(r.value for r in await collect(run)) == [0, 1]
    assert begun == [0, 1, 2]
    assert sorted(store.records) == sorted(store.written)
    assert len(store.records) == 2
    summary = run.summary
    assert (summary.stopped, summary.stop_message) == (error.code, error.message)
    assert summary.budget_reached == isinstance(error, BudgetReached)
    assert (summary.ok, summary.failed, summary.left) == (2, 0, summary.read - 2)


async def test_a_pause_within_a_task_group_pauses_too() -> None:
    async def work(item: int, ctx: TaskContext) -> None:
        async def call(error: Exception) -> None:
            raise error

        async with asyncio.TaskGroup() as group:
            group.create_task(call(ValueError("also")))
            group.create_task(call(BudgetReached("5 USD")))

    run = start(work, range(5))
    assert await collect(run) == []
    assert run.summary.budget_reached


async def test_a_pause_with_ordered_results_gives_what_has_finished() -> None:
    async def work(item: int, ctx: TaskContext) -> int:
        if item == 1:
            raise BudgetReached("5 USD")
        await asyncio.sleep(0)
        return item

    run = start(work, range(9), concurrency=4, ordered=True)
    assert [r.value for r in await collect(run)] == [0, 2, 3]


async def test_work_that_fails_at_the_moment_of_a_stop_leaves_nothing_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    together = asyncio.Event()

    async def work(item: int, ctx: TaskContext) -> None:
        if item == 49:
            together.set()
        await together.wait()
        for _ in range(item % 10):  # so that some fail while others are being cancelled
            await asyncio.sleep(0)
        raise StoreError("the disk is full")

    with pytest.raises(StoreError):
        await results(work, range(50), store=DictStore(), concurrency=50)
    gc.collect()
    await asyncio.sleep(0)
    assert caplog.records == []


# ---- iterators and errors that misbehave ------------------------------------------------------------------------


async def test_an_input_that_is_cancelled_from_within_is_not_taken_for_its_end() -> None:
    async def items() -> AsyncIterator[int]:
        yield 0
        raise asyncio.CancelledError

    run, found = start(Ants(quick=9), items()), []
    with pytest.raises(InputError, match="not all items were read"):
        async for result in run:
            found.append(result.value)  # noqa: PERF401  what was read counts
    assert found == [0]


async def test_an_input_that_swallows_being_cancelled_does_not_outlast_the_deadline() -> None:
    let_go = asyncio.Event()

    async def items() -> AsyncIterator[int]:
        yield 0
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    run = start(Ants(quick=9), items(), deadline=0.1, grace=0.05)
    assert [r.value for r in await collect(run)] == [0]
    assert run.summary.stopped == "deadline_reached"
    let_go.set()
    await settle(lambda: others() == 0)


async def test_an_error_whose_message_cannot_be_read_fails_its_item_only() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    async def work(item: int, ctx: TaskContext) -> int:
        if item:
            raise Mute
        return item

    found = await results(work, [0, 1], ordered=True)
    assert [r.error and r.error.message for r in found] == [None, "Mute (its message cannot be read)"]
