"""One batch, from where it stands to its end. Killed at any moment, the next process goes on from its row, its output
and its journal.

validating -> in_progress -> finalizing -> completed, and from each of the first two to failed, expired or (through
cancelling) cancelled. It has ended once its output is on disk and, in one transaction, its row says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any, Literal, TypeVar

import msgspec

from siafu.agents.task import Surroundings
from siafu.apps.batches.asking import Asking, Patrons, Purse
from siafu.apps.batches.lines import Count, ServedBatch, faults, give_up
from siafu.apps.batches.shelf import ERRORS, OUTPUT, Shelf
from siafu.apps.batches.turns import Turns
from siafu.apps.filerun.prepare import FileOptions, Ready, ready
from siafu.apps.filerun.run import Outcome, nothing_left, run
from siafu.errors import DiskFull, InputError, Paused, StoreError
from siafu.gateway.endpoint import Endpoint
from siafu.pace.clock import Clock
from siafu.store.batch_records import FILE, OPEN, Batch, BatchFault, Status, StoredFile, new_id
from siafu.store.batches import BatchStore
from siafu.store.client_keys import KeyTerms
from siafu.store.crash import crash_point
from siafu.store.sqlite import SqliteStore
from siafu.swarm.options import MapOptions

WIND_DOWN = 30.0  # seconds that calls under way get once a batch is to stop
REST, LONGEST_REST = 5.0, 600.0  # seconds until a batch that cannot go on tries again: at first, and at most
LOOKAHEAD = 16  # lines, of up to 4 MiB each, in memory beside those that are asked
REVOKED = BatchFault(code="invalid_api_key", message="its client key was revoked, or has expired")
Why = Literal["", "cancel", "expire"]
T = TypeVar("T")
log = logging.getLogger("siafu")


class House(msgspec.Struct, frozen=True, kw_only=True):
    """What batches are worked on with. own: how models begin that are siafu itself. concurrency: calls at once of one
    batch. keep: seconds that a file is kept, None = for ever. simulated: no model answers, rules do.
    """

    shelf: Shelf
    store: BatchStore
    endpoint: Endpoint
    clock: Clock
    own: str
    concurrency: int
    keep: float | None
    simulated: bool = False

    def lasts(self, seconds: float | None = None) -> int | None:
        """Until when a file of now is kept; seconds: by its owner's wish."""
        wish = self.keep if seconds is None else seconds
        return None if wish is None else int(self.clock.wall() + wish)


