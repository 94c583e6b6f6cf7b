"""The deadline of a call: nothing inside takes longer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from siafu.errors import DeadlineReached
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import Endpoint, Reply
from siafu.observe.calls import CallContext
from siafu.pace.clock import Clock


class Deadlined:
    """Ends `open` at `context.deadline`. What a stream still sends after `open` is bounded by the transport."""

    def __init__(self, inner: Endpoint, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock

    def open(self, request: ChatRequest, context: CallContext) -> Coroutine[Any, Any, Reply]:
        if context.deadline is None:
            return self._inner.open(request, context)
        return self._open_by(context.deadline, request, context)

    async def _open_by(self, deadline: float, request: ChatRequest, context: CallContext) -> Reply:
        left = deadline - self._clock.now()
        if left <= 0:
            raise DeadlineReached("the time for this call was over before it was sent")
        scope = asyncio.timeout(left)
        try:
            async with scope:
                return await self._inner.open(request, context)
        except TimeoutError:
            if not scope.expired():
                raise
            raise DeadlineReached(f"the model call was ended at its deadline, {left:,.1f} s after it began") from None
