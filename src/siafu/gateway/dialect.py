"""How a model wants its request spelled, which only its refusals tell. Some models of OpenAI refuse `max_tokens` and
want `max_completion_tokens`, which most other servers do not know. Some upstreams want their own fields of a message
back (`reasoning_content`), others refuse them, which matters when one model stands in for another. Some know no JSON
Schema for the form of an answer, or no form at all: they are told the schema in words, and who reads the answer checks
it in any case.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from siafu.border.canonical import dumps
from siafu.errors import RequestRefused
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import Endpoint, Reply
from siafu.observe.calls import CallContext

REFUSAL = "unsupported_parameter"
OTHER_SPELLING = "max_completion_tokens"
MOST = 3  # other spellings of one request
_STANDARD = frozenset({"role", "content", "name", "tool_calls"})  # what everybody knows of a model's message
_FORM = ("response_format", "response format", "json_schema", "json_object")
Respell = Callable[[ChatRequest], ChatRequest]


class Spelled:
    """The wrapper around the transport that learns the spelling of each model.

    A refusal did no work and cost nothing, so the respelled request is part of the same attempt.
    """

    def __init__(self, inner: Endpoint) -> None:
        self._inner = inner
        self._learned: dict[str, tuple[Respell, ...]] = {}

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        for respell in self._learned.get(request.model, ()):
            request = respell(request)
        tried: list[Respell] = []
        first: RequestRefused | None = None
        while True:
            try:
                reply = await self._inner.open(request, context)
                break
            except RequestRefused as refused:
                first = first or refused
                wanted = _wanted(request, refused)
                if wanted is None or len(tried) == MOST:  # something else was meant
                    raise first from None
                tried.append(wanted)
                request = wanted(request)
        if tried:
            self._learned[request.model] = tuple(dict.fromkeys((*self._learned.get(request.model, ()), *tried)))
        return reply


def _wanted(request: ChatRequest, refused: RequestRefused) -> Respell | None:
    if refused.provider_code == REFUSAL and request.max_tokens is not None:
        return _other_limit
    if request.response_format is not None and _about_the_form(refused):
        return _schema_in_words if request.response_format.get("type") == "json_schema" else _formless
    return _bare if any(name in refused.message for name in _foreign(request)) else None


def _other_limit(request: ChatRequest) -> ChatRequest:
    if request.max_tokens is None:
        return request
    extra = {**request.extra, OTHER_SPELLING: request.max_tokens}
    return msgspec.structs.replace(request, max_tokens=None, extra=extra)


def _about_the_form(refused: RequestRefused) -> bool:
    """Whether a form like this is not known there. That this one schema is wrong is for its author to mend."""
    said = refused.message.lower()
    if refused.status not in (400, 422) or "invalid schema" in said or "json_schema" in (refused.provider_code or ""):
        return False
    if refused.param is not None:
        return refused.param in ("response_format", "response_format.type")
    return any(name in said for name in _FORM)


def _schema_in_words(request: ChatRequest) -> ChatRequest:
    """Asks for JSON of any form, and says in the system text which one."""
    form = request.response_format
    if form is None or form.get("type") != "json_schema":
        return request
    schema = dumps((form.get("json_schema") or {}).get("schema", {})).decode()
    told = f"Answer with nothing but one JSON object that fits this JSON Schema: {schema}"
    first, *rest = request.messages
    if first.get("role") in ("system", "developer") and isinstance(first.get("content"), str):
        messages = [{**first, "content": f"{first['content']}\n\n{told}"}, *rest]
    else:
        messages = [{"role": "system", "content": told}, first, *rest]
    return msgspec.structs.replace(request, messages=messages, response_format={"type": "json_object"})


def _formless(request: ChatRequest) -> ChatRequest:
    return msgspec.structs.replace(request, response_format=None)


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
