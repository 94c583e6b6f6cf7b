"""How a model wants its request spelled. Some models of OpenAI refuse `max_tokens` and want `max_completion_tokens`,
which most other servers do not know; only the refusal tells which is which.
"""

from __future__ import annotations

import msgspec

from siafu.errors import RequestRefused
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import Endpoint, Reply
from siafu.observe.calls import CallContext

REFUSAL = "unsupported_parameter"
OTHER_SPELLING = "max_completion_tokens"


class Spelled:
    """The wrapper around the transport that learns, for each model, how the limit of output is called.

    A refusal did no work and cost nothing, so the respelled request is part of the same attempt; it is sent once.
    """

    def __init__(self, inner: Endpoint) -> None:
        self._inner = inner
        self._respelled: set[str] = set()

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        if request.max_tokens is None:
            return await self._inner.open(request, context)
        if request.model in self._respelled:
            return await self._inner.open(_respell(request), context)
        try:
            return await self._inner.open(request, context)
        except RequestRefused as refused:
            if refused.provider_code != REFUSAL:
                raise
            try:
                reply = await self._inner.open(_respell(request), context)
            except RequestRefused:  # another parameter was meant
                raise refused from None
        self._respelled.add(request.model)
        return reply


def _respell(request: ChatRequest) -> ChatRequest:
    extra = {**request.extra, OTHER_SPELLING: request.max_tokens}
    return msgspec.structs.replace(request, max_tokens=None, extra=extra)
