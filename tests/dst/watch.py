"""What must hold in a simulation, looked at after every commit: from the rows that it changed, and who wrote them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import msgspec

from siafu.queue.worker import Worker
from siafu.store.task_records import MOST_DELIVERIES, TERMINAL

from .disk import Disk
from .machine import Machine, Process

T = TypeVar("T")
OWNED_AGAIN = 2.0  # seconds from the end of a lost worker's lease until another has the task
SLACK = 0.5  # seconds that steps of a calm process may take altogether
TURNS = 2  # tasks of another tenant that may go before a tenant's first one
STARVED = 10  # claims of one worker in which the oldest of those that waited too long was left out


class Row(NamedTuple):
    id: str
    kind: str
    tenant: str
    once: str | None
    priority: int
    turn: int
    state: str
    deps_left: int
    created_at: float
    ready_at: float
    deadline_at: float | None
    deliveries: int
    lapses: int
    lease_epoch: int
    lease_until: float | None
    worker: str
    cancel_requested: int
    waits_for: str
    code: str
    result: str | None
    fenced: int

    @property
    def place(self) -> tuple[int, int, float]:
        return self.priority, self.turn, self.created_at


COLUMNS: dict[str, Sequence[str]] = {
    "task": Row._fields,
    "task_need": ("needs", "task"),
    "task_journal": ("task", "seq", "outcome"),
}


class Piece(msgspec.Struct, frozen=True):
    """A piece of work within a transaction. writes: for which tasks, and as the holders under which epochs. kind, most,
    worker, suspect: of a claim.
    """

    name: str
    writes: dict[str, set[int]] = {}
    kind: str = ""
    most: int = 0
    worker: str = ""
    suspect: bool = False


doing: ContextVar[Piece | None] = ContextVar("doing", default=None)


@contextmanager
def does(piece: Piece) -> Iterator[None]:
    token = doing.set(piece)
    try:
        yield
    finally:
        doing.reset(token)


class Seat(msgspec.Struct):
    """A worker in its process. able_since: since when it has had a free slot all the time; content_since: since when it
    was not so that all slots were taken and something was ready; closing_since: when it was told to end. slots: at the
    last look. growth: the most slots that it may have, and the seconds after which it should have more; None = they do
    not follow the work.
    """

    process: Process
    worker: Worker
    lease: float
    poll: float
    able_since: float
    content_since: float
    closing_since: float | None = None
    slots: int = 0
    growth: tuple[int, float] | None = None


class Watch:
    """`violations`: what was found. It ends the machine's run at the first."""

    disk: Disk

    def __init__(self, machine: Machine, aged: float) -> None:
        self.machine, self.aged = machine, aged
        self.violations: list[str] = []
        self.rows: dict[str, Row] = {}
        self.seats: dict[str, Seat] = {}
        self.done: dict[str, str] = {}  # by id, also of what was removed: how it ended
        self.asked: set[tuple[str, int, int]] = set()  # calls of the model: task, step and epoch
        self.paid: dict[str, set[str]] = defaultdict(set)  # keys of effects that happened, by task
        self.journal: dict[tuple[str, int], int] = {}  # the epoch under which a step of a task was written
        self.lives: Counter[str] = Counter()  # how often a task was begun: accepted, or retried by people
        self.ends: Counter[str] = Counter()
        self.deaf: set[str] = set()  # tasks whose work does not heed its cancellation
        self.open = 0  # tasks that have not ended
        self.most_open = 0
        self.killed: dict[str, set[str]] = defaultdict(set)  # by task: poisons that its workers died of
        self.tables: dict[str, Callable[..., object]] = {}  # others that are looked after
        self.counts: Counter[str] = Counter()  # what happened, to show that enough does
        self._needs: dict[str, list[str]] = defaultdict(list)
        self._needed_by: dict[str, list[str]] = defaultdict(list)
        self._left_at: dict[tuple[str, int], float] = {}  # when a lease ended
        self._cancelled_at: dict[str, float] = {}  # when the end of running work was asked for
        self._granted_at: dict[str, float] = {}  # when a lease was last made to hold
        self._lost_at: dict[str, float] = {}  # when the lease of a lost worker was over
        self._skipped: Counter[tuple[str, str]] = Counter()  # by worker and kind
        self._ready_at: dict[str, float] = {}
        self._lines: set[tuple[str, int, str]] = set()  # of kind, priority and tenant, where something was ever ready
        self._newcomers: dict[str, Counter[str]] = {}  # the first of each line: how often others went before
        self._at = 0.0  # by the database's clock, when a piece of work was done
        self._pending: list[tuple[str, Any]] = []

    def wrong(self, what: str) -> None:
        self.machine.note("VIOLATION", what)
        self.violations.append(what)
        self.machine.over = True

    def _must(self, holds: object, what: Callable[[], str]) -> None:
        if not holds:
            self.wrong(what())

    # ---- what the disk tells ------------------------------------------------------------------------------------

    def changed(self, table: str, *values: Any) -> None:
        self._pending.append((table, values))

    def rolled_back(self) -> None:
        self._pending.clear()

    def within(self, piece: Piece | None, work: Callable[[], T]) -> T:
        """What `work` returns; its changes are known as those of a piece of work."""
        self._pending.append(("begin", (piece, self.disk.clock())))
        value = work()
        self._pending.append(("end", piece))
        return value

    def committed(self, process: Process) -> None:
        piece: Piece | None = None
        taken: list[Row] = []
        touched: dict[str, None] = {}
        pending, self._pending = self._pending, []
        for table, values in pending:
            if table == "begin":
                (piece, self._at), taken = values, []
            elif table == "end":
                if piece is not None and piece.name == "claim":
                    self._claimed(piece, taken, self._at)
                piece = None
            elif table == "task":
                old, new = self.rows.get(values[0]), Row(*values)
                self.rows[new.id] = new
                touched[new.id] = None
                self._moved(old, new, piece, process)
                if old is not None and old.lease_epoch != new.lease_epoch:
                    taken.append(old)
            elif table == "-task":
                self._removed(self.rows.pop(values[0]), process)
            elif table == "task_need":
                self._needs[values[1]].append(values[0])
                self._needed_by[values[0]].append(values[1])
            elif table == "task_journal":
                self._journaled(piece, *values)
            elif table in self.tables:
                self.tables[table](*values)
        for id in touched:
            self._counts_needs(id)
            for other in self._needed_by[id]:
                self._counts_needs(other)

    # ---- one change ---------------------------------------------------------------------------------------------

    def _moved(self, old: Row | None, new: Row, piece: Piece | None, process: Process) -> None:
        def said() -> str:
            return f"{process.name} made {old} to {new} by {piece}"

        if new.state == "ready" and (old is None or old.state != "ready"):
            self._becomes_ready(new)
        if old is None:
            self.open += 1
            self._must(self.open <= self.most_open, lambda: f"{self.open} are open: {said()}")
            self.machine.note(process.name, f"accepts {new.id} ({new.state}, {new.kind}, {new.priority})")
            self._must((new.lease_epoch, new.deliveries) == (0, 0) and new.state in ("ready", "blocked"), said)
            self.lives[new.id] += 1
            return
        name = piece.name if piece else ""
        if old.state != new.state or old.lease_epoch != new.lease_epoch:
            self.machine.note(process.name, f"{new.id}: {old.state} -> {new.state} (epoch {new.lease_epoch}) {name}")
        self._must(new.deliveries <= MOST_DELIVERIES, said)
        if old.state in TERMINAL:
            if old.state != new.state:
                self._must(process.name == "people" and new.state in ("ready", "blocked"), said)
                self.lives[new.id] += 1
                self.done.pop(new.id)
                self.open += 1
                self.most_open += 1  # who has it begin again is not asked whether there is room
            else:
                told = old._replace(
                    fenced=new.fenced, turn=new.turn, code=new.code if new.code == "need_gone" else old.code
                )
                self._must(told == new, said)
            return
        if piece is not None and new.id in piece.writes:
            held = old.state == "leased" and old.lease_epoch in piece.writes[new.id]
            self._must(
                held or old._replace(fenced=old.fenced + 1) == new,
                lambda: f"a fenced write took effect: {said()}",
            )
        if new.state == "leased":
            self._leased(old, new, piece, said)
        elif old.state == "leased":
            self._left(old, new, piece, process)
        if new.state in TERMINAL:
            self._ended(old, new, said)

    def _becomes_ready(self, row: Row) -> None:
        self._ready_at[row.id] = self.machine.now
        line = row.kind, row.priority, row.tenant
        if line not in self._lines:
            self._lines.add(line)
            self._newcomers[row.id] = Counter()

    def _leased(self, old: Row, new: Row, piece: Piece | None, said: Callable[[], str]) -> None:
        if old.lease_until != new.lease_until:
            self._granted_at[new.id] = self.machine.now
        if old.state == "leased" and old.lease_epoch == new.lease_epoch:  # renewed, or to be cancelled
            self._must((old.worker, old.deliveries) == (new.worker, new.deliveries), said)
            if new.cancel_requested and not old.cancel_requested:
                self._cancelled_at[new.id] = self.machine.now
            return
        self._must(
            old.state == "ready" and new.lease_epoch == old.lease_epoch + 1 and new.deliveries == old.deliveries + 1,
            lambda: f"delivered although it was not ready: {said()}",
        )
        self._must(piece is not None and piece.name == "claim" and not new.cancel_requested, said)
        bad = [need for need in self._needs[new.id] if self.done.get(need) != "succeeded"]
        self._must(not bad, lambda: f"delivered before {bad} had succeeded: {said()}")
        lost_at = self._lost_at.pop(new.id, None)
        self.counts["owned again"] += lost_at is not None

    def _left(self, old: Row, new: Row, piece: Piece | None, process: Process) -> None:
        def said() -> str:
            return f"{process.name} made {old} to {new} by {piece}"

        self._left_at[old.id, old.lease_epoch] = self.machine.now
        assert old.lease_until is not None
        if process.name == "people" or (piece is not None and old.id in piece.writes):
            return
        self._must(old.lease_until < self._at, lambda: f"taken back before its lease was over: {said()}")
        self.counts["lapses"] += 1
        if new.state == "ready":
            self._lost_at[new.id] = old.lease_until - self.disk.ahead
        seat = self.seats[old.worker]
        calm = max(seat.process.calm_since(), self.disk.calm_since())
        self._must(
            calm > self._granted_at[old.id] - SLACK or old.id in self.deaf,
            lambda: f"a live worker was taken its task (calm since {calm:.3f}): {said()}",
        )

    def _ended(self, old: Row, new: Row, said: Callable[[], str]) -> None:
        self.done[new.id] = new.state
        self.open -= 1
        self.ends[new.id] += 1
        self.counts[new.state] += 1
        self._newcomers.pop(new.id, None)
        self._lost_at.pop(new.id, None)
        self._must(self.ends[new.id] == self.lives[new.id], lambda: f"ended twice: {said()}")
        if new.state == "succeeded":
            result = json.loads(new.result or "{}")
            self._must(
                (result["worker"], result["epoch"]) == (old.worker, old.lease_epoch),
                lambda: f"another's result was recorded: {said()}",
            )
            self._must(len(self.paid[new.id]) == 1, lambda: f"paid {len(self.paid[new.id])} times: {said()}")
        elif new.state == "dead_letter":
            self._must(new.deliveries == MOST_DELIVERIES, said)
        elif new.state == "expired":
            late = new.deadline_at is not None and new.deadline_at <= self._at
            self._must(late or self.counts["clock"], said)

    def _removed(self, row: Row, process: Process) -> None:
        self.machine.note(process.name, f"removes {row.id}, which is {row.state}")
        self._must(process.name == "people" and row.state in TERMINAL, lambda: f"{process.name} removed {row}")
        for step in [step for step in self.journal if step[0] == row.id]:
            del self.journal[step]

    def _journaled(self, piece: Piece | None, task: str, seq: int, outcome: bytes) -> None:
        row, epoch = self.rows[task], int(outcome.split(b"/")[1])
        self._must(
            piece is not None
            and epoch in piece.writes.get(task, ())
            and (row.state, row.lease_epoch) == ("leased", epoch),
            lambda: f"a fenced line of the journal was written: {outcome!r} by {piece} into {row}",
        )
        self.journal[task, seq] = epoch

    def _counts_needs(self, id: str) -> None:
        row = self.rows.get(id)
        if row is not None and row.state not in TERMINAL:
            left = sum(self.done.get(need) != "succeeded" for need in self._needs[id])
            self._must(
                row.deps_left == left and (row.state == "blocked") == (left > 0),
                lambda: f"{left} of its needs are left: {row}",
            )

    # ---- who is next --------------------------------------------------------------------------------------------

    def _claimed(self, piece: Piece, taken: list[Row], at: float) -> None:
        """taken: as they were before, at the time `at`."""
        left = [row for row in self.rows.values() if row.state == "ready" and row.kind == piece.kind]
        usual = [row for row in left if row.lapses < 2]
        suspects = sum(row.lapses >= 2 for row in taken)
        self._must(
            len(taken) == piece.most or not usual,
            lambda: f"{piece} took {len(taken)}, and left {len(usual)} that were ready",
        )
        self._must(
            suspects == (piece.suspect and (suspects or len(left) > len(usual))),
            lambda: f"{piece} took {suspects} suspects, and left {len(left) - len(usual)}",
        )
        old = [row for row in (*taken, *usual) if row.lapses < 2 and row.ready_at < at - self.aged - 0.002]
        in_turn = [row for row in taken if row.lapses < 2 and row.ready_at > at - self.aged + 0.002]
        first = min((row.place for row in usual), default=None)
        early = [row for row in in_turn if first is not None and row.place > first]
        self._must(not early, lambda: f"{early} went before {first}")
        worker = piece.worker, piece.kind
        if old and min(old, key=lambda row: row.ready_at) in usual:
            self._skipped[worker] += len(taken) - suspects
            self._must(self._skipped[worker] < STARVED, lambda: f"{piece.worker} starves {old[0]}")
        else:
            self._skipped[worker] = 0
        for row in taken:
            self._newcomers.pop(row.id, None)
        self._pass(in_turn)

    def _pass(self, taken: list[Row]) -> None:
        """Tenants that were new in their line are passed by tasks of other tenants."""
        for id, passed in self._newcomers.items():
            new = self.rows[id]
            line = new.kind, new.priority
            if new.state == "ready":
                passed.update(row.tenant for row in taken if row.lease_epoch == 0 and line == (row.kind, row.priority))
            if max(passed.values(), default=0) > TURNS:
                self.wrong(f"others went before {new} too often: {passed}")

    # ---- time ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """What should have happened by now, as those who have to do it were able to all the time."""
        now, calm = self.machine.now, self.disk.calm_since()
        for seat in self.seats.values():
            self._grows(seat, calm)
        able = [seat for seat in self.seats.values() if self._able(seat)]
        for row in self.rows.values():
            until = now if row.lease_until is None else row.lease_until - self.disk.ahead
            if until < now - 1.0 - SLACK:
                for seat in self.seats.values():
                    since = max(until, seat.process.calm_since(), calm)
                    if seat.closing_since is None and now - since > 1.0 + SLACK:
                        self.wrong(f"{seat.process.name} did not sweep up {row}")
            elif row.state == "ready" and row.lapses < 2:
                lost_at = self._lost_at.get(row.id)
                for seat in able:
                    since = max(lost_at or self._ready_at[row.id], seat.able_since, calm)
                    if now - since > (OWNED_AGAIN if lost_at else seat.poll + SLACK):
                        self.wrong(f"{seat.process.name} had a free slot, and did not take {row} (lost: {lost_at})")

    def _grows(self, seat: Seat, calm: float) -> None:
        most, seconds = seat.growth or (0, 0.0)
        worker, ready = seat.worker, ("ready", 0)
        if (
            worker.slots >= most
            or worker.busy < worker.slots
            or seat.closing_since is not None
            or worker.tally.halt is not None
            or not any((row.state, row.lapses) == ready and row.kind in worker.kinds for row in self.rows.values())
        ):
            seat.content_since = self.machine.now
        since = max(seat.content_since, seat.process.calm_since(), calm)
        if self.machine.now - since > seconds + SLACK:
            self.wrong(f"{seat.process.name} has {worker.slots} slots, and does not get more")

    def _able(self, seat: Seat) -> bool:
        free = seat.worker.slots > seat.worker.busy
        resized, seat.slots = seat.slots != seat.worker.slots, seat.worker.slots  # it looks when it next would
        if resized or not free or seat.closing_since is not None or seat.worker.tally.halt is not None:
            seat.able_since = self.machine.now
        seat.able_since = max(seat.able_since, seat.process.calm_since())
        return seat.able_since < self.machine.now

    # ---- what work does -----------------------------------------------------------------------------------------

    def works(self, process: Process, id: str, epoch: int, seq: int | None = None) -> None:
        """Somebody works under a lease. seq: the step for which a model is going to be asked."""
        now, row, seat = self.machine.now, self.rows.get(id), self.seats[process.name]
        since = now
        if row is None or (row.state, row.lease_epoch) != ("leased", epoch):
            since = self._left_at[id, epoch]
        elif row.cancel_requested:
            since = self._cancelled_at[id]
        elif row.deadline_at is not None and not self.counts["clock"]:  # workers measure what was left of it
            since = min(now, row.deadline_at)
        late = now - max(since, process.calm_since(), self.disk.calm_since())
        self._must(
            late < seat.lease / 5 + 1.0 + SLACK or id in self.deaf,
            lambda: f"{process.name} works on {id} under epoch {epoch} for {late:.3f} s in vain: {row}",
        )
        if seq is not None:
            twice = (id, seq, epoch) in self.asked or self.journal.get((id, seq), epoch) < epoch
            self._must(not twice, lambda: f"{process.name} asks again for step {seq} of {id}")
            self.asked.add((id, seq, epoch))

    def poisoned(self, process: Process, id: str) -> None:
        """A task kills its worker, and all that is there."""
        for row in self.rows.values():
            if row.state == "leased" and row.worker == process.name:
                self.killed[row.id].add(id)
        process.kill()

    def pays(self, process: Process, id: str, key: str) -> None:
        self.machine.note(process.name, f"pays for {id} with {key[:8]}")
        self.paid[id].add(key)
        self._must(len(self.paid[id]) == 1, lambda: f"{process.name} paid a second time for {id}: {self.paid[id]}")

    # ---- at the end ---------------------------------------------------------------------------------------------

    def settled(self, accepted: dict[str, None]) -> None:
        """Nothing happens any more. accepted: ids that were confirmed."""
        open = [row for row in self.rows.values() if row.state not in TERMINAL]
        self._must(not open, lambda: f"{len(open)} tasks did not end: {open[0]}")
        alive = [seat.process.name for seat in self.seats.values() if seat.process.alive]
        self._must(not alive, lambda: f"they did not end: {alive}")
        lost = [id for id in accepted if id not in self.lives]
        self._must(not lost, lambda: f"accepted, and not there: {lost}")
        once = [id for id in self.lives if id in self.rows and self.ends[id] != self.lives[id]]
        self._must(not once, lambda: f"ended other than once: {once}")
        there = {row[0]: Row(*row) for row in self.disk.db.execute(f"SELECT {', '.join(Row._fields)} FROM task")}
        self._must(there == self.rows, lambda: "the database does not hold what was committed")
