"""Tasks that outlive a process, where the settings keep them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from siafu.config.settings import Settings
from siafu.store.database import Database
from siafu.store.task_desk import TaskDesk
from siafu.store.task_schema import MIGRATIONS
from siafu.store.tasks import TaskStore
from siafu.store.workers import Workers


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
async def task_workers(settings: Settings) -> AsyncIterator[Workers]:
    """Who works on the tasks. Raises: ConfigError, StoreError."""
    async with task_database(settings) as database:
        yield Workers(database)
