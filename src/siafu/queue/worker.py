"""A worker: claims tasks into its slots, renews their leases while it works on them, and says how they ended.

Everything runs on one event loop, the renewing too: when that hangs, the leases lapse, and others take the tasks over.
A worker whose lease is over stops the work at once, or as soon as it can look; what it still tries to write is refused
by the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal, Protocol

import msgspec

from siafu.border.secrets import redact
from siafu.border.stopping import Stops
from siafu.border.text import clean
from siafu.errors import Fenced, StoreError
from siafu.observe import spans
from siafu.observe.figures import Family
from siafu.pace.clock import Clock
from siafu.queue.doorbell import Doorbell
from siafu.store.task_backlog import MAX_OPEN
from siafu.store.task_journal import TaskJournal
from siafu.store.task_records import (
    MAX_PAYLOAD,
    TERMINAL,
    Cancelled,
    Expired,
    Failed,
    HandedBack,
    Later,
    Lease,
    State,
    Succeeded,
    Verdict,
)
from siafu.store.tasks import TaskStore

LEASE = 15.0  # seconds
PUT_DOWN = 1.5  # seconds that cancelled work gets to clean up, twice
HURRY = 1.0  # seconds to hand everything back at once
log = logging.getLogger("siafu")


class Halt(msgspec.Struct, frozen=True):
    """No task can be worked on here now (no budget, no credit, no access): the task goes back, and the worker ends."""

    code: str
    message: str


Outcome = Succeeded | Failed | Later | Expired | Halt


class Handler(Protocol):
    """Does the work of a task. Cancelled, it stops; the task's deadline, a cancellation and the worker's end do that.
    Fenced means that the task is another's now; any other exception is an error that may pass.
    """

    async def __call__(self, lease: Lease, journal: TaskJournal, /) -> Outcome: ...


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """slots: tasks at once; they follow the work between `least` and `most`, None = they stay. lease: seconds after
    which a task of a worker that has died is another's. grace: seconds for running tasks to end when the worker is
    stopped; then they are handed back. poll: seconds between two looks into the store when no bell rings. until_empty:
    look at once at what waits for a person or a tool, and end when nothing is left that can go on by itself.
    """

    slots: int = 50
    least: int | None = None
    most: int | None = None
    lease: float = LEASE
    grace: float = 20.0
    poll: float = 1.0
    until_empty: bool = False


class Tally(msgspec.Struct):
    """What a worker has done. claimed: deliveries. fenced: tasks whose lease was another's when they left its hands.
    cut: tasks that had not ended when it did. halt: why it ended by itself; None = it did not.
    """

    claimed: int = 0
    fenced: int = 0
    cut: int = 0
    halt: Halt | None = None
    _counted: Counter[State] = msgspec.field(default_factory=Counter)
    _open: dict[str, State] = msgspec.field(default_factory=dict)

    @property
    def left(self) -> Counter[State]:
        """Tasks that left its hands, by the state they were left in last; one that waited twice is one task."""
        return self._counted + Counter(self._open.values())

    @property
    def open(self) -> dict[str, State]:
        """Those of them that had not ended, as far as they are remembered."""
        return dict(self._open)

    def note(self, task: str, state: State) -> None:
        before = self._open.pop(task, None)
        if state in TERMINAL:
            self._counted[state] += 1
            return
        self._open[task] = state
        if before is None and len(self._open) > MAX_OPEN:  # others will have ended the oldest long since
            self._counted[self._open.pop(next(iter(self._open)))] += 1


Why = Literal["", "lost", "cancel", "deadline", "drain"]


class _Held:
    """A task in a slot. until: when its lease is over, on the monotonic clock, if it is not renewed. why: its work
    shall stop; empty = it shall not. over: its work has ended, and the slot is another's while that is recorded.
    """

    def __init__(self, lease: Lease, until: float) -> None:
        self.lease = lease
        self.until = until
        self.why: Why = ""
        self.over = False
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None

    def stop(self, why: Why) -> None:
        """Have the work stopped; the first reason counts."""
        self.why = self.why or why
        if not self.stopped.done():
            self.stopped.set_result(None)


class Worker:
    """One worker. name: nobody else's, ever. handlers: by kind of task. bell: rung when the store may hold news.
    draining: it takes no more. beside: runs with it, and is cancelled when its work is over.
    """

    def __init__(
        self,
        name: str,
        store: TaskStore,
        handlers: Mapping[str, Handler],
        bell: Doorbell,
        clock: Clock,
        options: WorkerOptions,
        beside: Callable[[Worker], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self.name = name
        self.kinds = tuple(handlers)
        self._slots = options.slots
        self.draining = False
        self._store = store
        self._handlers = dict(handlers)
        self._bell = bell
        self._clock = clock
        self._options = options
        self._beside = beside
        self._held: dict[str, _Held] = {}
        self._claimed: Counter[str] = Counter()  # by kind; each has its share for the oldest
        self._news = asyncio.Event()
        self._reachable = True
        self.tally = Tally()

    @property
    def slots(self) -> int:
        """Tasks it takes at most. May be changed while it runs; more are filled at once."""
        return self._slots

    @slots.setter
    def slots(self, number: int) -> None:
        if number > self._slots:
            self._news.set()
        self._slots = number

    @property
    def busy(self) -> int:
        """Slots that are taken."""
        return sum(not held.over for held in self._held.values())

    def families(self) -> list[Family]:
        """What it has done and does, as metrics."""
        tally, ended = self.tally, [((state,), float(n)) for state, n in self.tally.left.items() if state in TERMINAL]
        return [
            Family("siafu_worker_slots", "gauge", "Tasks at once", (), [((), self.slots)]),
            Family("siafu_worker_busy_slots", "gauge", "Slots that are taken now", (), [((), self.busy)]),
            Family("siafu_worker_deliveries", "counter", "Tasks that it was given", (), [((), tally.claimed)]),
            Family("siafu_worker_tasks_ended", "counter", "Tasks that it ended, by state", ("state",), ended),
            Family(
                "siafu_worker_fenced",
                "counter",
                "Tasks that were another's when it ended them",
                (),
                [((), tally.fenced)],
            ),
        ]

    async def run(self, stops: Stops) -> Tally:
        """Work until `stops` asks for an end, or the options say so. The first ask lets running tasks end, for the time
        of grace, and hands the others back; `stops.hurry` hands back at once.

        Cancelled, it gives the work up; the leases lapse by themselves.
        """
        async with asyncio.TaskGroup() as group:
            beside = (self._look_around(), self._mind_the_time(), self._hear(stops))
            around = [group.create_task(each) for each in beside]
            if self._beside is not None:
                around.append(group.create_task(self._beside(self)))
            try:
                with self._bell.heard(self._news.set):
                    await self._work(stops)
            finally:
                await self._give_up("lost", 3 * PUT_DOWN)  # when this is cancelled; else nothing is held
                for task in around:
                    task.cancel()
        return self.tally

    async def _work(self, stops: Stops) -> None:
        if self._options.until_empty:
            await self._look_again(stops)
        while not stops.asked.is_set() and self.tally.halt is None:
            self._news.clear()
            await self._fill()
            self._bell.looked(max(0, self.slots - self.busy))
            if self._options.until_empty and not self._held and not await self._any_left():
                return
            await self._wait(self._options.poll)
        await self._drain(stops)

    async def _look_again(self, stops: Stops) -> None:
        """Have ready what waits for a person or a tool, as soon as the store answers."""
        while not stops.asked.is_set():
            self._news.clear()  # or a ring would have it ask a store that is away again and again, without a pause
            try:
                for kind in self._handlers:
                    await self._store.look_again(kind)
                return
            except StoreError as error:
                self._unreachable(error)
            await self._wait(self._options.poll)

    # ---- taking tasks -------------------------------------------------------------------------------------------

    async def _fill(self) -> None:
        """Claim for all free slots, for each kind in turn."""
        for kind in list(self._handlers):
            # What has ended counts until that is recorded, so that a slow store does not make it hold ever more.
            free = min(self.slots - self.busy, 2 * self.slots - len(self._held))
            if free <= 0:
                return None
            self._handlers[kind] = self._handlers.pop(kind)  # another kind is first next time
            began = self._clock.now()
            lease = self._options.lease
            try:
                found = await self._store.claim(
                    self.name, kind, free, lease, before=self._claimed[kind], suspect=not self._holds_suspect()
                )
            except StoreError as error:
                return self._unreachable(error)
            self._reachable = True
            self.tally.claimed += len(found)
            self._claimed[kind] += sum(not each.suspect for each in found)
            for each in found:
                if each.id in self._held:  # lost, and won again, before it was noticed
                    self._held[each.id].stop("lost")
                held = self._held[each.id] = _Held(each, began + lease)
                held.task = asyncio.create_task(self._do(held), name=f"siafu task {each.id}")
        return None

    def _holds_suspect(self) -> bool:
        return any(held.lease.suspect for held in self._held.values())

    async def _any_left(self) -> bool:
        try:
            return any([await self._store.any_left(kind) for kind in self._handlers])
        except StoreError as error:
            self._unreachable(error)
            return True

    def _unreachable(self, error: StoreError) -> None:
        if self._reachable:
            log.warning("worker %s: %s (it goes on looking)", self.name, error.message)
        self._reachable = False

    async def _wait(self, seconds: float) -> None:
        """Until there are news, at most so long."""
        alarm = asyncio.ensure_future(self._clock.sleep(seconds))
        alarm.add_done_callback(lambda alarm: None if alarm.cancelled() else self._news.set())
        try:
            await self._news.wait()  # at first hand: see `_end`
        finally:
            alarm.cancel()

    async def _hear(self, stops: Stops) -> None:
        await stops.asked.wait()
        self._news.set()
        await stops.hurry.wait()
        self._news.set()

    # ---- one task -----------------------------------------------------------------------------------------------

    async def _do(self, held: _Held) -> None:
        try:
            outcome = await self._outcome(held)
            if isinstance(outcome, Halt):
                self.tally.halt = self.tally.halt or outcome
                outcome = HandedBack()
            state = None if outcome is None else await self._end(held, outcome)
            if state is None:
                self.tally.fenced += 1
            else:
                self.tally.note(held.lease.id, state)
        finally:
            if self._held.get(held.lease.id) is held:  # it may have come back under another epoch meanwhile
                del self._held[held.lease.id]
            if not held.over or held.lease.suspect or not self._held:  # else it was heard when the work was over
                self._news.set()

    async def _outcome(self, held: _Held) -> Verdict | Halt | None:
        """How the work ended; None: the task is another's."""
        lease = held.lease
        if lease.seconds_left is not None and lease.seconds_left <= 0:
            return Expired()

        async def perform() -> Outcome:
            with spans.under(lease.trace):
                return await self._handlers[lease.kind](lease, TaskJournal(self._store, lease))

        work = asyncio.create_task(perform())
        alarm = None
        if lease.seconds_left is not None:
            alarm = asyncio.create_task(self._expire(held, lease.seconds_left))
        try:
            either: tuple[asyncio.Future[Any], ...] = work, held.stopped
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if alarm is not None:
                alarm.cancel()
        for _ in range(2):
            if not work.done():
                work.cancel()
                await asyncio.wait({work}, timeout=PUT_DOWN)
        work.add_done_callback(_heed)  # it may end later, in vain
        return _told(held, work)

    async def _expire(self, held: _Held, seconds: float) -> None:
        await self._clock.sleep(seconds)
        held.stop("deadline")

    async def _end(self, held: _Held, verdict: Verdict) -> State | None:
        """Record it, and try again while the lease lasts. None: it is another's, or nobody can be told.

        Its slot is free already. Whoever fills it is woken first, and asks in the same turn of the loop: so one
        transaction ends this task and claims the next.
        """
        held.over = True
        self._news.set()
        while True:
            try:
                return await self._store.end(held.lease.id, held.lease.epoch, verdict)
            except StoreError as error:
                held.over = False  # else it would come to hold more and more
                self._unreachable(error)
                if self._clock.now() >= held.until:
                    return None
            await self._clock.sleep(min(0.2, self._options.lease / 5))

    # ---- looking around -----------------------------------------------------------------------------------------

    async def _look_around(self) -> None:
        """Renew the leases five times in their length, and sweep once a second or as often."""
        lease, last = self._options.lease, float("-inf")
        while True:
            began = self._clock.now()
            renew = began - last >= lease / 5
            held = {id: each.lease.epoch for id, each in self._held.items()}
            try:
                found = await self._store.tick(self.name, held, lease, renew=renew)
            except StoreError as error:
                self._unreachable(error)
            else:
                last = began if renew else last
                for id, epoch in held.items():
                    mine = self._held.get(id)
                    if mine is None or mine.lease.epoch != epoch:  # it has come back under another one meanwhile
                        continue
                    if renew and id not in found.lost:
                        mine.until = began + lease
                    elif id in found.lost:
                        mine.stop("lost")
                    if id in found.to_cancel:
                        mine.stop("cancel")
            await self._clock.sleep(min(1.0, lease / 5))

    async def _mind_the_time(self) -> None:
        """Stop what somebody else may hold by now; also while the store does not answer. At the second look only: when
        this process itself has stood still, it asks the store first.
        """
        late: list[_Held] = []
        while True:
            before, late = late, [held for held in self._held.values() if self._clock.now() >= held.until]
            for held in late:
                if held in before:
                    held.stop("lost")
            await self._clock.sleep(min(1.0, self._options.lease / 5))

    # ---- ending -------------------------------------------------------------------------------------------------

    async def _drain(self, stops: Stops) -> None:
        """Let what runs end, then hand it back."""
        self._bell.looked(0)
        self.draining = True
        ends = self._clock.now() + self._options.grace
        if self._held and not stops.hurry.is_set():
            told = "worker %s stops; tasks under way (%d) have %g s to end, then go back; a second signal: at once"
            log.info(told, self.name, len(self._held), self._options.grace)
        while self._held and not stops.hurry.is_set() and (left := ends - self._clock.now()) > 0:
            self._news.clear()
            await self._wait(left)
        self.tally.cut = len(self._held)
        await self._give_up("drain", HURRY if stops.hurry.is_set() else 3 * PUT_DOWN)

    async def _give_up(self, why: Why, seconds: float) -> None:
        """Stop all work, and wait for its end, at most so long."""
        for held in self._held.values():
            held.stop(why)
        if running := {held.task for held in self._held.values() if held.task is not None}:
            await asyncio.wait(running, timeout=seconds)


