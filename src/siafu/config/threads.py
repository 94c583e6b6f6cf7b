"""The support swarm's conversations, opened where the settings keep state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from siafu.apps.support.threads import MIGRATIONS, Threads
from siafu.config.settings import Settings
from siafu.store.database import Database


@contextlib.asynccontextmanager
async def support_threads(settings: Settings) -> AsyncIterator[Threads]:
    """Conversations, in the settings' database or in `support.db` of the home folder.

    Raises: ConfigError, StoreError.
    """
    database = await asyncio.to_thread(
        Database,
        settings.database("support.db"),
        MIGRATIONS,
        what="the database of conversations",
        schema="support",
    )
    try:
        yield Threads(database)
    finally:
        await database.aclose()
