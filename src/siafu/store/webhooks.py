"""What webhooks are told. A delivery is a row from the moment on in which the end of a task is found, so it survives
any end of the process that makes it; it may be made twice, never left out. The row stays as long as its task.
"""

# ruff: noqa: S608 - the names put into statements are our own

from __future__ import annotations

import uuid
from collections.abc import Collection
from typing import Literal

import msgspec

from siafu.border.text import clean, preview
from siafu.store.database import Database, Transaction
from siafu.store.task_events import last_place
from siafu.store.task_records import TERMINAL

AT_ONCE = 500  # events that are looked at in one transaction
MOST_SAID = 200  # characters

_ENDS = ", ".join(f"'{state}'" for state in TERMINAL)
_DELIVERY = (
    "webhook_delivery.id, webhook_delivery.what, webhook_delivery.at, webhook_delivery.code, attempts, "
    "task.id AS task, task.kind, task.run, task.once, task.tenant"
)


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a task, to be told. id: the same whenever it is told. what: the state in which the task ended; at:
    when, in seconds since 1970. attempts: how often it has been tried, this time included.
    """

    id: str
    what: str
    at: float
    code: str
    attempts: int
    task: str
    kind: str
    run: str
    once: str | None
    tenant: str


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """How far a webhook has been told of an end of a task. what, at: as in `Delivery`. told_at: when it took that in;
    next_at: when it is told next, at the earliest. Neither: it was given up. status: of its last answer; None = it gave
    none. said: what it said, or why it did not, empty = all is well.
    """

    webhook: str
    what: str
    at: float
    attempts: int
    told_at: float | None
    next_at: float | None
    status: int | None
    said: str

    @property
    def state(self) -> Literal["sent", "waiting", "given_up"]:
        if self.told_at is not None:
            return "sent"
        return "given_up" if self.next_at is None else "waiting"


class WebhookQueue:
    """The deliveries in the database of tasks, which stays its owner's to close. Raises (every method): StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, webhook: str) -> None:
        """Have what ends from now on delivered to a webhook; one that is known goes on where it was."""

        def work(tx: Transaction) -> None:
            sql = "INSERT INTO webhook (name, place) VALUES (:name, :place) ON CONFLICT (name) DO NOTHING"
            tx.change(sql, name=webhook, place=last_place(tx))

        await self._database.run(work)

    async def collect(self, webhook: str, tenants: Collection[str] | None) -> bool:
        """Make deliveries of what has ended since, in tasks of `tenants`, None = of all; True when there may be more.
        Events have their places by then (`TaskViews.settle`).
        """

        def work(tx: Transaction) -> bool:
            row = tx.row("SELECT place FROM webhook WHERE name = :name {for_update}", name=webhook)
            if row is None:
                return False
            upto = min(last_place(tx), row["place"] + AT_ONCE)
            ended = tx.rows(
                "SELECT place, task_told.task, what, at, task_told.code, tenant FROM task_told "
                "JOIN task ON task.id = task_told.task "
                f"WHERE place > :after AND place <= :upto AND what IN ({_ENDS}) ORDER BY place",
                after=row["place"], upto=upto,
            )  # fmt: skip
            for each in ended:
                if tenants is None or each["tenant"] in tenants:
                    tx.change(
                        "INSERT INTO webhook_delivery (id, webhook, place, task, what, at, code, next_at) VALUES "
                        "(:id, :webhook, :place, :task, :what, :at, :code, {now})",
                        id=f"msg_{uuid.uuid4().hex}", webhook=webhook,
                        **{name: each[name] for name in ("place", "task", "what", "at", "code")},
                    )  # fmt: skip
            if upto > row["place"]:
                tx.change("UPDATE webhook SET place = :place WHERE name = :name", place=upto, name=webhook)
            return bool(upto == row["place"] + AT_ONCE)

        return await self._database.run(work)

    async def claim(self, webhook: str, most: int, seconds: float) -> list[Delivery]:
        """At most `most` deliveries that are due, the longest due first; they are due again after `seconds`, as whoever
        has them now may die.
        """

        def work(tx: Transaction) -> list[Delivery]:
            chosen = tx.rows(
                "WITH chosen AS MATERIALIZED (SELECT id FROM webhook_delivery WHERE webhook = :webhook "
                "AND next_at <= {now} ORDER BY next_at LIMIT :most {for_update} {skip_locked}) "
                "UPDATE webhook_delivery SET attempts = attempts + 1, next_at = {now} + :seconds "
                "WHERE id IN (SELECT id FROM chosen) RETURNING id",
                webhook=webhook, most=most, seconds=seconds,
            )  # fmt: skip
            sql = (
                f"SELECT {_DELIVERY} FROM webhook_delivery JOIN task ON task.id = webhook_delivery.task "
                "WHERE webhook_delivery.id = :id"
            )
            found = (tx.row(sql, id=row["id"]) for row in chosen)
            return [Delivery(**row) for row in found if row is not None]

        return await self._database.run(work)

    async def done(self, id: str, status: int) -> None:
        """The other side has taken it, and answered so. That holds, whatever one says of it who had it before."""
        sql = "UPDATE webhook_delivery SET told_at = {now}, next_at = NULL, status = :status, said = '' WHERE id = :id"
        await self._database.run(lambda tx: tx.change(sql, id=id, status=status))

    async def failed(self, id: str, said: str, seconds: float | None, *, status: int | None) -> None:
        """It came to nothing, and is tried again after `seconds`; None = no more. status: of the answer, if any."""
        sql = (
            "UPDATE webhook_delivery SET said = :said, status = :status, next_at = {now} + :seconds "
            "WHERE id = :id AND told_at IS NULL"
        )
        told = preview(clean(said), MOST_SAID)
        await self._database.run(lambda tx: tx.change(sql, id=id, said=told, status=status, seconds=seconds))

    async def told(self, task: str) -> list[Told]:
        """What webhooks were told of a task, or are to be; the oldest end first."""
        columns = ", ".join(Told.__struct_fields__)
        sql = f"SELECT {columns} FROM webhook_delivery WHERE task = :task ORDER BY place, webhook"
        return [Told(**row) for row in await self._database.run(lambda tx: tx.rows(sql, task=task))]
