"""Who tells a webhook in a simulation what has ended, with the real code, and what must hold of it."""

from __future__ import annotations

import asyncio
import base64
from collections import defaultdict
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from siafu.border.secrets import Secret
from siafu.config.webhooks import Webhook
from siafu.pace.clock import Clock
from siafu.service.tasks.webhooks import PAUSES as ALL_PAUSES
from siafu.service.tasks.webhooks import Teller
from siafu.store.database import Database
from siafu.store.task_events import TaskViews
from siafu.store.task_records import TERMINAL
from siafu.store.webhooks import WebhookQueue

from .machine import Machine, Process
from .watch import Watch

CLAIM = 3.0  # seconds
PAUSES = tuple(0.3 * number for number in range(1, 1 + len(ALL_PAUSES)))
COLUMNS: dict[str, Sequence[str]] = {
    "webhook": ("name", "place"),
    "task_event": ("id", "task", "what"),
    "webhook_delivery": ("id", "place", "attempts", "next_at", "told_at"),
}
_SECRET = Secret("whsec_" + base64.b64encode(bytes(24)).decode())


class Post:
    """The tellers' side of the world, and the address that they tell."""

    def __init__(self, machine: Machine, watch: Watch, clock: Clock) -> None:
        self._machine, self._watch, self._clock = machine, watch, clock
        self._begun: int | None = None
        self._ends: dict[int, str] = {}  # by place: the task that ended
        self._deliveries: dict[str, tuple[int, float | None]] = {}  # by id: attempts, and when it is due
        self._places: dict[str, int] = {}
        self._given_up: set[int] = set()
        self._told: dict[int, set[str]] = defaultdict(set)  # by place: the ids under which it was told
        watch.tables |= {
            "webhook": self._moves,
            "task_event": self._happens,
            "webhook_delivery": self._delivery,
        }

    async def run(self, process: Process, database: Database) -> None:
        house: Any = SimpleNamespace(views=TaskViews(database), deliveries=WebhookQueue(database))
        poster: Any = SimpleNamespace(post=lambda url, body, headers: self._post(process, headers["webhook-id"]))
        webhook = Webhook(url="https://example.invalid/", secret=_SECRET, tenants=None, anywhere=False)
        await Teller("알림", webhook, house, self._clock, poster).run()

    def untold(self) -> list[str]:
        """Tasks whose ends have still to be told. What was given up, after all its tries, has not."""
        over = self._told.keys() | self._given_up
        return [task for place, task in self._ends.items() if task in self._watch.rows and place not in over]

    async def _post(self, process: Process, id: str) -> int | str:
        rng, place = self._machine.rng, self._places[id]
        await asyncio.sleep(rng.random() * 0.3)
        if rng.random() < 0.2:
            return rng.choice((500, "it could not be reached"))
        self._machine.note(process.name, f"tells the end of {self._ends[place]}")
        self._told[place].add(id)
        if len(self._told[place]) > 1:
            self._watch.wrong(f"{process.name} tells the end of {self._ends[place]} as another one")
        return 200

    def _moves(self, _: str, place: int) -> None:
        self._begun = place if self._begun is None else self._begun

    def _happens(self, place: int, task: str, what: str) -> None:
        if self._begun is not None and place > self._begun and what in TERMINAL:
            self._ends[place] = task

    def _delivery(self, id: str, place: int, attempts: int, due: float | None, told_at: float | None) -> None:
        before, was_due = self._deliveries.get(id, (0, None))
        if attempts > before and (was_due is None or due is None or was_due > due - CLAIM + 0.002):
            self._watch.wrong(f"the end of {self._ends[place]} was taken while another had it")
        if told_at is not None and place not in self._told:
            self._watch.wrong(f"the end of {self._ends[place]} counts as told, and was not")
        elif told_at is None and due is None:
            self._given_up.add(place)
            if attempts <= len(PAUSES):
                self._watch.wrong(f"the end of {self._ends[place]} was given up after {attempts} tries")
        self._places[id] = place
        self._deliveries[id] = attempts, due
