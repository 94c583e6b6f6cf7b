"""Whose turn it is, and any order of what clients and operators do."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from siafu.apps.batches import asking, life
from siafu.apps.batches.turns import Turns
from siafu.errors import RequestRefused
from siafu.gateway.chat import ChatRequest
from siafu.gateway.scripted import Scripted
from siafu.observe.calls import CallContext

from .front import ENDED, front, lines


async def test_owners_take_turns_and_no_more_work_than_may() -> None:
    turns, never, order = Turns(2), asyncio.Event(), list[str]()
    working = most = 0

    async def work(owner: str) -> None:
        nonlocal working, most
        async with turns.place(owner, never) as placed:
            assert placed
            order.append(owner)
            working += 1
            most = max(most, working)
            await asyncio.sleep(0)
            working -= 1

    await asyncio.gather(*map(work, ["a", "a", "a", "a", "b", "c"]))
    assert order == ["a", "a", "b", "c", "a", "a"] and most == 2


async def test_who_is_stopped_or_cancelled_while_it_waits_takes_no_place() -> None:
    turns, stop, never = Turns(1), asyncio.Event(), asyncio.Event()

    async def wait(event: asyncio.Event) -> bool:
        async with turns.place("a", event) as placed:
            return placed

    async with turns.place("a", never):
        stopped, cancelled, third = (asyncio.create_task(wait(event)) for event in (stop, never, never))
        await asyncio.sleep(0)
        stop.set()
        assert not await stopped
        cancelled.cancel()
        await asyncio.wait({cancelled})
        assert not third.done()
    assert await third


@pytest.mark.parametrize("seed", range(3))
async def test_in_any_order_each_batch_ends_once_with_all_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(life, "REST", 0.01)
    monkeypatch.setattr(life, "WIND_DOWN", 0.02)
    monkeypatch.setattr(asking, "AWAY", 0.01)
    rng, asked, made, cancelled = random.Random(seed), list[str](), list[str](), set[str]()

    async def behind(request: ChatRequest, context: CallContext) -> str:
        asked.append(context.task)
        await asyncio.sleep(rng.uniform(0, 0.02))
        if rng.random() < 0.1:
            raise RequestRefused("no", status=400)
        return "네"

    for start in range(4):
        async with front(tmp_path, Scripted(behind), at_once=2, limits={"concurrency": 3}) as client:
            for _ in range(4 if start < 3 else 0):
                file = await client.file(lines(*map(str, range(rng.randint(1, 15)))))
                _, batch = await client.create(file)
                made.append(batch["id"])
                if rng.random() < 0.5:
                    await client.ask("DELETE", f"/v1/files/{file}")
                if rng.random() < 0.4:
                    victim = rng.choice(made)
                    status, _ = await client.ask("POST", f"/v1/batches/{victim}/cancel")
                    assert status in (200, 409)
                    cancelled |= {victim} if status == 200 else set()
                await asyncio.sleep(rng.uniform(0, 0.05))
            if start < 3:
                continue
            for id in made:
                batch = await client.ended(id)
                assert batch["status"] == ("cancelled" if id in cancelled else "completed")
                counts = batch["request_counts"]
                output = await client.content(batch["output_file_id"])
                errors = await client.content(batch["error_file_id"])
                assert (len(output), len(errors)) == (counts["completed"], counts["failed"])
                if id not in cancelled:
                    assert len(output) + len(errors) == counts["total"]
                ids = [each["custom_id"] for each in output + errors]
                assert len(set(ids)) == len(ids)
            _, files = await client.ask("GET", "/v1/files")
    assert {each["id"] for each in files["data"]} == {path.name for path in (tmp_path / "home" / "files").iterdir()}
    assert not list((tmp_path / "home" / "batches").iterdir())
    assert batch["status"] in ENDED and max(map(asked.count, asked)) <= 4  # once, and once more for each hard stop
