"""What every back end of `RunStore` promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from siafu.border.money import MOST
from siafu.errors import StoreBusy, StoreError
from siafu.store.records import Claimed, RunState, RunStore

from .conftest import Backend
from .rows import entry, item, opened, settled


@asynccontextmanager
async def session(backend: Backend, name: str = "r", work: str = "work") -> AsyncIterator[tuple[RunStore, RunState]]:
    run = backend.run(name)
    state = await run.begin(work)
    try:
        yield run, state
    finally:
        await run.aclose()


async def test_a_new_run_is_empty(backend: Backend) -> None:
    async with session(backend) as (run, state):
        assert state == RunState()
        assert await run.journal.entries("t1") == []
        assert await run.claim([]) == []


async def test_claims_tell_new_from_known(durable: Backend) -> None:
    done, failed = item("ㄱ"), item("ㄴ", status="error", value=None, code="timeout", message="너무 느립니다")
    async with session(durable) as (run, _):
        keys = ["ㄱ", "ㄴ", "ㄷ", "ㄹ"]
        assert await run.claim([(key, "in") for key in keys]) == [Claimed(key=key) for key in keys]
        await run.record(done)
        await run.record(failed)
        await run.journal.append("ㄷ", entry())
    async with session(durable) as (run, state):
        assert (state.session, state.finished, state.failed) == (2, 1, 1)
        assert await run.claim([("ㅁ", "in"), ("ㄹ", "in"), ("ㄷ", "in"), ("ㄴ", "in"), ("ㄱ", "in")]) == [
            Claimed(key="ㅁ"),
            Claimed(key="ㄹ"),
            Claimed(key="ㄷ", journaled=True),
            Claimed(key="ㄴ", record=failed),
            Claimed(key="ㄱ", record=done),
        ]


async def test_f47_a_key_claimed_twice_in_a_session_is_a_duplicate(durable: Backend) -> None:
    for _ in range(2):
        async with session(durable) as (run, _):
            first = await run.claim([("a", "1"), ("b", "1"), ("a", "2")])
            assert [claimed.duplicate for claimed in first] == [False, False, True]
            assert [claimed.duplicate for claimed in await run.claim([("b", "1"), ("c", "1")])] == [True, False]


async def test_a_claim_with_another_input_shows_the_result_of_the_first(durable: Backend) -> None:
    async with session(durable) as (run, _):
        await run.claim([("a", "old")])
        await run.record(item("a", input_print="old"))
    async with session(durable) as (run, _):
        (claimed,) = await run.claim([("a", "new")])
        assert claimed.record == item("a", input_print="old")
        await run.record(item("a", input_print="new", value=b"2"))
    async with session(durable) as (run, _):
        (claimed,) = await run.claim([("a", "new")])
        assert claimed.record == item("a", input_print="new", value=b"2")


async def test_every_field_of_a_result_comes_back(durable: Backend) -> None:
    full = item(
        "주문/1\x00' \"", code="c", message="한국어 🐜", seconds=1.25, usd_pico=10**15, input_tokens=1, cached_tokens=2,
        output_tokens=3, ended_at=1_700_000_000.5, value=b"\x00\xff",
    )  # fmt: skip
    async with session(durable) as (run, _):
        await run.record(full)
    async with session(durable) as (run, _):
        assert (await run.claim([(full.key, "in")]))[0].record == full


async def test_a_message_with_half_a_character_does_not_lose_the_result(backend: Backend) -> None:
    async with session(backend) as (run, _):
        await run.record(item("a", status="error", message="ok \ud83d end"))
        (claimed,) = await run.claim([("a", "in")])
        assert claimed.record is not None and claimed.record.message == "ok \ufffd end"


async def test_a_key_with_half_a_character_is_refused_and_claims_nothing(backend: Backend) -> None:
    async with session(backend) as (run, _):
        with pytest.raises(StoreError, match="surrogate"):
            await run.claim([("good", "in"), ("bad \ud83d", "in")])
        assert await run.claim([("good", "in")]) == [Claimed(key="good")]


async def test_journal_entries_come_back_in_order_and_replace_each_other(durable: Backend) -> None:
    async with session(durable) as (run, _):
        for step in [
            entry(2),
            entry(0, "/b"),
            entry(10),
            entry(0),
            entry(2, kind="tool", outcome=b"[]", usd_pico=None),
        ]:
            await run.journal.append("t", step)
        await run.journal.append("other", entry(5))
    async with session(durable) as (run, _):
        found = await run.journal.entries("t")
        assert found == [entry(0), entry(2, kind="tool", outcome=b"[]", usd_pico=None), entry(10), entry(0, "/b")]


async def test_runs_of_one_place_do_not_see_each_other(durable: Backend) -> None:
    async with session(durable, "one") as (run, _):
        await run.claim([("a", "in")])
        await run.record(item("a"))
        await run.journal.append("a", entry())
        await run.ledger.open(opened("x"))
    async with session(durable, "two") as (run, state):
        assert state == RunState()
        assert await run.claim([("a", "in")]) == [Claimed(key="a")]
        assert await run.journal.entries("a") == []
    async with session(durable, "one") as (_, state):
        assert (state.session, state.finished, state.in_flight) == (2, 1, 1)


async def test_the_ledger_adds_up_and_closes_what_was_in_flight(durable: Backend) -> None:
    async with session(durable) as (run, _):
        await asyncio.gather(*(run.ledger.open(opened(f"a{n}", reserved_pico=100 + n)) for n in range(4)))
        await run.ledger.open(opened("free", reserved_pico=None))
        run.ledger.settle(settled("a0", usd_pico=7))
        run.ledger.settle(settled("a0", usd_pico=9))  # settled once: the second changes nothing
        run.ledger.settle(settled("a1", outcome="abandoned", usage_known=False, usd_pico=101))
    async with session(durable) as (_, state):
        lost = 102 + 103
        assert (state.in_flight, state.in_flight_pico) == (3, lost)
        assert state.spent_pico == 7 + 101 + lost
    async with session(durable) as (_, state):
        assert (state.in_flight, state.in_flight_pico, state.spent_pico) == (0, 0, 7 + 101 + lost)


async def test_an_attempt_is_opened_once(backend: Backend) -> None:
    async with session(backend) as (run, _):
        await run.ledger.open(opened("a"))
        with pytest.raises(StoreError):
            await run.ledger.open(opened("a"))


async def test_absurd_amounts_are_refused_before_sums_can_overflow(durable: Backend) -> None:
    async with session(durable) as (run, _):
        with pytest.raises(StoreError):
            await run.ledger.open(opened("a", reserved_pico=10**18))
        await run.ledger.open(opened("b", reserved_pico=100))
    run = durable.run("r")
    await run.begin("work")
    await run.ledger.open(opened("c", reserved_pico=50))
    run.ledger.settle(settled("c", input_tokens=10**20))
    with pytest.raises(StoreError, match="could not be written"):
        await run.aclose()
    async with session(durable) as (_, state):
        assert (state.in_flight, state.spent_pico) == (1, 150)


async def test_results_of_other_work_are_counted_as_changed(durable: Backend) -> None:
    async with session(durable, work="first") as (run, _):
        await run.record(item("a", work_print="first", usd_pico=5))
        await run.record(item("b", work_print="first", usd_pico=None))
        await run.record(item("c", work_print="first", status="error", usd_pico=9))
    async with session(durable, work="first") as (_, state):
        assert (state.changed, state.changed_pico) == (0, 0)
    async with session(durable, work="second") as (run, state):
        assert (state.finished, state.failed, state.changed, state.changed_pico) == (2, 1, 2, 5)
        await run.record(item("a", work_print="second", usd_pico=6))
    async with session(durable, work="second") as (run, state):
        assert (state.changed, state.changed_pico) == (1, 0)
        await run.record(item("b", work_print=""))
    async with session(durable, work="second") as (_, state):
        assert state.changed == 0
    async with session(durable, work="") as (_, state):
        assert (state.finished, state.changed) == (2, 0)


async def test_one_holder_at_a_time(durable: Backend) -> None:
    async with session(durable):
        with pytest.raises(StoreBusy):
            await durable.run("r").begin("work")
        with pytest.raises(StoreBusy):
            await durable.run("another").begin("work")
    async with session(durable) as (_, state):
        assert state.session == 2


async def test_closing_is_idempotent_and_ends_all_use(backend: Backend) -> None:
    run = backend.run("r")
    await run.aclose()
    with pytest.raises(StoreError, match="begin"):
        await run.claim([("a", "in")])
    await run.begin("work")
    with pytest.raises(StoreError, match="begun already"):
        await run.begin("work")
    await run.ledger.open(opened("a"))
    await asyncio.gather(run.aclose(), run.aclose())
    await run.aclose()
    for use in (run.claim([("a", "in")]), run.record(item("a")), run.journal.entries("a")):
        with pytest.raises(StoreError, match="closed"):
            await use
    with pytest.raises(StoreError, match="closed"):
        run.ledger.settle(settled("a"))


async def test_a_cancelled_begin_leaves_nothing_locked(durable: Backend) -> None:
    run = durable.run("r")
    task = asyncio.create_task(run.begin("work"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with session(durable) as (_, state):
        assert state.in_flight == 0


def test_f44_sessions_in_one_event_loop_after_another(durable: Backend) -> None:
    async def once(number: int) -> None:
        async with session(durable) as (run, state):
            assert (state.session, state.finished) == (number, number - 1)
            await run.record(item(f"k{number}"))

    for number in (1, 2, 3):
        asyncio.run(once(number))


async def test_all_at_once(durable: Backend) -> None:
    """A thousand tasks with everything a task writes; the next session finds all of it."""

    async def task(run: RunStore, key: str) -> None:
        await run.ledger.open(opened(key, task=key))
        run.ledger.settle(settled(key, usd_pico=2))
        await run.journal.append(key, entry(0, outcome=key.encode()))
        await run.record(item(key, value=key.encode()))

    keys = [f"항목-{n}" for n in range(1000)]
    async with session(durable) as (run, _):
        await run.claim([(key, "in") for key in keys])
        await asyncio.gather(*(task(run, key) for key in keys))
    async with session(durable) as (run, state):
        assert msgspec.structs.replace(state, session=1) == RunState(finished=1000, spent_pico=2000)
        claimed = await run.claim([(key, "in") for key in keys])
        assert [c.record and c.record.value for c in claimed] == [key.encode() for key in keys]
        assert await run.journal.entries(keys[7]) == [entry(0, outcome=keys[7].encode())]


async def test_the_most_that_is_ever_booked_fits_into_a_row(backend: Backend) -> None:
    async with session(backend) as (run, _):
        await run.record(item("a", usd_pico=MOST))
        with pytest.raises(StoreError, match="refused"):
            await run.record(item("a", usd_pico=MOST + 1))
