"""The work of a simulation: it asks a model, keeps the answers in the journal, pays once with a key made of them, and
then goes well or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from typing import Any

from siafu.pace.clock import Clock
from siafu.queue.worker import Halt, Outcome
from siafu.store.records import JournalEntry
from siafu.store.task_journal import TaskJournal
from siafu.store.task_records import Failed, Later, Lease, Succeeded

from .machine import Machine, Process
from .watch import Watch


class LoopClock:
    """The virtual time, as `Clock`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def now(self) -> float:
        return self._machine.now

    wall = now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


class Labour:
    """A handler in one worker's process. asking: how many of its calls are under way."""

    def __init__(self, watch: Watch, process: Process, clock: Clock, lease: float) -> None:
        self._watch, self._process, self._clock, self._lease = watch, process, clock, lease
        self.asking = 0

    async def __call__(self, lease: Lease, journal: TaskJournal) -> Outcome:
        work = json.loads(lease.payload)
        known = {entry.seq: entry.outcome for entry in await journal.entries(lease.id)}
        answers = []
        for seq in range(work["steps"]):
            if seq not in known:
                known[seq] = await self._ask(lease, journal, seq, work["seconds"])
            answers.append(known[seq])
        if (ended := await self._instead(lease, work)) is not None:
            return ended
        key = hashlib.sha256(b" ".join(answers)).hexdigest()
        seq = work["steps"]
        if seq not in known:
            self._watch.works(self._process, lease.id, lease.epoch)
            await self._clock.sleep(0.02 * self._process.machine.rng.random())
            self._watch.pays(self._process, lease.id, key)
            await self._keep(lease, journal, seq, "effect", b"paid")
        return Succeeded(json.dumps({"worker": self._process.name, "epoch": lease.epoch}))

    async def _ask(self, lease: Lease, journal: TaskJournal, seq: int, seconds: float) -> bytes:
        self._watch.works(self._process, lease.id, lease.epoch, seq)
        self.asking += 1
        try:
            await self._clock.sleep(seconds)
        finally:
            self.asking -= 1
        self._watch.works(self._process, lease.id, lease.epoch)
        answer = b"%d" % self._process.machine.rng.randint(0, 1_000_000)
        return await self._keep(lease, journal, seq, "model", answer)

    async def _keep(self, lease: Lease, journal: TaskJournal, seq: int, kind: Any, said: bytes) -> bytes:
        outcome = b"%s/%d/%s" % (self._process.name.encode(), lease.epoch, said)
        entry = JournalEntry(path="/답", seq=seq, kind=kind, fingerprint="f", outcome=outcome)
        await journal.append(lease.id, entry)
        return outcome

    async def _instead(self, lease: Lease, work: dict[str, Any]) -> Outcome | None:
        """How it ends before it has paid; None = it does not."""
        does, early = work["does"], lease.epoch <= work["times"]
        if does == "poison":
            await self._clock.sleep(work["seconds"])
            self._watch.poisoned(self._process, lease.id)
            await self._process.create_future()
        if does == "hang" and early:
            self._process.pause(self._lease * (0.4 + 0.6 * work["times"]), threads=False)
            await self._clock.sleep(0)
        if does == "deaf":
            self._watch.deaf.add(lease.id)
            await self._deaf(work["seconds"] * 8)
        if does == "raises" and early:
            raise ZeroDivisionError("나누기")
        ends: dict[str, Outcome] = {
            "passing": Failed(code="overloaded", message="과부하", passing=True),
            "later": Later(code="pending_approval"),
            "halt": Halt("budget_reached", "the budget is reached"),
        }
        return Failed(code="bad", message="") if does == "fails" else ends.get(does) if early else None

    async def _deaf(self, seconds: float) -> None:
        until = self._clock.now() + seconds
        while self._clock.now() < until:
            with contextlib.suppress(asyncio.CancelledError):
                await self._clock.sleep(until - self._clock.now())
