"""Client keys, where the settings keep them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from siafu.config.settings import Settings
from siafu.store.client_keys import MIGRATIONS, ClientKeys
from siafu.store.database import Database

RUN, LEDGER = "serve", "serve.db"  # under which name, and in which file of the home folder, served calls are kept


@contextlib.asynccontextmanager
async def client_keys(settings: Settings) -> AsyncIterator[ClientKeys]:
    """The keys, in the settings' database or in `keys.db` of the home folder. Raises: ConfigError, StoreError."""
    database = await asyncio.to_thread(
        Database, settings.database("keys.db"), MIGRATIONS, what="the database of client keys", schema="client_keys"
    )
    try:
        yield ClientKeys(database)
    finally:
        await database.aclose()
