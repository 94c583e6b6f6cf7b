"""Files and batches of `siafu serve`, kept in the home folder: the bytes in `files`, what is known of them in
`files.db`. Always there, also with a `database_url`: the bytes are on this machine, and so is who works on them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from siafu.apps.batches.desk import BatchDesk, Rules
from siafu.apps.batches.life import House
from siafu.apps.batches.shelf import Shelf
from siafu.config.databases import FILES
from siafu.config.settings import Settings
from siafu.config.swarms import NAMESPACE
from siafu.gateway.endpoint import Endpoint
from siafu.pace.clock import Clock
from siafu.store.batches import MIGRATIONS, SCHEMA, BatchStore
from siafu.store.database import Database

_GIGABYTE, _DAY = 10**9, 86_400.0


@contextlib.asynccontextmanager
async def batch_desk(settings: Settings, endpoint: Endpoint, clock: Clock) -> AsyncIterator[BatchDesk]:
    """The desk, its models asked through `endpoint`; it works once it is opened. Raises: StoreError."""
    own = settings.batches
    async with contextlib.AsyncExitStack() as stack:
        shelf = await asyncio.to_thread(Shelf, settings.home)
        stack.callback(shelf.close)
        what = "the database of files and batches"
        database = await asyncio.to_thread(Database, settings.home / FILES, MIGRATIONS, what=what, schema=SCHEMA)
        stack.push_async_callback(database.aclose)
        house = House(
            shelf=shelf,
            store=BatchStore(database),
            endpoint=endpoint,
            clock=clock,
            own=NAMESPACE,
            concurrency=settings.limits.concurrency,
            keep=own.keep_days * _DAY or None,
            simulated=settings.simulated,
        )
        yield BatchDesk(house, Rules(at_once=own.at_once, most_bytes=int(own.key_gigabytes * _GIGABYTE)))
