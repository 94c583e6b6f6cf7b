"""How a model wants its request spelled, which only its refusals tell. Some models of OpenAI refuse `max_tokens` and
want `max_completion_tokens`, which most other servers do not know. Some upstreams want their own fields of a message
back (`reasoning_content`), others refuse them, which matters when one model stands in for another.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from siafu.errors import RequestRefused
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import Endpoint, Reply
from siafu.observe.calls import CallContext

REFUSAL = "unsupported_parameter"
OTHER_SPELLING = "max_completion_tokens"
_STANDARD = frozenset({"role", "content", "name", "tool_calls"})  # what everybody knows of a model's message
Respell = Callable[[ChatRequest], ChatRequest]


class Spelled:
    """The wrapper around the transport that learns the spelling of each model.

    A refusal did no work and cost nothing, so the respelled request is part of the same attempt; it is sent once.
    """

    def __init__(self, inner: Endpoint) -> None:
        self._inner = inner
        self._learned: dict[str, tuple[Respell, ...]] = {}

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        for respell in self._learned.get(request.model, ()):
            request = respell(request)
        try:
            return await self._inner.open(request, context)
        except RequestRefused as refused:
            wanted = _wanted(request, refused)
            if wanted is None:
                raise
            try:
                reply = await self._inner.open(wanted(request), context)
            except RequestRefused:  # something else was meant
                raise refused from None
        learned = self._learned.get(request.model, ())
        if wanted not in learned:
            self._learned[request.model] = (*learned, wanted)
        return reply


def _wanted(request: ChatRequest, refused: RequestRefused) -> Respell | None:
    if refused.provider_code == REFUSAL and request.max_tokens is not None:
        return _other_limit
    return _bare if any(name in refused.message for name in _foreign(request)) else None


def _other_limit(request: ChatRequest) -> ChatRequest:
    if request.max_tokens is None:
        return request
    extra = {**request.extra, OTHER_SPELLING: request.max_tokens}
    return msgspec.structs.replace(request, max_tokens=None, extra=extra)


def _bare(request: ChatRequest) -> ChatRequest:
    """Without what only the upstream that wrote a message knows."""
    if not _foreign(request):
        return request
    messages = [
        {name: value for name, value in message.items() if name in _STANDARD or message.get("role") != "assistant"}
        for message in request.messages
    ]
    return msgspec.structs.replace(request, messages=messages)


def _foreign(request: ChatRequest) -> set[str]:
    """Names of the other fields in messages of models."""
    return {name for message in request.messages if message.get("role") == "assistant" for name in message} - _STANDARD
