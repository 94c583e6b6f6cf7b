"""One simulation: workers with the real code over the real statements, clients that submit, people who look after it,
and what the seed has go wrong. `simulate` runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
import pytest

from siafu.border.stopping import Stops
from siafu.errors import StoreError
from siafu.pace import slots
from siafu.pace.slots import Slots
from siafu.queue import attendance
from siafu.queue.attendance import Attendance
from siafu.queue.doorbell import Doorbell
from siafu.queue.worker import PUT_DOWN, Worker, WorkerOptions
from siafu.service.tasks import webhooks
from siafu.store import task_records, tasks
from siafu.store.database import Database
from siafu.store.task_backlog import Backlog
from siafu.store.task_desk import TaskDesk, Which
from siafu.store.task_records import TERMINAL, Lease
from siafu.store.tasks import TaskStore
from siafu.store.together import Together
from siafu.store.workers import Workers

from .clients import Clients
from .disk import Connection, Disk, Weather
from .labour import Labour, LoopClock
from .machine import START, Machine, Process
from .plan import FORGOTTEN, NOBODY, Plan, plan_of
from .post import CLAIM, PAUSES, Post
from .post import COLUMNS as POSTED
from .watch import COLUMNS, SLACK, Piece, Seat, Watch, does, doing

T = TypeVar("T")
# Seconds; the program's own would make a simulation last for minutes.
AGED, RETRY, LOOKS = 2.0, 0.5, (0.5, 3.0)
GROW, PATIENCE, EVERY = 1.0, 3.0, 0.5
LATEST = 150.0  # seconds after the last fault, until which everything has ended
LOOK = 0.25  # seconds


class Report(msgspec.Struct, frozen=True):
    """What came of a seed. print: of all that happened. died_at: file and line of awaits in which processes died."""

    seed: int
    violations: list[str]
    print: str
    steps: int
    counts: Counter[str]
    trace: list[tuple[float, str, str]]
    died_at: frozenset[tuple[str, int]]


def simulate(seed: int, deadly: frozenset[tuple[str, int]] = frozenset(), **changes: Any) -> Report:
    """changes: of the plan that the seed stands for. deadly: awaits, file and line, where one dies who gets there."""
    with _small_numbers():
        world = World(seed, changes)
        world.deadly = deadly
        try:
            world.run()
            return world.report(seed)
        finally:
            world.bury()


def in_brief(seed: int) -> Report:
    """`simulate` without the trace: it would cost more to hand over than to make again."""
    found = simulate(seed)
    found.trace.clear()
    return found


@contextlib.contextmanager
def _small_numbers() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "AGED_SECONDS", AGED)
        patch.setattr(task_records, "RETRY_SECONDS", RETRY)
        patch.setattr(task_records, "LOOK_SECONDS", LOOKS)
        patch.setattr(slots, "GROW", GROW)
        patch.setattr(slots, "PATIENCE", PATIENCE)
        patch.setattr(slots, "FORGET", 4 * PATIENCE)
        patch.setattr(attendance, "EVERY", EVERY)
        patch.setattr(webhooks, "AT_ONCE", 2)
        patch.setattr(webhooks, "CLAIM_SECONDS", CLAIM)
        patch.setattr(webhooks, "PAUSES", PAUSES)
        patch.setattr(webhooks, "random", random.Random(0))
        try:
            yield
        finally:
            logging.disable(before)


class WatchedTogether(Together):
    """Shared as ever, with what changes known as a piece of work."""

    def __init__(self, database: Database, watch: Watch) -> None:
        super().__init__(database)
        self._watch = watch
        self._shared: dict[Any, Any] = {}

    async def share(self, work: Callable[[Any, list[Any]], Sequence[T]], given: Any) -> T:
        if given is None:  # nobody else's
            piece = doing.get()
            return await super().share(lambda tx, given: self._watch.within(piece, lambda: work(tx, given)), None)
        if work not in self._shared:
            self._shared[work] = lambda tx, given: self._watch.within(piece_of(work, given), lambda: work(tx, given))
        return await super().share(self._shared[work], given)


def piece_of(work: Any, given: list[Any]) -> Piece | None:
    """What is done for many at once; None = nothing that holders write."""
    if work not in (tasks._end, tasks._append):
        return None
    writes = defaultdict[str, set[int]](set)
    for task, epoch, _ in given:
        writes[task].add(epoch)
    return Piece(work.__name__, writes)


class WatchedStore(TaskStore):
    """It says what is being done, so that every change has its reason."""

    def __init__(self, database: Database, watch: Watch, **options: Any) -> None:
        super().__init__(database, **options)
        self.together = WatchedTogether(database, watch)
        self._backlog = Backlog(self.together, options["most_open"])

    async def claim(self, worker: str, kind: str, most: int, lease: float, **more: Any) -> list[Lease]:
        piece = Piece("claim", kind=kind, most=most, worker=worker, suspect=more.get("suspect", True))
        with does(piece):
            return await super().claim(worker, kind, most, lease, **more)


class World:
    """`run` it, take its `report`, and `bury` it."""

    def __init__(self, seed: int, changes: dict[str, Any]) -> None:
        rng = self.rng = random.Random(seed)
        self.plan: Plan = msgspec.structs.replace(plan_of(rng), **changes)
        self.machine = Machine(rng)
        self.watch = Watch(self.machine, AGED)
        weather = msgspec.structs.replace(self.plan.weather)
        self.disk = self.watch.disk = Disk(self.machine, self.watch, weather, COLUMNS | POSTED)
        self.clock = LoopClock(self.machine)
        self.bells: dict[Process, Doorbell] = {}
        self.connections: list[Connection] = []
        self.stops: dict[str, Stops] = {}
        self.runs: dict[str, asyncio.Task[Any]] = {}
        self.watch.most_open = self.plan.most_open
        self.clients = Clients(self.machine, self.watch, self.plan, self.clock)
        self.post = Post(self.machine, self.watch, self.clock)
        self.deadly: frozenset[tuple[str, int]] = frozenset()
        self.calm = self.closing = False
        self.people_left = self.plan.people == NOBODY
        self._next_fault = self._gap()
        self._numbers: Counter[str] = Counter()

    def run(self) -> None:
        self.machine.note("plan", repr(self.plan))
        self.machine.stepped = self._stepped
        for _ in range(self.plan.workers):
            self._hire()
        self._submit()
        if not self.people_left:
            self._look_after()
        for _ in range(self.plan.tellers):
            self._tell()
        self.machine.after(self.plan.seconds, self._calm)
        self.machine.after(LOOK, self._look)
        self.machine.run(START + self.plan.seconds + LATEST)
        if not self.watch.violations:
            if self.clients.left:
                self.watch.wrong(f"{self.clients.left} submissions were not accepted")
            if self.plan.tellers and (untold := self.post.untold()):
                self.watch.wrong(f"the ends of these were not told: {untold}")
            self.watch.settled(self.clients.accepted)
            if self.plan.poisons:
                self._died_alone()

    def _died_alone(self) -> None:
        dead = {id for id, state in self.watch.done.items() if state == "dead_letter"}
        poisons = {id for killers in self.watch.killed.values() for id in killers}
        beside = {id for id in dead - poisons if len(self.watch.killed[id]) < 2}  # of one, that was beside another
        if len(poisons) != self.plan.poisons or beside or poisons - dead:
            self.watch.wrong(f"the poisons {poisons} did not die alone: {self.watch.done}")

    def report(self, seed: int) -> Report:
        trace, watch = list(self.machine.trace), self.watch
        told = hashlib.sha256("\n".join(map(repr, trace)).encode()).hexdigest()
        return Report(
            seed, list(watch.violations), told, self.machine.steps, watch.counts, trace, frozenset(self.machine.died_at)
        )

    def bury(self) -> None:
        """End all that is left, unseen."""
        self.disk.closed = self.closing = True
        self.machine.stepped = lambda _: None
        for connection in self.connections:
            connection.close()
        for _ in range(100):
            self.machine.over = False
            self.machine.processes += self.machine.dead  # those too that have died since: some of their tasks are left
            self.machine.dead.clear()
            for process in self.machine.processes:
                process.bury()
            self.machine.run(self.machine.now + 10.0)
            if not any(process.tasks for process in (*self.machine.processes, *self.machine.dead)):
                break

    def _number(self, what: str) -> int:
        self._numbers[what] += 1
        return self._numbers[what]

    # ---- processes ----------------------------------------------------------------------------------------------

    def _process(self, name: str) -> Process:
        process = Process(self.machine, name, self.watch.wrong)
        self.bells[process] = Doorbell()
        return process

    def _database(self, process: Process) -> Database:
        self.connections.append(Connection(self.disk, process))
        return cast(Database, self.connections[-1])

    def _store(self, process: Process) -> TaskStore:
        return WatchedStore(
            self._database(process), self.watch, rung=self._rung(process), most_open=self.plan.most_open,
            new_id=lambda: f"t_{self._number('task'):04x}",
        )  # fmt: skip

    def _tell(self) -> None:
        process = self._process(f"teller{self._number('teller')}")
        process.on_death.append(lambda: self.machine.after(0.5, self._tell))
        process.start(self.post.run(process, self._database(process)))

    def _rung(self, source: Process) -> Callable[[Collection[str]], None]:
        def ring(tasks: Collection[str]) -> None:
            for process, bell in self.bells.items():
                if process is source and self.rng.random() >= self.plan.lost:
                    bell.ring(tasks)
                elif self.plan.wired and process.alive and self.rng.random() >= self.plan.lost:
                    for _ in range(1 + (self.rng.random() < self.plan.doubled)):
                        call = partial(process.call_soon_threadsafe, bell.ring, tasks)
                        self.machine.after(self.machine.between(0.0, 0.3), call)

        return ring

    def _hire(self) -> None:
        """Another worker, in a process of its own."""
        until_empty = self.plan.until_empty and self.rng.random() < 0.5
        plan, process = self.plan, self._process(f"w{self._number('worker')}")
        store = self._store(process)
        labour = Labour(self.watch, process, self.clock, plan.lease)
        options = WorkerOptions(
            slots=plan.slots, lease=plan.lease, grace=plan.grace, poll=plan.poll, until_empty=until_empty
        )
        handlers, beside, growth = dict.fromkeys(plan.kinds, labour), None, None
        if plan.growing:
            follow = Slots(1, 3 * plan.slots, plan.slots)
            waiting = (lambda: labour.asking // 2) if plan.throttled else lambda: 0
            beside = Attendance(Workers(self._database(process)), follow, waiting, self.clock, "").run
            growth = None if plan.throttled else (follow.most, GROW + 8 * EVERY)
        worker = Worker(process.name, store, handlers, self.bells[process], self.clock, options, beside)
        stops = self.stops[process.name] = Stops(asyncio.Event(), asyncio.Event())
        now = self.machine.now
        self.watch.seats[process.name] = Seat(process, worker, plan.lease, plan.poll, now, now, growth=growth)
        process.on_death.append(self._died)

        async def main() -> None:
            run = self.runs[process.name] = process.create_task(worker.run(stops))
            with contextlib.suppress(asyncio.CancelledError):
                await run
            await store.aclose()
            self._left_work(process)
            process.kill()

        process.start(main())

    def _died(self) -> None:
        if not self.closing:
            self.machine.after(self.machine.between(0.05, 1.5), self._replace)
        elif not any(seat.process.alive for seat in self.watch.seats.values()):
            self.machine.over = True

    def _replace(self) -> None:
        if not self.closing:
            self._hire()

    def _left_work(self, process: Process) -> None:
        """A worker has ended in good order."""
        seat, stops = self.watch.seats[process.name], self.stops[process.name]
        if seat.closing_since is None or stops.hurry.is_set() or self.runs[process.name].cancelled():
            return
        calm = max(process.disturbed_at, self.disk.calm_since())
        late = self.machine.now - max(seat.closing_since, calm) - self.plan.grace - 3 * PUT_DOWN
        if late > SLACK:
            self.watch.wrong(f"{process.name} took {late:.3f} s too long to end")
        for row in self.watch.rows.values():
            if row.state == "leased" and row.worker == process.name and calm < seat.closing_since - self.plan.lease:
                self.watch.wrong(f"{process.name} did not hand back {row}")

    def _submit(self) -> None:
        process = self._process(f"client{self._number('client')}")
        process.on_death.append(lambda: self.machine.after(0.5, self._submit))
        process.start(self.clients.run(self._store(process)))

    # ---- people -------------------------------------------------------------------------------------------------

    def _look_after(self) -> None:
        people = self._process("people")
        people.on_death.append(lambda: self.machine.after(0.5, self._look_after))
        people.start(self._people(TaskDesk(self._database(people), self._rung(people))))

    async def _people(self, desk: TaskDesk) -> None:
        while True:
            await self.clock.sleep(self.plan.people * self.rng.uniform(0.5, 1.5))
            if self.calm:
                break
            ids = list(self.watch.rows)
            dead = [row.id for row in self.watch.rows.values() if row.state in TERMINAL]
            what = self.rng.choice(("cancel", "cancel", "retry", "retry", "purge", "forget"))
            with contextlib.suppress(StoreError):
                if what == "cancel" and ids:
                    await desk.cancel(self.rng.sample(ids, min(2, len(ids))))
                elif what == "retry" and dead:
                    await desk.retry(self.rng.sample(dead, min(3, len(dead))))
                elif what == "purge":
                    await desk.purge(Which(), 0.5 if self.plan.chained else 4.0)
                elif what == "forget":
                    await desk.forget(FORGOTTEN, f"손님{self.rng.randint(1, self.plan.tenants)}")
        self.people_left = True

    # ---- what goes wrong ----------------------------------------------------------------------------------------

    def _gap(self) -> int:
        return self.rng.randint(1, 2 * self.plan.every) if self.plan.every else -1

    def _stepped(self, process: Process) -> None:
        if self.deadly and not self.calm and process in self.bells:
            there = self.deadly.intersection(process.awaits())
            if there - self.machine.died_at and self.rng.random() < 0.3:
                process.kill()
        self._next_fault -= 1
        if self._next_fault == 0 and not self.calm:
            self._next_fault = self._gap()
            self._fault()

    def _fault(self) -> None:
        fault = self.rng.choice(self.plan.faults)
        if fault == "clock":
            self.disk.ahead += (seconds := self.plan.lease * self.rng.uniform(-3.0, 3.0))
            self.disk.disturbed_at = self.machine.now
            self.machine.note("disk", f"its clock is put {seconds:+.3f} s")
            self.watch.counts[fault] += 1
            return
        if fault == "away":
            seconds = self.plan.lease * self.rng.uniform(0.1, 2.0)
            self.machine.note("disk", f"cannot be reached for {seconds:.3f} s")
            self.disk.away_until = self.machine.now + seconds
            self.watch.counts[fault] += 1
            return
        others = fault == "kill other"
        if fault == "stop":
            others = self.rng.random() < 0.2
        able = [process for process in self.bells if process.awake and (process.name not in self.stops) == others]
        if not able:
            return
        process = self.rng.choice(able)
        self.watch.counts[fault] += 1
        if fault in ("kill", "kill other"):
            process.kill()
        elif fault in ("stop", "hang"):
            seconds = self.plan.lease * self.rng.uniform(0.1, 2.5)
            process.pause(seconds, threads=fault == "stop")
        else:
            self._end(process, fault)

    def _end(self, process: Process, how: str = "end") -> None:
        seat = self.watch.seats[process.name]
        self.machine.note(process.name, f"is told: {how}")
        seat.closing_since = seat.closing_since or self.machine.now
        if how == "give up":
            process.disturbed_at = float("inf")  # it renews no lease any more
            process.call_soon_threadsafe(lambda: self.runs[process.name].cancel())
        else:
            for _ in range(1 + (how == "hurry")):
                process.call_soon_threadsafe(self.stops[process.name].signal)

    def _calm(self) -> None:
        self.machine.note("plan", "nothing goes wrong any more")
        self.calm = True
        self.disk.weather = Weather()

    def _look(self) -> None:
        if self.disk.closed:
            return
        self.watch.look()
        for seat in self.watch.seats.values():
            if self.plan.growing and not 1 <= seat.worker.slots <= 3 * self.plan.slots:
                self.watch.wrong(f"{seat.process.name} has {seat.worker.slots} slots")
        idle = self.calm and self.people_left and not self.clients.left and not self.watch.open
        if idle and not self.closing and not (self.plan.tellers and self.post.untold()):
            self.closing = True
            for seat in self.watch.seats.values():
                if seat.process.alive and not seat.worker._options.until_empty:
                    self._end(seat.process)
        self.machine.after(LOOK, self._look)
