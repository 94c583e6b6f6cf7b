"""The bound on open tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from siafu.errors import BacklogFull, InputError, StoreError
from siafu.store import task_backlog
from siafu.store.task_backlog import wait
from siafu.store.task_records import Accepted, NotAccepted

from .task_house import House, new


@asynccontextmanager
async def opened(url: str, most: int) -> AsyncIterator[House]:
    house = House(url, most_open=most)
    try:
        yield house
    finally:
        await house.aclose()


@pytest.fixture
def counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_backlog, "FRESH_FULL", 0.0)


async def test_a_full_queue_accepts_nothing_until_tasks_have_ended(sql_url: str, counted_anew: None) -> None:
    async with opened(sql_url, 3) as house:
        await house.added(new("1"), new("2"))
        with pytest.raises(BacklogFull, match="siafu worker") as told:
            await house.store.accept([new("3"), new("4")])
        assert (told.value.code, told.value.retryable, told.value.retry_after) == ("backlog_full", True, 60.0)
        assert await house.states() == {"ready": 2}
        await house.one(once="3")
        with pytest.raises(BacklogFull):
            await house.one(once="4")
        await house.done(await house.claimed())
        with pytest.raises(BacklogFull) as told:
            await house.store.accept([new("4"), new("5")])
        assert 1.0 <= told.value.retry_after < 60.0, "one has just ended, and one is too many"
        await house.one(once="4")


async def test_what_is_there_already_needs_no_room(sql_url: str, counted_anew: None) -> None:
    async with opened(sql_url, 2) as house:
        ids = await house.added(new("1"), new("2"))
        again = await house.store.accept([new("1"), new("2"), new("2", payload="{}")][:2])
        assert again == [Accepted(id=id, state="ready", fresh=False) for id in ids]
        assert await house.store.accept([new("2", payload="{}")]) == [NotAccepted(code="key_reused", id=ids[1])]
        for tasks in ([new("1"), new("3")], [new()]):
            with pytest.raises(BacklogFull):
                await house.store.accept(tasks)
        assert await house.states() == {"ready": 2}


async def test_a_submission_that_can_never_fit_is_a_fault_of_its_own(tmp_path: str) -> None:
    async with opened(f"sqlite:///{tmp_path}/tasks.db", 2) as house:
        with pytest.raises(InputError, match="submit fewer"):
            await house.store.accept([new(), new(), new()])


async def test_a_crowd_in_one_process_does_not_pass_the_bound_and_is_counted_seldom(
    sql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, count = 0, task_backlog._count

    def counting(*values: object, **more: object) -> tuple[int, float | None]:
        nonlocal counts
        counts += 1
        return count(*values, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(task_backlog, "_count", counting)
    monkeypatch.setattr(task_backlog, "FRESH_FULL", 60.0)
    monkeypatch.setattr(task_backlog, "FRESH", 60.0)
    async with opened(sql_url, 50) as house:
        crowd = [house.store.accept([new(f"{n}"), new(f"{n}b")]) for n in range(200)]
        found = await asyncio.gather(*crowd, return_exceptions=True)
        assert sum(isinstance(each, BacklogFull) for each in found) == 175
        assert await house.states() == {"ready": 50}
    assert counts == 1


async def test_two_processes_see_each_others_tasks(sql_url: str) -> None:
    async with opened(sql_url, 3) as one, opened(sql_url, 3) as other:
        await one.added(new(), new())
        with pytest.raises(BacklogFull):
            await other.added(new(), new())


async def test_room_that_was_not_used_comes_back(
    sql_url: str, counted_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(sql_url, 2) as house:
        run: Callable[..., object] = house.store.together.run

        async def broken(work: object) -> object:
            if getattr(work, "func", None) is task_backlog._count:
                return await run(work)  # type: ignore[misc]
            raise StoreError("away")

        with monkeypatch.context() as patch:
            patch.setattr(house.store.together, "run", broken)
            with pytest.raises(StoreError, match="away"):
                await house.one()
        monkeypatch.setattr(task_backlog, "FRESH", 0.0)
        await house.added(new(), new())


@pytest.mark.parametrize(
    ("over", "pace", "seconds"),
    [(1, None, 60.0), (10, 0.1, 1.0), (1, 0.0, 1.0), (50, 0.5, 25.0), (5000, 0.5, 60.0)],
)
def test_how_long_to_wait(over: int, pace: float | None, seconds: float) -> None:
    assert wait(over, pace) == seconds


async def test_it_is_told_by_how_fast_tasks_ended_lately(sql_url: str, counted_anew: None) -> None:
    async with opened(sql_url, 10) as house:
        await house.added(*(new() for _ in range(10)))
        for lease in await house.claim(5):
            await house.done(lease)
        house.pass_time(20.0)
        await house.added(*(new() for _ in range(5)))
        with pytest.raises(BacklogFull) as told:
            await house.store.accept([new(), new(), new()])
        assert 12.0 <= told.value.retry_after < 30.0, "five ended within 20 s, or as long as this has taken, too"
