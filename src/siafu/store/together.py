"""Group commit over the SQL door: what is asked for while a transaction runs goes into the next one, all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from siafu.errors import StoreError
from siafu.store.database import Database, Transaction

A = TypeVar("A")
T = TypeVar("T")
MOST = 256  # pieces of work in a transaction

_Work = Callable[[Transaction, list[Any]], Sequence[Any]]
_Asked = tuple[_Work, Any, "asyncio.Future[Any]"]


class Together:
    """One transaction at a time over `database`, for one event loop. A thousand callers share one fsync.

    A piece of work returns a value. It raises nothing of its own: the transaction is everybody's, so an error in it is
    an error for all who share it, and nothing of theirs is kept.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.commits = self.operations = 0  # so far
        self._asked: list[_Asked] = []
        self._committing: asyncio.Task[None] | None = None

    async def run(self, work: Callable[[Transaction], T]) -> T:
        """What `work` returns, once that is durable. In the order of asking.

        Raises: StoreError. When cancelled, it may or may not happen.
        """
        return await self.share(lambda tx, _: [work(tx)], None)

    async def share(self, work: Callable[[Transaction, list[A]], Sequence[T]], given: A) -> T:
        """As `run`, for work that is cheaper for many than for each: `work` is called once for all who give it
        something while a transaction runs, at the place of the first of them. It returns as many values as it is given.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asked.append((work, given, future))
        if self._committing is None:
            self._committing = asyncio.create_task(self._commit(), name="siafu commits")
        return await future

    async def aclose(self) -> None:
        """Wait until everything that was asked for is committed. The database stays its owner's to close."""
        if self._committing is not None:
            await asyncio.wait({self._committing})

    async def _commit(self) -> None:
        try:
            while self._asked:
                batch, self._asked = self._asked[:MOST], self._asked[MOST:]
                await self._commit_all(batch)
                await asyncio.sleep(0)  # what those ask for next who were told now is in the next one, too
        finally:
            self._committing = None
            for *_, future in self._asked:  # only when this task was cancelled, as the loop ends
                future.cancel()

    async def _commit_all(self, batch: list[_Asked]) -> None:
        shared: dict[_Work, list[tuple[Any, asyncio.Future[Any]]]] = {}
        for each, given, future in batch:
            shared.setdefault(each, []).append((given, future))

        def work(transaction: Transaction) -> list[Sequence[Any]]:
            return [each(transaction, [given for given, _ in asked]) for each, asked in shared.items()]

        try:
            values = await self.database.run(work, whole=True)
        except StoreError as error:
            for *_, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        except BaseException:
            for *_, future in batch:
                future.cancel()
            raise
        self.commits += 1
        self.operations += len(batch)
        for asked, found in zip(shared.values(), values, strict=True):
            for (_, future), value in zip(asked, found, strict=True):
                if not future.done():
                    future.set_result(value)
