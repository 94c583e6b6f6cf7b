from __future__ import annotations

import asyncio
from typing import Any

import pytest

from siafu.errors import DeadlineReached
from siafu.gateway.deadline import Deadlined
from siafu.gateway.scripted import Scripted
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock

from .conftest import ASK


async def hang(request: Any, context: Any) -> Any:
    await asyncio.sleep(30)


async def test_nothing_inside_takes_longer_than_the_deadline() -> None:
    clock = SystemClock()
    began = clock.now()
    with pytest.raises(DeadlineReached):
        await Deadlined(Scripted(hang), clock).open(ASK, CallContext(deadline=began + 0.1))
    assert 0.1 <= clock.now() - began < 5


async def test_a_deadline_in_the_past_sends_nothing() -> None:
    clock, script = SystemClock(), Scripted(["ok"])
    with pytest.raises(DeadlineReached):
        await Deadlined(script, clock).open(ASK, CallContext(deadline=clock.now()))
    assert not script.requests


@pytest.mark.parametrize("deadline", [None, 60.0])
async def test_in_time_everything_passes(deadline: float | None) -> None:
    clock = SystemClock()
    endpoint = Deadlined(Scripted(["ok", ValueError("x"), TimeoutError("its own")]), clock)
    context = CallContext(deadline=None if deadline is None else clock.now() + deadline)
    assert (await (await endpoint.open(ASK, context)).message()).content == "ok"
    for kind in (ValueError, TimeoutError):
        with pytest.raises(kind):
            await endpoint.open(ASK, context)


async def test_a_cancellation_from_outside_stays_one() -> None:
    clock = SystemClock()
    task = asyncio.create_task(Deadlined(Scripted(hang), clock).open(ASK, CallContext(deadline=clock.now() + 60)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
