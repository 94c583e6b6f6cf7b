"""Limits of client keys that several servers keep together, on a real Redis."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from typing import Any

import pytest

from services import free_port
from siafu.border.secrets import Secret
from siafu.errors import StoreError
from siafu.service import together
from siafu.service.access import Holder
from siafu.service.refusals import Refused
from siafu.service.together import Together
from siafu.store.client_keys import ClientKey, KeyTerms
from siafu.store.redis import RedisDoor

pytest.importorskip("redis")


@asynccontextmanager
async def servers(url: str | None, count: int = 2, **terms: Any) -> AsyncIterator[list[Holder]]:
    """One key at several servers; url None = nobody shares."""
    key = ClientKey(id="key_1", hash="h", hint="", terms=KeyTerms(name="n", **terms), created_at=0.0)
    doors = [RedisDoor(Secret(url)) for _ in range(count)] if url is not None else []
    sides = [Together(door) for door in doors]
    try:
        yield [Holder(key, side) for side in sides] or [Holder(key) for _ in range(count)]
        await asyncio.gather(*(task for side in sides for task in side._telling))
    finally:
        for door in doors:
            await door.aclose()


async def began(holder: Holder, stack: ExitStack) -> bool:
    try:
        with ExitStack() as request:
            request.enter_context(holder.request(0.0))
            await holder.join(0.0)
            stack.push(request.pop_all())
    except Refused as refused:
        assert (refused.status, refused.code) == (429, "rate_limit_exceeded") and (refused.wait or 0) > 0
        return False
    return True


async def test_requests_at_once_are_counted_over_all_servers(redis_url: str) -> None:
    async with servers(redis_url, concurrency=2) as (one, two):
        with ExitStack() as first, ExitStack() as second:
            assert [await began(one, first), await began(two, second)] == [True, True]
            assert [await began(one, first), await began(two, second)] == [False, False]
            first.close()
            assert await began(two, second), "the next one right after it begins"
            assert not await began(one, first)


async def test_requests_a_minute_are_counted_over_all_servers(redis_url: str) -> None:
    async with servers(redis_url, rpm=5) as both:
        with ExitStack() as stack:
            found = [await began(both[n % 2], stack) for n in range(8)]
    assert found == [True] * 5 + [False] * 3


async def test_a_server_that_died_holds_nothing(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "HELD", 0.4)
    async with servers(redis_url, concurrency=1) as (dead, alive):
        with ExitStack() as stack:
            assert await began(dead, stack) and not await began(alive, stack)
            await dead.hold()
            assert not await began(alive, stack)
            async with asyncio.timeout(5):
                while not await began(alive, stack):
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize("shared", [True, False])
async def test_without_redis_each_server_keeps_them_and_says_so_once(
    shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0" if shared else None
    with caplog.at_level(logging.WARNING, "siafu"):
        async with servers(url, rpm=2, concurrency=5) as both:
            with ExitStack() as stack:
                found = [await began(both[n % 2], stack) for n in range(8)]
    assert found == [True] * 4 + [False] * 4
    assert len([text for text in caplog.messages if "for this server alone" in text]) == (2 if shared else 0)


async def test_a_crowd_at_once_is_counted_together(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "siafu"):
        async with servers(redis_url, rpm=7) as both:
            with ExitStack() as stack:
                found = await asyncio.gather(*(began(both[n % 2], stack) for n in range(120)))
    assert sum(found) == 7
    assert not caplog.messages


async def test_a_command_that_hangs_is_a_fault_of_redis_to_all_who_wait(redis_url: str) -> None:
    async def hangs(client: Any) -> object:
        return await client.blpop(["nothing"], 5)

    async with aclosing(RedisDoor(Secret(redis_url), timeout=0.2)) as door:
        commands = [door.ask(hangs) if n % 3 == 0 else door.run("return {1}", (), ()) for n in range(60)]
        ends = await asyncio.gather(*commands, return_exceptions=True)
        assert {type(each) for each in ends if each != [1]} == {StoreError}
        assert await door.run("return {1}", (), ()) == [1]
