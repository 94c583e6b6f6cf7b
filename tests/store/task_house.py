"""A database of tasks for tests, in which time passes at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from siafu.store.database import Database
from siafu.store.task_desk import TaskDesk, Which
from siafu.store.task_records import Accepted, Lease, NewTask, Succeeded, Task
from siafu.store.task_schema import MIGRATIONS
from siafu.store.tasks import TaskStore

KIND, LEASE = "k", 15.0
TIMES = ("lease_until", "ready_at", "deadline_at", "created_at", "ended_at", "waits_since")


def new(once: str | None = None, **more: Any) -> NewTask:
    return NewTask(**{"kind": KIND, "payload": '{"text":"안녕"}', "once": once, **more})


class House:
    def __init__(self, url: str, **options: Any) -> None:
        self.database = Database(url, MIGRATIONS, what="the test's tasks", schema="tasks")
        self.rings = 0
        self.store = TaskStore(self.database, rung=self._ring, **options)
        self.desk = TaskDesk(self.database)

    def _ring(self, tasks: Collection[str]) -> None:
        self.rings += 1

    async def aclose(self) -> None:
        await self.store.aclose()
        await self.database.aclose()

    def clear(self) -> None:
        """Begin with no tasks and no workers at all."""
        for table in ("task_need", "task_journal", "task", "task_turn", "worker"):
            self.database.transact(lambda tx, table=table: tx.change(f"DELETE FROM {table}"))  # type: ignore[misc]

    async def added(self, *tasks: NewTask) -> list[str]:
        """The ids of tasks that were all accepted anew."""
        found = await self.store.accept(tasks)
        assert all(isinstance(each, Accepted) and each.fresh for each in found), found
        return [each.id for each in found]

    async def one(self, **more: Any) -> str:
        return (await self.added(new(**more)))[0]

    async def claim(self, most: int = 1, *, worker: str = "w", kind: str = KIND, before: int = 0) -> list[Lease]:
        return await self.store.claim(worker, kind, most, LEASE, before=before)

    async def claimed(self, worker: str = "w") -> Lease:
        (lease,) = await self.claim(worker=worker)
        return lease

    async def done(self, lease: Lease) -> None:
        assert await self.store.end(lease.id, lease.epoch, Succeeded('"됐어요"')) == "succeeded"

    async def task(self, id: str) -> Task:
        return await self.desk.one(id)

    async def states(self) -> Counter[str]:
        return Counter(await self.desk.counts(Which()))

    def pass_time(self, seconds: float, id: str | None = None) -> None:
        """So many seconds pass, for one task or for all."""
        sets = ", ".join(f"{name} = {name} - :seconds" for name in TIMES)
        sql = f"UPDATE task SET {sets} WHERE :id IS NULL OR id = :id"
        seconds += 0.002  # SQLite's clock counts milliseconds
        self.database.transact(lambda tx: tx.change(sql, seconds=seconds, id=id))

    async def sweep(self) -> int:
        return (await self.store.tick("sweeper", {}, LEASE, renew=False)).moved
