"""Any order of submitting, claiming, ending, lapsing, cancelling and retrying, against a model of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from siafu.errors import Fenced
from siafu.store import tasks as module
from siafu.store.records import JournalEntry
from siafu.store.task_desk import Which
from siafu.store.task_records import (
    Accepted,
    Failed,
    HandedBack,
    Lapsed,
    Later,
    Lease,
    Move,
    NotAccepted,
    Succeeded,
    Task,
    Verdict,
)

from .machines import any_order, in_order
from .task_house import LEASE, House, new

VERDICTS: dict[str, Verdict] = {
    "well": Succeeded("1"),
    "badly": Failed(code="bad", message=""),
    "passing": Failed(code="overloaded", message="", passing=True),
    "later": Later(code="pending_approval"),
    "back": HandedBack(),
}
PICK = st.integers(0, 99)
ENDED = {"succeeded", "failed", "cancelled", "dead_letter"}


class Item(msgspec.Struct):
    """What the model knows of a task."""

    priority: int
    needs: tuple[str, ...]
    state: str
    epoch: int = 0
    deliveries: int = 0
    lapses: int = 0
    cancel: bool = False
    journal: int = 0
    ends: int = 0  # how often it came to an end since it was last begun by a person


class World(RuleBasedStateMachine):
    """`leases`: all that were ever given out, those that are over too."""

    house: House

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.house.clear()
        self.items: dict[str, Item] = {}
        self.keys: dict[str, str] = {}
        self.leases: list[Lease] = []

    def teardown(self) -> None:
        self.runner.close()

    def one(self, pick: int) -> str:
        return list(self.items)[pick % len(self.items)]

    # ---- the model ---------------------------------------------------------------------------------------------

    def holds(self, lease: Lease) -> bool:
        item = self.items[lease.id]
        return item.state == "leased" and item.epoch == lease.epoch

    def ends(self, id: str, state: str) -> None:
        self.items[id].state = state
        self.items[id].ends += 1
        for other, item in self.items.items():
            if item.state == "blocked" and id in item.needs:
                if state != "succeeded":
                    self.ends(other, "cancelled")
                elif all(self.items[need].state == "succeeded" for need in item.needs):
                    item.state = "ready"

    def comes_back(self, id: str, state: str, *, counted: bool) -> None:
        item = self.items[id]
        if item.cancel:
            self.ends(id, "cancelled")
        elif counted and item.deliveries == 3:
            self.ends(id, "dead_letter")
        else:
            item.state = state
            item.deliveries -= not counted

    # ---- rules -------------------------------------------------------------------------------------------------

    @rule(
        key=st.sampled_from("abcdef"),
        priority=st.integers(1, 3),
        other=st.booleans(),
        needed=st.lists(PICK, max_size=2),
    )
    def submitted(self, key: str, priority: int, other: bool, needed: list[int]) -> None:
        needs = tuple(self.one(pick) for pick in needed if self.items)
        payload = '"other"' if other else '"one"'
        task = new(key, priority=priority, needs=needs, payload=payload, tenant="t", customer=",".join(needs))
        (answer,) = self.runner.run(self.house.store.accept([task]))
        known = self.keys.get(key)
        if known is not None:
            assert answer.id == known
            assert isinstance(answer, NotAccepted) or not answer.fresh
        elif bad := [need for need in needs if self.items[need].state in ENDED - {"succeeded"}]:
            assert isinstance(answer, NotAccepted) and answer.code == "need_failed" and answer.id in bad
        else:
            assert isinstance(answer, Accepted) and answer.fresh
            left = [need for need in needs if self.items[need].state != "succeeded"]
            self.items[answer.id] = Item(priority, tuple(left), "blocked" if left else "ready")
            self.keys[key] = answer.id

    @rule(most=st.integers(1, 3))
    def claimed(self, most: int) -> None:
        leases = self.runner.run(self.house.claim(most))
        suspects = [lease for lease in leases if lease.suspect]
        waiting = [item for item in self.items.values() if item.state == "ready"]
        assert len(suspects) == any(item.lapses >= 2 for item in waiting)
        ready = sorted(item.priority for item in waiting if item.lapses < 2)
        assert [lease.priority for lease in leases if not lease.suspect] == ready[: most - len(suspects)]
        for lease in leases:
            item = self.items[lease.id]
            assert item.state == "ready" and not item.cancel
            item.state, item.epoch, item.deliveries = "leased", item.epoch + 1, item.deliveries + 1
            assert (lease.epoch, lease.begun) == (item.epoch, item.epoch > 1)
            assert len(self.runner.run(self.house.store.entries(lease.id))) == item.journal
        self.leases += leases

    @precondition(lambda self: self.leases)
    @rule(pick=PICK, how=st.sampled_from(sorted(VERDICTS)))
    def ended(self, pick: int, how: str) -> None:
        lease = self.leases[pick % len(self.leases)]
        held = self.holds(lease)
        state = self.runner.run(self.house.store.end(lease.id, lease.epoch, VERDICTS[how]))
        assert (state is not None) == held, "a worker that holds a task is heard, and no other"
        if not held:
            return
        if how in ("well", "badly"):
            self.ends(lease.id, "succeeded" if how == "well" else "failed")
        else:
            self.comes_back(lease.id, "ready" if how == "back" else "waiting", counted=how == "passing")
        assert self.items[lease.id].state == state

    @precondition(lambda self: self.leases)
    @rule(pick=PICK)
    def journaled(self, pick: int) -> None:
        lease = self.leases[pick % len(self.leases)]
        item = self.items[lease.id]
        entry = JournalEntry(path="", seq=item.journal, kind="model", fingerprint="f", outcome=b"1")
        try:
            self.runner.run(self.house.store.append(lease.id, lease.epoch, entry))
            assert self.holds(lease), "a worker wrote that no longer holds the task"
            item.journal += 1
        except Fenced:
            assert not self.holds(lease)

    @rule(pick=PICK)
    def time_passes(self, pick: int) -> None:
        """One lease at most is renewed; the others are over, and what waits is due."""
        held = [lease for lease in self.leases if self.holds(lease)]
        kept = [None, *held][pick % (len(held) + 1)]
        for id, item in self.items.items():
            self.house.pass_time(1000 if item.state == "waiting" else LEASE - 1, id)
        if kept is not None:
            renewing = self.house.store.tick("w", {kept.id: kept.epoch}, LEASE, renew=True)
            assert self.runner.run(renewing).lost == frozenset()
        else:
            self.runner.run(self.house.sweep())
        for id, item in self.items.items():
            if item.state == "waiting":
                item.state = "ready"
            elif item.state == "leased":
                self.house.pass_time(2, id)
        self.runner.run(self.house.sweep())
        for lease in held:
            if lease is not kept:
                self.comes_back(lease.id, "ready", counted=True)
                self.items[lease.id].lapses += self.items[lease.id].state == "ready"

    @precondition(lambda self: self.items)
    @rule(pick=PICK)
    def cancelled(self, pick: int) -> None:
        id = self.one(pick)
        item = self.items[id]
        asked = self.runner.run(self.house.desk.cancel([id]))
        assert asked == (item.state == "leased")
        if asked:
            item.cancel = True
        elif item.state not in ENDED:
            self.ends(id, "cancelled")

    @precondition(lambda self: any(item.state in ENDED - {"succeeded"} for item in self.items.values()))
    @rule(pick=PICK)
    def retried(self, pick: int) -> None:
        id = self.one(pick)
        item = self.items[id]
        again = self.runner.run(self.house.desk.retry([id]))
        needs = {self.items[need].state for need in item.needs}
        assert again == (item.state in ENDED - {"succeeded"} and not needs & (ENDED - {"succeeded"}))
        if again:
            item.state = "blocked" if needs - {"succeeded"} else "ready"
            item.deliveries, item.cancel, item.ends, item.lapses = 0, False, 0, 0

    # ---- what always holds ---------------------------------------------------------------------------------------

    @invariant()
    def the_store_is_as_the_model(self) -> None:
        rows = self.runner.run(self.house.desk.find(Which(), limit=99))
        assert {row.id: (row.state, row.lease_epoch, row.deliveries) for row in rows} == {
            id: (item.state, item.epoch, item.deliveries) for id, item in self.items.items()
        }

    @invariant()
    def everything_ends_once(self) -> None:
        assert all(item.ends == (item.state in ENDED) for item in self.items.values())


def test_any_order_of_events(tasks_sql_url: str) -> None:
    any_order(World, House(tasks_sql_url), examples=15)


Step = tuple[Callable[..., Any], dict[str, Any]]
SUBMIT: Step = (World.submitted, {"key": "a", "priority": 2, "other": False, "needed": []})
CLAIM: Step = (World.claimed, {"most": 1})
LAPSE: Step = (World.time_passes, {"pick": 0})


def end(how: str) -> Step:
    return World.ended, {"pick": 0, "how": how}


def play(url: str, steps: Sequence[Step]) -> None:
    in_order(World, House(url), steps, (World.the_store_is_as_the_model, World.everything_ends_once))


def without_epochs(held: Callable[..., Any]) -> Callable[..., Any]:
    def mutant(tx: Any, asked: Any, *, columns: str) -> Any:
        sql = f"SELECT {columns} FROM task WHERE id = :id AND state = 'leased'"
        return [tx.row(sql, id=id) for id, _ in asked]

    return mutant


def never_dead(move: Callable[..., Move]) -> Callable[..., Move]:
    def mutant(task: Task, verdict: Verdict, now: float) -> Move:
        found = move(task, verdict, now)
        return Move(state="ready") if found.state == "dead_letter" else found

    return mutant


def uncounted_crashes(move: Callable[..., Move]) -> Callable[..., Move]:
    def mutant(task: Task, verdict: Verdict, now: float) -> Move:
        found = move(task, verdict, now)
        return msgspec.structs.replace(found, counted=False) if isinstance(verdict, Lapsed) else found

    return mutant


@pytest.mark.parametrize(
    ("what", "mutant", "steps"),
    [
        ("_held", without_epochs, [SUBMIT, CLAIM, LAPSE, CLAIM, end("well")]),
        ("move", never_dead, [SUBMIT, CLAIM, LAPSE, CLAIM, LAPSE, CLAIM, LAPSE]),
        ("move", uncounted_crashes, [SUBMIT, CLAIM, LAPSE]),
        ("sweep", lambda _: lambda tx: 0, [SUBMIT, CLAIM, LAPSE]),
    ],
    ids=["no epochs", "never dead", "crashes not counted", "no sweep"],
)
def test_the_check_can_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, mutant: Any, steps: list[Step]
) -> None:
    """Each mistake is seen within a few steps, which are harmless without it."""
    play(f"sqlite:///{tmp_path / 'as it is.db'}", steps)
    monkeypatch.setattr(module, what, mutant(getattr(module, what)))
    with pytest.raises(AssertionError):
        play(f"sqlite:///{tmp_path / 'with the mistake.db'}", steps)
