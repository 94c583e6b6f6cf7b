"""`GET /v1/models`: what the upstream offers, and the swarms."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from siafu.pace.clock import Clock
from siafu.service.refusals import Refused
from siafu.store.client_keys import ClientKey

KEPT = 60.0  # seconds that the upstream's list is used again


class Models:
    """The list of models. ask: asks the upstream for it. own: models that siafu itself is."""

    def __init__(self, ask: Callable[[], Awaitable[Sequence[str]]], own: Sequence[str], clock: Clock) -> None:
        self._ask = ask
        self._own = tuple(own)
        self._clock = clock
        self._lock = asyncio.Lock()
        self._known: tuple[str, ...] = ()
        self._asked = float("-inf")

    async def all(self, key: ClientKey | None) -> list[dict[str, Any]]:
        """Every model that the holder of `key` may use. Raises: ModelError when the upstream does not say."""
        async with self._lock:
            if self._clock.now() - self._asked > KEPT:
                self._known = (*self._own, *await self._ask())
                self._asked = self._clock.now()
        return [self._entry(name) for name in self._known if key is None or key.terms.allows(name)]

    async def one(self, name: str, key: ClientKey | None) -> dict[str, Any]:
        """Raises: Refused when there is none of this name."""
        found = next((model for model in await self.all(key) if model["id"] == name), None)
        if found is None:
            raise Refused(404, f"there is no model {name[:100]!r} here", code="model_not_found", again=False)
        return found

    def _entry(self, name: str) -> dict[str, Any]:
        owner = "siafu" if name in self._own else "upstream"
        return {"id": name, "object": "model", "created": 0, "owned_by": owner}
