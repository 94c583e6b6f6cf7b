"""All that `siafu serve` does with tasks, where the settings keep them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

import msgspec

from siafu.config.settings import Settings
from siafu.config.tasks import opened_store, task_bell, task_database
from siafu.config.webhooks import Webhook, webhook
from siafu.errors import StoreError
from siafu.queue.doorbell import Doorbell
from siafu.store.database import Database
from siafu.store.task_desk import TaskDesk
from siafu.store.task_events import TaskViews
from siafu.store.tasks import TaskStore
from siafu.store.webhooks import WebhookQueue
from siafu.store.workers import Workers


class TaskHouse(msgspec.Struct, frozen=True, kw_only=True):
    """Everything over one database. bell: rung when there may be news. webhooks: who is told of ends, by name;
    deliveries: what they have still to be told.
    """

    store: TaskStore
    desk: TaskDesk
    views: TaskViews
    workers: Workers
    bell: Doorbell
    webhooks: Mapping[str, Webhook]
    deliveries: WebhookQueue


@contextlib.asynccontextmanager
async def task_house(settings: Settings) -> AsyncIterator[TaskHouse | str]:
    """Everything for tasks over HTTP; or why their database cannot be used, which is no reason to serve nothing.

    Raises: ConfigError for webhooks that cannot be used.
    """
    told = {name: webhook(name, given) for name, given in settings.webhooks.items()}
    async with contextlib.AsyncExitStack() as stack:
        try:
            database = await stack.enter_async_context(task_database(settings))
        except StoreError as error:
            yield error.message
            return
        bell = await stack.enter_async_context(task_bell(settings, database))
        store = await stack.enter_async_context(contextlib.aclosing(opened_store(settings, database, bell)))
        yield housed(database, store, bell, told)


def housed(database: Database, store: TaskStore, bell: Doorbell, webhooks: Mapping[str, Webhook]) -> TaskHouse:
    """The rest over a database, its tasks and their bell, which stay the caller's to close."""
    return TaskHouse(
        store=store,
        desk=TaskDesk(database, rung=bell.ring),
        views=TaskViews(database),
        workers=Workers(database),
        bell=bell,
        webhooks=webhooks,
        deliveries=WebhookQueue(database),
    )
