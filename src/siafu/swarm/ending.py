"""How tasks come to their end: in time, or cancelled and awaited, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from siafu.agents.faults import PAUSING
from siafu.errors import SiafuError, StoreError
from siafu.pace.clock import Clock

ROUNDS = 2


async def ends_within(task: asyncio.Task[Any], seconds: float | None, clock: Clock) -> bool:
    """Wait until `task` has ended, at most `seconds` (None = for ever); True when it has. It is not cancelled."""
    if seconds is None:
        await asyncio.wait({task})
        return True
    alarm = asyncio.create_task(clock.sleep(seconds))
    try:
        await asyncio.wait({task, alarm}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        alarm.cancel()
    return task.done()


async def put_down(tasks: Iterable[asyncio.Task[Any]], grace: float) -> set[asyncio.Task[Any]]:
    """Cancel `tasks` and wait until they have ended; those that swallow it are cancelled once more.

    Returns those that still run after twice `grace` seconds (of the event loop); nobody waits for them any longer.
    """
    pending = set()
    for task in tasks:
        task.add_done_callback(_read)  # of one that has just ended, too
        if not task.done():
            pending.add(task)
    for _ in range(ROUNDS):
        for task in pending:
            task.cancel()
        if pending:
            _, pending = await asyncio.wait(pending, timeout=grace)
    return pending


def _read(task: asyncio.Task[Any]) -> None:
    """How cancelled work ended interests nobody; asyncio would log an exception that is never read."""
    if not task.cancelled():
        task.exception()


def root_cause(error: BaseException) -> BaseException:
    """The error itself; of a group, what matters most: of the store, then one that pauses, then ours, then any."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    order: tuple[tuple[type[BaseException], ...], ...] = ((StoreError,), PAUSING, (SiafuError,), (BaseException,))
    leaves = [root_cause(e) for e in error.exceptions]
    return min(leaves, key=lambda leaf: next(i for i, kinds in enumerate(order) if isinstance(leaf, kinds)))
