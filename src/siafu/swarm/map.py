"""The one primitive: the same work for many items at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable
from types import TracebackType
from typing import Any, Self

from siafu.agents.task import Surroundings
from siafu.errors import ConfigError, SiafuError
from siafu.store.records import RunStore
from siafu.swarm.engine import Engine
from siafu.swarm.intake import Source
from siafu.swarm.options import MapOptions
from siafu.swarm.results import MapResult, MapSummary
from siafu.swarm.work import Work, WorkFunction, as_job

_DEFAULTS = MapOptions()


def map_items(
    work: str | Work | WorkFunction,
    items: Iterable[Any] | AsyncIterable[Any],
    *,
    around: Surroundings,
    store: RunStore | None = None,
    options: MapOptions = _DEFAULTS,
) -> MapRun:
    """Do `work` for every item; iterate over what is returned for the results. Nothing starts before that.

    work: a prompt template, an Agent, or an `async def work(item, ctx)`. items: a list, iterator or async iterator, of
    any length; read only as far ahead as `options` say. store: where finished items and calls are remembered; None =
    nowhere. It is begun here; closing it, once the run has ended, is the caller's.

    Raises: ConfigError when `work` or `items` cannot be used.
    """
    if options.wait is not None and store is None:
        raise ConfigError("wait needs a journal: without one, asking again would be another request")
    job = as_job(work, defaults=around.defaults, version=options.version)
    return MapRun(Engine(job, Source(items), around, store, options))


class MapRun:
    """A map as it runs: an async iterator over its results and an async context manager.

    Each item gives one result, ok or error, as it finishes; one that waits says so first, again when it waits for
    something else, and gives its result in this run (`wait`) or a later one. When the run cannot go on (no budget,
    credit, access or time), what flies ends, or is cancelled when time is over, and the iteration ends early;
    `summary.stopped` says why, and with a store the next run goes on there. Errors of the input iterator or of the
    store, and with `fail_fast` the first error of an item, are raised after all finished results.

    Cancelling whoever iterates, leaving the `async with` and `aclose` cancel the work and wait for its end. A run that
    is let go of in any other way, such as by a `break`, cancels its work without anybody waiting.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MapResult:
        if self._closed:
            raise StopAsyncIteration
        try:
            result = await self._engine.next()
        except asyncio.CancelledError:
            await self.aclose()
            raise
        if result is None:
            self._closed = True
            if self._engine.error is not None:
                raise self._engine.error
            raise StopAsyncIteration
        return result

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel what runs, wait until it has ended (within bounds), and drop results not taken. Idempotent."""
        self._closed = True
        await self._engine.close()

    def wind_up(self, error: SiafuError) -> None:
        """Begin no more items; results of those that are worked on still come, and then the iteration ends. `error`:
        why, for the summary.
        """
        self._engine.wind_up(error)

    @property
    def summary(self) -> MapSummary:
        """The sums so far, at any time."""
        return self._engine.summary()

    def __del__(self) -> None:
        self._engine.drop()
