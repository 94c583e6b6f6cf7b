"""The journal of a leased task behind the seams that every run has: what was decided before a crash is read again by
whoever holds the task next, in whatever process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from siafu.store.records import Claimed, ItemRecord, Journal, JournalEntry, Ledger, RunState
from siafu.store.task_records import Lease
from siafu.store.tasks import TaskStore


class TaskJournal:
    """`Journal` of one leased task. `append` raises Fenced once the lease is another's."""

    def __init__(self, store: TaskStore, lease: Lease) -> None:
        self._store = store
        self._lease = lease

    async def entries(self, task: str) -> list[JournalEntry]:
        return await self._store.entries(self._lease.id) if self._lease.begun else []

    def append(self, task: str, entry: JournalEntry) -> Awaitable[None]:
        return self._store.append(self._lease.id, self._lease.epoch, entry)


class TaskRun:
    """`RunStore` of the one item that a leased task is. Its result is not recorded here: it ends the task, under its
    lease. A task whose last delivery ended with an error looks like an item that failed in an earlier session.
    """

    def __init__(self, lease: Lease, journal: Journal, ledger: Ledger) -> None:
        self._lease = lease
        self.journal = journal
        self.ledger = ledger

    async def begin(self, work_print: str) -> RunState:
        return RunState()

    async def claim(self, items: Sequence[tuple[str, str]]) -> list[Claimed]:
        return [
            Claimed(
                key=key,
                journaled=self._lease.begun,
                record=ItemRecord(key=key, status="error", input_print=input_print, work_print="")
                if self._lease.retried
                else None,
            )
            for key, input_print in items
        ]

    async def record(self, item: ItemRecord) -> None:
        """Its worker ends the task."""

    async def aclose(self) -> None:
        """Nothing is held."""
