"""Tasks that outlive a process, where the settings keep them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import msgspec

from siafu.config.settings import Settings
from siafu.config.webhooks import Webhook, webhook
from siafu.errors import StoreError
from siafu.queue.doorbell import Doorbell, ringing
from siafu.store.database import Database
from siafu.store.task_desk import TaskDesk
from siafu.store.task_events import TaskViews
from siafu.store.task_schema import MIGRATIONS
from siafu.store.tasks import TaskStore
from siafu.store.webhooks import WebhookQueue


class TaskHouse(msgspec.Struct, frozen=True, kw_only=True):
    """All that `siafu serve` does with tasks, over one database. bell: rung when there may be news. webhooks: who is
    told of ends, by name; deliveries: what they have still to be told.
    """

    store: TaskStore
    desk: TaskDesk
    views: TaskViews
    bell: Doorbell
    webhooks: Mapping[str, Webhook]
    deliveries: WebhookQueue


@contextlib.asynccontextmanager
async def task_database(settings: Settings) -> AsyncIterator[Database]:
    """The settings' database, or `tasks.db` in the home folder. Raises: ConfigError, StoreError."""
    database = await asyncio.to_thread(
        Database, settings.database("tasks.db"), MIGRATIONS, what="the database of tasks", schema="tasks"
    )
    try:
        yield database
    finally:
        await database.aclose()


@contextlib.asynccontextmanager
async def task_store(settings: Settings) -> AsyncIterator[TaskStore]:
    """Where tasks are submitted. Raises: ConfigError, StoreError."""
    async with task_database(settings) as database, contextlib.aclosing(TaskStore(database)) as store:
        yield store


@contextlib.asynccontextmanager
async def task_desk(settings: Settings) -> AsyncIterator[TaskDesk]:
    """The people's side. Raises: ConfigError, StoreError."""
    async with task_database(settings) as database:
        yield TaskDesk(database)


@contextlib.asynccontextmanager
async def task_house(settings: Settings) -> AsyncIterator[TaskHouse | str]:
    """Everything for tasks over HTTP; or why their database cannot be used, which is no reason to serve nothing.

    Raises: ConfigError for webhooks that cannot be used.
    """
    told = {name: webhook(name, given) for name, given in settings.webhooks.items()}
    async with contextlib.AsyncExitStack() as stack:
        house: TaskHouse | str
        try:
            database = await stack.enter_async_context(task_database(settings))
        except StoreError as error:
            house = error.message
        else:
            bell = Doorbell()
            await stack.enter_async_context(ringing(bell, database))
            store = await stack.enter_async_context(contextlib.aclosing(TaskStore(database, rung=bell.ring)))
            house = TaskHouse(
                store=store,
                desk=TaskDesk(database, rung=bell.ring),
                views=TaskViews(database),
                bell=bell,
                webhooks=told,
                deliveries=WebhookQueue(database),
            )
        yield house
