"""Tasks that outlive a process, where the settings keep them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from random import Random

from siafu.border.urls import leads_elsewhere
from siafu.config.settings import Settings
from siafu.errors import ConfigError
from siafu.pace.clock import SystemClock
from siafu.queue.doorbell import Doorbell, ringing
from siafu.queue.redis_bell import RedisBell
from siafu.store.database import Database
from siafu.store.task_desk import TaskDesk
from siafu.store.task_schema import MIGRATIONS
from siafu.store.tasks import TaskStore
from siafu.store.workers import Workers

_warn = logging.getLogger("siafu").warning


@contextlib.asynccontextmanager
async def task_database(settings: Settings) -> AsyncIterator[Database]:
    """The settings' database, or `tasks.db` in the home folder.

    Raises: ConfigError, also for a file and a Redis on another machine: what is rung for there cannot be found there.
    StoreError.
    """
    _check_reach(settings)
    database = await asyncio.to_thread(
        Database, settings.database("tasks.db"), MIGRATIONS, what="the database of tasks", schema="tasks"
    )
    try:
        yield database
    finally:
        await database.aclose()


@contextlib.asynccontextmanager
async def task_bell(
    settings: Settings,
    database: Database,
    *,
    reader: str | None = None,
    notice: Callable[[str], None] = _warn,
) -> AsyncIterator[Doorbell]:
    """The bell of the tasks in `database`: through Redis if the settings name one, else through PostgreSQL. reader: the
    worker that is to hear it, a name that nobody else has ever; None = it is only to be rung. notice: told when Redis
    is lost, and when it is back.

    Raises: ConfigError, StoreError.
    """
    redis = settings.redis()
    if redis is not None:
        place = await database.run(lambda tx: tx.rows("SELECT id FROM task_place"))
        bell = RedisBell(redis, place[0]["id"], reader=reader, clock=SystemClock(), rng=Random(), notice=notice)
        async with bell.open():
            yield bell
        return
    local = Doorbell()
    async with ringing(local, database) if reader else contextlib.nullcontext():
        yield local


@contextlib.asynccontextmanager
async def task_store(settings: Settings, *, notice: Callable[[str], None] = _warn) -> AsyncIterator[TaskStore]:
    """Where tasks are submitted. notice: as in `task_bell`. Raises: ConfigError, StoreError."""
    async with (
        task_database(settings) as database,
        task_bell(settings, database, notice=notice) as bell,
        contextlib.aclosing(opened_store(settings, database, bell)) as store,
    ):
        yield store


def opened_store(settings: Settings, database: Database, bell: Doorbell) -> TaskStore:
    """The tasks in `database`, which ring `bell`; the caller's to close."""
    return TaskStore(database, rung=bell.ring, most_open=settings.tasks.backlog)


@contextlib.asynccontextmanager
async def task_desk(settings: Settings, *, rings: bool = False) -> AsyncIterator[TaskDesk]:
    """The people's side. rings: workers elsewhere are woken for what becomes ready; else they find it when they look.

    Raises: ConfigError, StoreError.
    """
    async with (
        task_database(settings) as database,
        task_bell(settings, database) if rings else contextlib.nullcontext(Doorbell()) as bell,
    ):
        yield TaskDesk(database, rung=bell.ring)


@contextlib.asynccontextmanager
async def task_workers(settings: Settings) -> AsyncIterator[Workers]:
    """Who works on the tasks. Raises: ConfigError, StoreError."""
    async with task_database(settings) as database:
        yield Workers(database)


def _check_reach(settings: Settings) -> None:
    redis, place = settings.redis(), str(settings.database("tasks.db"))
    if redis is not None and not place.startswith(("postgresql://", "postgres://")) and leads_elsewhere(redis.reveal()):
        raise ConfigError(
            "redis_url (or REDIS_URL) leads to another machine, and tasks are in a file of this one, where others "
            "cannot do them: set SIAFU_DATABASE_URL=postgresql://... for several machines; for one alone, use a Redis "
            "on it, or unset redis_url"
        )
