"""What one task has already decided: its journal, consulted before anything is asked or done again.

A step is looked up by its place (path, seq) and what was asked (fingerprint). Steps that ran at the same time may come
back in another order, so an entry of the same path with the same fingerprint serves too. An entry that nobody asks
for any more (the prompt or the code changed) is discarded and counted, never used for another question.
"""

from __future__ import annotations

from collections import defaultdict, deque

from siafu.store.records import Journal, JournalEntry


class Replay:
    """The journal of one task while it runs. `journal` None = nothing is kept (every look-up misses)."""

    def __init__(self, task: str, journal: Journal | None, entries: list[JournalEntry]) -> None:
        self._task = task
        self._journal = journal
        self._left: dict[tuple[str, int], JournalEntry] = {(e.path, e.seq): e for e in entries}
        self._by_print: dict[tuple[str, str, str], deque[JournalEntry]] = defaultdict(deque)
        self._next: dict[str, int] = defaultdict(int)
        self._free: dict[str, int] = defaultdict(int)
        for entry in entries:
            self._by_print[entry.path, entry.kind, entry.fingerprint].append(entry)
            self._free[entry.path] = max(self._free[entry.path], entry.seq + 1)

    def place(self, path: str) -> int:
        """The position of the next step on `path`. Call it before the first await of the step, so that parallel
        steps are numbered in the order in which they were asked for.
        """
        seq = self._next[path]
        self._next[path] = seq + 1
        return seq

    def take(self, path: str, seq: int, kind: str, fingerprint: str) -> JournalEntry | None:
        """The journaled outcome of this step, None when it must run. An entry is given out once."""
        entry = self._left.get((path, seq))
        if entry is None or entry.kind != kind or entry.fingerprint != fingerprint:
            same = self._by_print.get((path, kind, fingerprint), ())
            entry = next((e for e in same if (e.path, e.seq) in self._left), None)
        if entry is not None:
            del self._left[entry.path, entry.seq]
        return entry

    def seat(self, path: str, seq: int) -> int:
        """Where to write a new entry: `seq`, or a fresh position when an entry that is still wanted sits there."""
        if (path, seq) not in self._left and seq >= self._free[path]:
            self._free[path] = seq + 1
            return seq
        seat = max(self._free[path], self._next[path])
        self._free[path] = seat + 1
        return seat

    async def append(self, entry: JournalEntry) -> None:
        """Make `entry` durable; returns at once without a journal."""
        if self._journal is not None:
            await self._journal.append(self._task, entry)

    def unused(self) -> list[JournalEntry]:
        """Entries that no step asked for; after the task's last step they are the discarded ones."""
        return list(self._left.values())