class Life:
    """`batch`: as it stands."""

    def __init__(self, batch: Batch, house: House, patrons: Patrons, purse: Purse, turns: Turns) -> None:
        self.batch = batch
        self._rests: tuple[str, str] | None = None
        self._house = house
        self._patrons = patrons
        self._turns = turns
        self._asking = Asking(house.endpoint, patrons, purse, owner=batch.owner, batch=batch.id, clock=house.clock)
        self._count = Count(lambda text: log.info("%s: %s", batch.id, text))
        self._count.completed, self._count.failed = batch.completed, batch.failed
        self._why: Why = "cancel" if batch.status == "cancelling" else ""
        self._fault: BatchFault | None = None
        self._done = batch.status == "finalizing"  # then all lines have their records
        self._halted = False
        self._lock = asyncio.Lock()
        if self._why:
            self._asking.stop.set()

    @property
    def rests(self) -> tuple[str, str] | None:
        """Code and message of what keeps it from going on, as its owner is told; None = nothing does."""
        return self._rests if self._asking.away is None else self._tell(*self._asking.away)

    def _tell(self, code: str, message: str) -> tuple[str, str]:
        told = self._patrons.tell(code, message)
        return told.code, told.message

    def shown(self) -> Batch:
        """As it is told to its owner, with the lines of this moment."""
        return msgspec.structs.replace(self.batch, completed=self._count.completed, failed=self._count.failed)

    async def cancel(self) -> bool:
        """Have it cancelled; returns once that is durable, before it has happened. False = it has ended, or its output
        is being made.
        """
        if self.batch.status != "cancelling" and not await self._move("cancelling", ("validating", "in_progress")):
            return False
        self._stop("cancel")
        return True

    def look(self, now: float) -> None:
        """Notice when its time is over. now: seconds since 1970."""
        if now >= self.batch.expires_at:
            self._stop("expire")

    def make_room(self) -> None:
        """Have it ask nothing more until there is room on the disk again; what is under way may end."""
        self._asking.full = True

    def halt(self) -> None:
        """Have `run` return soon, with the batch as it stands: the process is about to end."""
        self._halted = True
        self._asking.stop.set()

    async def note(self) -> None:
        """Keep how many lines are done. Raises: StoreError."""
        async with self._lock:
            shown = self.shown()
            if (
                shown != self.batch
                and self.batch.status in OPEN
                and await self._house.store.keep(shown, before=(self.batch.status,))
            ):
                self.batch = shown

    async def run(self) -> None:
        """Until it has ended, or was told to halt. What keeps it from going on is waited for, as long as it has time.
        Cancelling awaits what is under way.
        """
        rest, before = REST, self.shown()
        while not await self._goes() and not self._halted:
            await self._sleep(rest)
            before, then = self.shown(), before
            rest = min(2 * rest, LONGEST_REST) if before == then else REST
        with suppress(StoreError):  # the next process counts again
            await self.note()

    def _stop(self, why: Why) -> None:
        self._why = self._why or why
        self._asking.stop.set()

    async def _goes(self) -> bool:
        """One try. True = there is nothing more to do."""
        self._rests = None
        try:
            job = self._job()
            if job is not None and self.batch.status == "validating":
                async with self._turns.reading:
                    await self._validate(job)
            if job is not None and self.batch.status == "in_progress" and self._fault is None:
                async with self._turns.place(self.batch.owner, self._asking.stop) as placed:
                    if placed and not self._asking.stop.is_set():
                        await self._work(job)
            return not self._halted and await self._end()
        except InputError as error:
            log.error("%s: %s", self.batch.id, error.message)
            self._fault = BatchFault(
                code="files_changed", message="another program has changed its files on the server"
            )
        except StoreError as error:
            self._rests = error.code, "siafu cannot keep results at the moment"
            log.error("%s waits: %s", self.batch.id, error.message)
        except Exception:
            self._rests = "internal_error", "something went wrong inside siafu"
            log.exception("%s failed, and is tried again", self.batch.id)
        return False

    def _job(self) -> ServedBatch | None:
        """What its lines are; None once its key is good no more, which fails it."""
        terms = self._patrons.terms(self.batch.owner)
        if terms is None:
            self._fault = REVOKED
            return None
        return self._lines(terms)

    def _lines(self, terms: KeyTerms | None) -> ServedBatch:
        return ServedBatch(self.batch.id, terms, self._house.own, self._patrons.tell)

    async def _validate(self, job: ServedBatch) -> None:
        if self._asking.stop.is_set():
            return
        where = self._house.shelf.desk(self.batch.id)
        total, found = await in_thread(lambda: faults(job, where.source))
        if found:
            await self._move("failed", ("validating",), total=total, faults=tuple(found))
        else:
            await self._move("in_progress", ("validating",), total=total)
        crash_point("batch_validated")

    async def _work(self, job: ServedBatch) -> None:
        """Do what is left, as far as that goes now."""
        if await in_thread(self._house.shelf.room) <= 0:
            raise DiskFull("there is too little room on the disk")
        self._asking.full = False
        async with self._prepared(job) as prepared:
            outcome = await self._session(prepared)
        if outcome is None:
            return
        self._done = not outcome.left
        session = outcome.session
        if not self._done and session.stopped != Paused.code:
            self._rests = self._tell(session.stopped, session.stop_message)
            log.warning("%s waits: %s", self.batch.id, session.stop_message)

    async def _session(self, prepared: Ready) -> Outcome | None:
        """None = calls that were under way had to be given up."""
        if not prepared.plan.todo:
            return await in_thread(lambda: nothing_left(prepared, self._count))
        house = self._house
        store = SqliteStore(prepared.where.journal).run(self.batch.id)
        around = Surroundings(endpoint=self._asking, clock=house.clock)
        options = MapOptions(concurrency=house.concurrency, lookahead=LOOKAHEAD)
        working = asyncio.create_task(run(prepared, around, store, options, self._count))
        stopping = asyncio.create_task(self._asking.stop.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({working}, timeout=WIND_DOWN)
            working.cancel()
            await asyncio.wait({working})
            return None if working.cancelled() else working.result()
        finally:
            stopping.cancel()
            working.cancel()
            await asyncio.wait({working})
            await store.aclose()

    @asynccontextmanager
    async def _prepared(self, job: ServedBatch) -> AsyncIterator[Ready]:
        where = self._house.shelf.desk(self.batch.id)
        with ExitStack() as stack:
            async with self._turns.reading:
                found = await in_thread(lambda: stack.enter_context(ready(job, where, FileOptions(), self._count)))
            yield found

    async def _end(self) -> bool:
        """Bring it to the end that is due; False = none is."""
        status = self.batch.status
        if status not in OPEN:
            await in_thread(lambda: self._house.shelf.clear(self.batch.id))
            return True
        if self._done and status in ("in_progress", "finalizing"):
            await self._move("finalizing", ("in_progress",))
            crash_point("batch_finalizing")
            return await self._finished("completed", ("finalizing",))
        if self._fault is not None:
            if self._fault is REVOKED:
                await self._recount(late=False)
            return await self._finished("failed", tuple(OPEN))
        if status == "cancelling":
            await self._recount(late=False)
            return await self._finished("cancelled", ("cancelling",))
        if self._why == "expire":
            await self._recount(late=True)
            return await self._finished("expired", ("validating", "in_progress"))
        return False

    async def _recount(self, *, late: bool) -> None:
        """Look what its files hold. late: lines without a record get the error that says so."""
        if not self.batch.total:
            return
        async with self._prepared(self._lines(None)) as prepared:
            self._count.begin(prepared.plan)
            if late:
                self._count.failed += await in_thread(lambda: give_up(prepared))

    async def _finished(self, to: Status, before: tuple[Status, ...]) -> bool:
        """Hand out what there is, and say so in the same transaction as that it has ended."""
        house, batch = self._house, self.batch
        ids: dict[str, str] = {}
        files: list[StoredFile] = []
        for field, name, called in (("output_file_id", OUTPUT, "output"), ("error_file_id", ERRORS, "error")):
            id = new_id(FILE)
            size = await in_thread(lambda name=name, id=id: house.shelf.hand_out(batch.id, name, id))  # type: ignore[misc]
            if size:
                ids[field] = id
                files.append(
                    StoredFile(
                        id=id,
                        owner=batch.owner,
                        name=f"{batch.id}_{called}.jsonl",
                        purpose="batch_output",
                        bytes=size,
                        created_at=int(house.clock.wall()),
                        expires_at=house.lasts(batch.output_seconds),
                    )
                )
        crash_point("batch_handed_out")
        told: dict[str, Any] = {} if self._fault is None else {"faults": (self._fault,)}
        if not await self._move(to, before, files=files, **ids, **told):
            for file in files:
                await in_thread(lambda id=file.id: house.shelf.drop(id))  # type: ignore[misc]
            return False
        crash_point("batch_ended")
        return await self._end()

    async def _move(
        self, to: Status, before: tuple[Status, ...], *, files: list[StoredFile] | None = None, **fields: Any
    ) -> bool:
        async with self._lock:
            if self.batch.status not in before:
                return False
            moved = msgspec.structs.replace(self.shown().moved(to, self._house.clock.wall()), **fields)
            if not await self._house.store.keep(moved, before=before, files=files or ()):
                return False
            self.batch = moved
            return True

    async def _sleep(self, seconds: float) -> None:
        """Rest; no longer than until it is to stop."""
        if self._asking.stop.is_set() and not self._halted:
            await self._house.clock.sleep(min(seconds, REST))
            return
        resting = asyncio.create_task(self._house.clock.sleep(seconds))
        stopping = asyncio.create_task(self._asking.stop.wait())
        try:
            await asyncio.wait({resting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            resting.cancel()
            stopping.cancel()


async def in_thread(work: Callable[[], T]) -> T:
    """What `work` returns, off the event loop. When cancelled, its end is waited for: its files are in use."""
    working = asyncio.create_task(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    finally:
        await asyncio.wait({working})
