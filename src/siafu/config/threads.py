"""The support swarm's conversations, opened where the settings keep state."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

from siafu.apps.support.threads import MIGRATIONS, Threads
from siafu.config.settings import Settings
from siafu.store.database import Database

DATABASE_URL = "SIAFU_DATABASE_URL"


@contextlib.asynccontextmanager
async def support_threads(settings: Settings) -> AsyncIterator[Threads]:
    """Conversations in the database at SIAFU_DATABASE_URL, or in `support.db` of the home folder.

    Raises: ConfigError, StoreError.
    """
    where = os.environ.get(DATABASE_URL) or settings.home / "support.db"
    database = await asyncio.to_thread(
        Database, where, MIGRATIONS, what="the database of conversations", schema="support"
    )
    try:
        yield Threads(database)
    finally:
        await database.aclose()
