"""One simulation: workers with the real code over the real statements, clients that submit, people who look after it,
and what the seed has go wrong. `simulate` runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import msgspec
import pytest

from siafu.border.stopping import Stops
from siafu.errors import BacklogFull, StoreError
from siafu.queue.doorbell import Doorbell
from siafu.queue.worker import PUT_DOWN, Worker, WorkerOptions
from siafu.store import task_records, tasks
from siafu.store.database import Database
from siafu.store.records import JournalEntry
from siafu.store.task_desk import TaskDesk, Which
from siafu.store.task_records import TERMINAL, Accepted, Lease, NewTask, NotAccepted, State, Verdict
from siafu.store.tasks import TaskStore
from siafu.store.together import Together

from .disk import Connection, Disk, Weather
from .labour import Labour, LoopClock
from .machine import START, Machine, Process
from .plan import FORGOTTEN, NOBODY, Plan, plan_of, work_of
from .watch import COLUMNS, SLACK, Piece, Seat, Watch, does

T = TypeVar("T")
AGED, RETRY, LOOKS = 2.0, 0.5, (0.5, 3.0)  # seconds; the program's own would make a simulation last for minutes
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


def simulate(seed: int, **changes: Any) -> Report:
    """changes: of the plan that the seed stands for."""
    with _small_numbers():
        world = World(seed, changes)
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
        try:
            yield
        finally:
            logging.disable(before)


class WatchedTogether(Together):
    def __init__(self, database: Database, watch: Watch) -> None:
        super().__init__(database)
        self._watch = watch

    async def share(self, work: Callable[[Any, list[Any]], Sequence[T]], given: Any) -> T:
        """Each for itself, so that every change has its piece of work."""
        piece = self._watch.piece(lambda tx: work(tx, [given])[0])
        return await super().share(lambda tx, _: [piece(tx)], None)


class WatchedStore(TaskStore):
    """It says what is being done, so that every change has its reason."""

    def __init__(self, database: Database, watch: Watch, **options: Any) -> None:
        super().__init__(database, **options)
        self.together = WatchedTogether(database, watch)

    async def claim(self, worker: str, kind: str, most: int, lease: float, **more: Any) -> list[Lease]:
        piece = Piece("claim", kind=kind, most=most, worker=worker, suspect=more.get("suspect", True))
        with does(piece):
            return await super().claim(worker, kind, most, lease, **more)

    async def end(self, task: str, epoch: int, verdict: Verdict) -> State | None:
        with does(Piece("end", task=task, epoch=epoch)):
            return await super().end(task, epoch, verdict)

    async def append(self, task: str, epoch: int, entry: JournalEntry) -> None:
        with does(Piece("append", task=task, epoch=epoch)):
            await super().append(task, epoch, entry)


class World:
    """`run` it, take its `report`, and `bury` it. accepted: ids that clients were told. known: by tenant and key, what
    they stand for. batch: what a client is submitting, over its death; left: submissions to come.
    """

    def __init__(self, seed: int, changes: dict[str, Any]) -> None:
        rng = self.rng = random.Random(seed)
        self.plan: Plan = msgspec.structs.replace(plan_of(rng), **changes)
        self.machine = Machine(rng)
        self.watch = Watch(self.machine, AGED)
        weather = msgspec.structs.replace(self.plan.weather)
        self.disk = self.watch.disk = Disk(self.machine, self.watch, weather, COLUMNS)
        self.clock = LoopClock(self.machine)
        self.bells: dict[Process, Doorbell] = {}
        self.connections: list[Connection] = []
        self.stops: dict[str, Stops] = {}
        self.runs: dict[str, asyncio.Task[Any]] = {}
        self.accepted: dict[str, None] = {}
        self.known: dict[tuple[str, str], str] = {}
        self.fresh: set[str] = set()
        self.batch: list[NewTask] = []
        self.left = self.plan.batches
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
        self.machine.after(self.plan.seconds, self._calm)
        self.machine.after(LOOK, self._look)
        self.machine.run(START + self.plan.seconds + LATEST)
        if not self.watch.violations:
            if self.left:
                self.watch.wrong(f"{self.left} submissions were not accepted")
            self.watch.settled(self.accepted)
            dead = [id for id, state in self.watch.done.items() if state == "dead_letter"]
            if self.plan.poison and dead != ["t_0001"]:
                self.watch.wrong(f"the poison did not die alone: {self.watch.done}")

    def report(self, seed: int) -> Report:
        trace, watch = list(self.machine.trace), self.watch
        told = hashlib.sha256("\n".join(map(repr, trace)).encode()).hexdigest()
        return Report(
            seed, list(watch.violations), told, self.machine.steps, watch.counts, trace, frozenset(self.machine.died_at)
        )

    def bury(self) -> None:
        """End all that is left, unseen."""
        self.disk.closed = True
        self.machine.stepped = lambda: None
        for connection in self.connections:
            connection.close()
        self.machine.processes += self.machine.dead
        for _ in range(100):
            self.machine.over = False
            for process in self.machine.processes:
                process.bury()
            self.machine.run(self.machine.now + 10.0)
            if not any(process.tasks for process in self.machine.processes):
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
        handlers = dict.fromkeys(plan.kinds, labour)
        worker = Worker(process.name, store, handlers, self.bells[process], self.clock, options)
        stops = self.stops[process.name] = Stops(asyncio.Event(), asyncio.Event())
        self.watch.seats[process.name] = Seat(process, worker, plan.lease, plan.poll, self.machine.now)
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

    # ---- clients ------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        process = self._process(f"client{self._number('client')}")
        process.on_death.append(lambda: self.machine.after(0.5, self._submit))
        process.start(self._client(self._store(process)))

    async def _client(self, store: TaskStore) -> None:
        while self.left:
            await self.clock.sleep(self.machine.between(0.0, 2 * self.plan.pause))
            self.batch = self.batch or [self._new() for _ in range(self.rng.randint(1, self.plan.batch))]
            try:
                answers = await store.accept(self.batch)
            except (BacklogFull, StoreError) as error:
                self.machine.note("client", f"hears: {error}")
                continue
            for task, answer in zip(self.batch, answers, strict=True):
                self._hear(task, answer)
            self.batch, self.left = [], self.left - 1

    def _new(self) -> NewTask:
        rng = self.rng
        tenant = f"손님{rng.randint(1, self.plan.tenants)}"
        mine = [id for (owner, _), id in self.known.items() if owner == tenant]
        known = [once for owner, once in self.known if owner == tenant]
        needs = tuple(rng.choice(mine) for _ in range(rng.randint(1, 2))) if mine and rng.random() < 0.3 else ()
        again, number = known and rng.random() < 0.1, self._number("key")
        poison = self.plan.poison and number == 1
        return NewTask(
            kind=rng.choice(self.plan.kinds),
            payload=work_of(rng, "poison" if poison else rng.choice(self.plan.does)),
            tenant=tenant,
            customer=FORGOTTEN if rng.random() < 0.1 else "",
            once=rng.choice(known) if again else f"k{number}",
            priority=rng.choice(self.plan.priorities),
            deadline=rng.uniform(0.5, 10.0) if rng.random() < 0.1 and not self.plan.poison else None,
            needs=() if again else (*needs, "t_ffff") if rng.random() < 0.02 and not poison else needs,
        )

    def _hear(self, task: NewTask, answer: Accepted | NotAccepted) -> None:
        watch, once = self.watch, (task.tenant, task.once or "")
        there = answer.id in watch.lives
        if isinstance(answer, NotAccepted):
            self.machine.note("client", f"hears: {answer}")
            if answer.code == "need_unknown" and answer.id in watch.rows:
                watch.wrong(f"{answer.id} is known: {answer}")
            elif answer.code == "need_failed" and answer.id in watch.rows and answer.id not in watch.done:
                watch.wrong(f"{answer.id} has not failed: {answer}")
            return
        self.accepted[answer.id] = None
        first = self.known.setdefault(once, answer.id)
        if not there:
            watch.wrong(f"{answer} was confirmed before it was there")
        if answer.id != first and first in watch.rows:
            watch.wrong(f"{once} is {first} and {answer.id}")
        if answer.fresh and answer.id in self.fresh:
            watch.wrong(f"{answer} was new twice")
        self.known[once] = answer.id
        if answer.fresh:
            self.fresh.add(answer.id)

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
                    await desk.purge(Which(), 4.0)
                elif what == "forget":
                    await desk.forget(FORGOTTEN, f"손님{self.rng.randint(1, self.plan.tenants)}")
        self.people_left = True

    # ---- what goes wrong ----------------------------------------------------------------------------------------

    def _gap(self) -> int:
        return self.rng.randint(1, 2 * self.plan.every) if self.plan.every else -1

    def _stepped(self) -> None:
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
            if self.plan.resized and self.rng.random() < 0.05:
                seat.worker.slots = self.rng.randint(1, 2 * self.plan.slots)
        idle = self.calm and self.people_left and not self.left
        if idle and not self.closing and len(self.watch.done) == len(self.watch.lives):
            self.closing = True
            for seat in self.watch.seats.values():
                if seat.process.alive and not seat.worker._options.until_empty:
                    self._end(seat.process)
        self.machine.after(LOOK, self._look)
