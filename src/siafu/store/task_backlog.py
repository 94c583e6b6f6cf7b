"""How many tasks may be open, so that a backlog has an end: who submits more is told when to come again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

from siafu.errors import BacklogFull, InputError
from siafu.store.database import Transaction
from siafu.store.together import Together

MAX_OPEN = 100_000  # tasks that have not ended
LATELY = 100  # ended tasks by which it is told how fast tasks end
WAIT_SECONDS = (1.0, 60.0)  # before a submission is tried again: the least and the most
FRESH, FRESH_FULL = 1.0, 0.1  # seconds that a count holds, and that one without room for a submission does


class Backlog:
    """The open tasks of a database, which all its processes see, counted now and then: several that submit at once may
    pass `most` by what they accept within a second.
    """

    def __init__(self, together: Together, most: int) -> None:
        self._together = together
        self._most = most
        self._one = asyncio.Lock()
        self._room = self._coming = 0
        self._pace: float | None = None
        self._counted = float("-inf")

    @contextlib.asynccontextmanager
    async def room(self, tasks: int) -> AsyncIterator[None]:
        """Hold room for so many, which are to be committed within the block.

        Raises: BacklogFull, StoreError; InputError when there can never be room for them.
        """
        if tasks > self._most:
            raise InputError(
                f"{tasks:,} tasks in one submission, and {self._most:,} may be open (tasks.backlog): submit fewer at "
                "once"
            )
        async with self._one:
            await self._admit(tasks)
        try:
            yield
        finally:
            self._coming -= tasks

    async def _admit(self, tasks: int) -> None:
        clock = asyncio.get_running_loop().time()
        age = clock - self._counted
        if age > FRESH or (tasks > self._room and age > FRESH_FULL):
            open_, self._pace = await self._together.run(partial(_count, most=self._most))
            self._room, self._counted = self._most - open_ - self._coming, clock
        if tasks > self._room:
            raise BacklogFull(
                f"{self._most - self._room:,} tasks are open, of {self._most:,} that may be (tasks.backlog), and no "
                "more are accepted until some have ended: start workers (siafu worker), then submit again",
                retry_after=wait(tasks - self._room, self._pace),
            )
        self._room -= tasks
        self._coming += tasks


def wait(over: int, pace: float | None) -> float:
    """Seconds until there is room for `over` tasks more, if one ends every `pace` seconds; None = none ever did."""
    least, most = WAIT_SECONDS
    return most if pace is None else min(max(over * pace, least), most)


def _count(tx: Transaction, most: int) -> tuple[int, float | None]:
    """How many tasks are open, at most `most`, and the seconds from one end to the next lately."""
    sql = "SELECT COUNT(*) AS n FROM (SELECT 1 AS one FROM task WHERE ended_at IS NULL LIMIT :most) AS found"
    (open_,) = tx.rows(sql, most=most)
    (ended,) = tx.rows(
        "SELECT COUNT(*) AS n, {now} - MIN(ended_at) AS seconds FROM (SELECT ended_at FROM task "
        "WHERE ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT :lately) AS found",
        lately=LATELY,
    )
    return open_["n"], ended["seconds"] / ended["n"] if ended["n"] else None