def _told(held: _Held, work: asyncio.Task[Outcome]) -> Verdict | Halt | None:
    """What the end of the work, or its not ending although it was cancelled, says."""
    error = None
    if work.done() and not work.cancelled():
        error = work.exception()
        if error is None:
            return _bounded(work.result())
    if held.why:
        ends: dict[Why, Verdict] = {"cancel": Cancelled(), "deadline": Expired(), "drain": HandedBack()}
        return ends.get(held.why)
    if error is None:
        return Failed(code="work_failed", message="the work cancelled itself", passing=True)
    if isinstance(error, Fenced):
        return None
    if isinstance(error, StoreError):  # it says nothing about the task
        return Later(code=error.code, message=error.message)
    return Failed(code="work_failed", message=redact(clean(f"{type(error).__name__}: {error}")), passing=True)


def _heed(work: asyncio.Task[Outcome]) -> None:
    """Take the exception of work that nobody waits for any more."""
    if not work.cancelled():
        work.exception()


def _bounded(outcome: Outcome) -> Outcome:
    size = len(outcome.result.encode("utf-8", "replace")) if isinstance(outcome, Succeeded) else 0
    if size <= MAX_PAYLOAD:
        return outcome
    return Failed(code="too_large", message=f"the result has {size:,} bytes; the limit is {MAX_PAYLOAD:,}")
