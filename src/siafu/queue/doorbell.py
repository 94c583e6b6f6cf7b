"""Bells: they say that there may be news in the store, and nothing else. A ring that is lost costs the time until the
next look, so a bell may be anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator

from siafu.errors import StoreError
from siafu.store.database import Database
from siafu.store.tasks import CHANNEL

RECONNECT = 1.0  # seconds


class Doorbell:
    """Rings within this process. Its methods may be called on the event loop only, and never fail."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    def ring(self, tasks: Collection[str] = ()) -> None:
        """Say that `tasks` may be ready, or that others may be."""
        for listener in self._listeners:
            listener()

    def looked(self, free: int) -> None:
        """Say that a listener has looked into the store, and has so many slots free now."""

    @contextlib.contextmanager
    def heard(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call `listener` at every ring while the block runs. It must be quick and must not raise."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)


@contextlib.asynccontextmanager
async def ringing(bell: Doorbell, database: Database) -> AsyncIterator[None]:
    """Ring `bell` for news from other processes, too, while the block runs: on PostgreSQL, by LISTEN. While the
    connection is lost it does not ring, and is made again and again. On SQLite there is nothing to listen to.
    """
    if database.dialect != "postgresql":
        yield
        return
    loop, over = asyncio.get_running_loop(), threading.Event()

    def heard() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(bell.ring)

    def listen() -> None:
        while not over.is_set():
            with contextlib.suppress(StoreError):
                database.listen(CHANNEL, heard, over.is_set)
            over.wait(RECONNECT)

    thread = threading.Thread(target=listen, name="siafu-doorbell", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        await asyncio.to_thread(thread.join)
