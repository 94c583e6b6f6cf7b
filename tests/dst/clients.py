"""Who submits in a simulation: several at once in one process, until all is accepted, whatever becomes of it."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import msgspec

from siafu.errors import BacklogFull, StoreError
from siafu.pace.clock import Clock
from siafu.store.task_records import Accepted, NewTask, NotAccepted
from siafu.store.tasks import TaskStore

from .machine import Machine
from .plan import FORGOTTEN, Plan, work_of
from .watch import Watch


class Clients:
    """accepted: ids that they were told."""

    def __init__(self, machine: Machine, watch: Watch, plan: Plan, clock: Clock) -> None:
        self.accepted: dict[str, None] = {}
        self._machine, self._watch, self._plan, self._clock = machine, watch, plan, clock
        self._known: dict[tuple[str, str], str] = {}  # by tenant and key: the task that they stand for
        self._asked: dict[str, list[NewTask]] = defaultdict(list)  # by tenant
        self._fresh: set[str] = set()
        self._batches: dict[int, list[NewTask]] = {}  # what each is submitting, over the death of the process
        self._to_come = plan.batches
        self._keys = 0

    @property
    def left(self) -> int:
        """Submissions that are not accepted yet."""
        return self._to_come + len(self._batches)

    async def run(self, store: TaskStore) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._plan.submitters):
                group.create_task(self._submit(number, store))

    async def _submit(self, number: int, store: TaskStore) -> None:
        pause = 2 * self._plan.pause * self._plan.submitters
        while self._to_come or number in self._batches:
            await self._clock.sleep(self._machine.between(0.0, pause))
            if number not in self._batches and self._to_come:
                self._to_come -= 1
                self._batches[number] = [self._new() for _ in range(self._machine.rng.randint(1, self._plan.batch))]
            if (batch := self._batches.get(number)) is None:
                return
            try:
                answers = await store.accept(batch)
            except (BacklogFull, StoreError) as error:
                self._machine.note("client", f"hears: {error}")
                continue
            for task, answer in zip(batch, answers, strict=True):
                self._hear(task, answer)
            del self._batches[number]

    def _new(self) -> NewTask:
        rng, plan = self._machine.rng, self._plan
        tenant = f"손님{rng.randint(1, plan.tenants)}"
        asked, mine = self._asked[tenant], [id for (owner, _), id in self._known.items() if owner == tenant]
        self._keys += 1
        poison = self._keys <= plan.poisons
        if asked and rng.random() < 0.1 and not poison:
            again = rng.choice(asked)
            return again if rng.random() < 0.7 else msgspec.structs.replace(again, payload="{}")
        needs: tuple[str, ...] = ()
        if mine and not poison and rng.random() < (0.8 if plan.chained else 0.3):
            needs = tuple(rng.choice(mine[-3:] if plan.chained else mine) for _ in range(rng.randint(1, 2)))
        new = NewTask(
            kind=rng.choice(plan.kinds),
            payload=work_of(rng, "poison" if poison else rng.choice(plan.does)),
            tenant=tenant,
            customer=FORGOTTEN if rng.random() < 0.1 else "",
            once=f"k{self._keys}",
            priority=rng.choice(plan.priorities),
            deadline=rng.uniform(0.5, 10.0) if rng.random() < 0.1 and not plan.poisons else None,
            needs=(*needs, "t_ffff") if rng.random() < 0.02 and not plan.poisons else needs,
        )
        asked.append(new)
        return new

    def _hear(self, task: NewTask, answer: Accepted | NotAccepted) -> None:
        watch, once = self._watch, (task.tenant, task.once or "")
        there = watch.rows.get(answer.id)
        if isinstance(answer, NotAccepted):
            self._machine.note("client", f"hears: {answer}")
            if answer.code == "need_unknown" and there is not None:
                watch.wrong(f"{answer.id} is known: {answer}")
            elif answer.code == "need_failed" and there is not None and answer.id not in watch.done:
                watch.wrong(f"{answer.id} has not failed: {answer}")
            return
        self.accepted[answer.id] = None
        first = self._known.setdefault(once, answer.id)
        if answer.id not in watch.lives:
            watch.wrong(f"{answer} was confirmed before it was there")
        if there is not None and (there.tenant, there.once) != once:
            watch.wrong(f"{once} was answered with {there}")
        if answer.id != first and first in watch.rows:
            watch.wrong(f"{once} is {first} and {answer.id}")
        if answer.fresh and answer.id in self._fresh:
            watch.wrong(f"{answer} was new twice")
        self._known[once] = answer.id
        if answer.fresh:
            self._fresh.add(answer.id)
