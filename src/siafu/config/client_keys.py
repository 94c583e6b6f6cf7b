"""Client keys, and the key that signs customers, where the settings keep them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

from siafu.border.identity import checked_identity_key
from siafu.border.secrets import Secret
from siafu.config.settings import Settings
from siafu.store.client_keys import MIGRATIONS, ClientKeys
from siafu.store.database import Database

IDENTITY_KEY = "SIAFU_IDENTITY_KEY"
RUN, LEDGER = "serve", "serve.db"  # under which name, and in which file of the home folder, served calls are kept


def customer_key() -> Secret | None:
    """The key that signs who a customer is; None when SIAFU_IDENTITY_KEY is not set. Raises: ConfigError."""
    given = os.environ.get(IDENTITY_KEY)
    return checked_identity_key(given, IDENTITY_KEY) if given else None


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
