"""`siafu serve` with tasks, in the test's own event loop: clients over a real socket, workers by hand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from siafu.border.secrets import Secret
from siafu.config.task_house import TaskHouse, housed
from siafu.config.webhooks import Webhook
from siafu.gateway.endpoint import Endpoint
from siafu.queue.doorbell import Doorbell
from siafu.store.client_keys import KeyTerms
from siafu.store.database import Database
from siafu.store.task_records import Failed, Lease, Succeeded, Verdict
from siafu.store.task_schema import MIGRATIONS
from siafu.store.tasks import TaskStore

from .server import Served, server

TASKS, EVENTS = "/v1/swarm/tasks", "/v1/swarm/events"
IDENTITY = Secret("an identity key of thirty-two bytes or more")
ASKED: dict[str, Any] = {"kind": "support", "input": {"text": "주문 1001 어디 있나요?"}}


def asked(id: str | None = None, **more: Any) -> dict[str, Any]:
    return {**ASKED, **({} if id is None else {"id": id}), **more}


class Tasked:
    """A server, and what its workers would do."""

    def __init__(self, served: Served, house: TaskHouse, database: Database) -> None:
        self.served = served
        self.house = house
        self.database = database
        self.ask = served.ask

    async def key(self, **terms: Any) -> dict[str, str]:
        """The header of a new key; bound to the customer kim unless it says otherwise."""
        _, secret = await self.served.parts.keys.create(KeyTerms(**{"name": "k", "customer": "kim", **terms}))
        await self.served.ring.refresh()
        return {"Authorization": f"Bearer {secret.reveal()}"}

    async def submit(self, auth: Mapping[str, str], id: str | None = None, **more: Any) -> dict[str, Any]:
        status, _, told = await self.ask(TASKS, asked(id, **more), **auth)
        assert status == 202, told
        return dict(told)

    async def claim(self) -> Lease:
        (lease,) = await self.house.store.claim("w", "support", 1, 15.0)
        return lease

    async def end(self, verdict: Verdict | None = None) -> str:
        """The next task is done; its id."""
        lease = await self.claim()
        await self.house.store.end(lease.id, lease.epoch, verdict or Succeeded('{"answer":"됐어요"}'))
        return lease.id

    async def fail(self) -> str:
        return await self.end(Failed(code="unreachable", message="https://10.0.0.7/v1 cannot be reached"))


@contextlib.asynccontextmanager
async def tasked(
    folder: Path, *, webhooks: Mapping[str, Webhook] | None = None, endpoint: Endpoint | None = None, **options: Any
) -> AsyncIterator[Tasked]:
    """options: of the store of tasks."""
    place = folder / "일감.db"
    database = await asyncio.to_thread(Database, place, MIGRATIONS, what="the test's tasks", schema="tasks")
    bell = Doorbell()
    house = housed(database, TaskStore(database, rung=bell.ring, **options), bell, webhooks or {})
    async with server(folder, endpoint, tasks=house, identity_key=IDENTITY) as served:
        yield Tasked(served, house, database)
    await house.store.aclose()
    await database.aclose()
