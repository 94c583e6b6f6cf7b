"""The beginning that requests share, as prompt caches see it: tools, form of the answer, system text, then the rest.
Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Literal, NamedTuple

import msgspec

from siafu.border.canonical import dumps
from siafu.gateway.chat import ChatRequest, Message

BYTES_A_TOKEN = 4  # of JSON; for the choice whether a beginning is worth caching, never for limits or money
MARK = "cache_control"
KEY = "prompt_cache_key"
MOST_KINDS, FIRST_CALLS = 100, 20
_SYSTEM = ("system", "developer")
_decode = msgspec.json.Decoder().decode

Marks = Literal["ephemeral", "5m", "1h"]


class PromptCache(msgspec.Struct, frozen=True, kw_only=True):
    """What an upstream's prompt cache wants, and how it is used.

    lead: of calls with the same beginning one goes first, until its answer begins. marks: mark the end of the system
    text as worth caching, for 5 minutes, an hour, or as long as the upstream keeps it (`ephemeral`); None = the
    upstream wants no marks. key: name the beginning in `prompt_cache_key`. min_tokens: shorter beginnings are left
    alone. keep: seconds after its last use that the upstream keeps a beginning. wait: the most seconds that a call
    waits for the first one.
    """

    lead: bool = False
    marks: Marks | None = None
    key: bool = False
    min_tokens: int = 1024
    keep: float = 300.0
    wait: float = 30.0


class Beginning(NamedTuple):
    """name: the same for requests that begin alike, of one model. head: JSON of the tools, the form of the answer and
    the system text; empty when these are too short to be worth caching.
    """

    name: str
    head: bytes


def beginning(request: ChatRequest, min_tokens: int) -> Beginning | None:
    """How `request` begins: all of its head, or where that is shorter than `min_tokens` (estimated), so many tokens of
    the whole request. None = it is shorter than that.
    """
    body, least = request.body(), min_tokens * BYTES_A_TOKEN
    first, messages = [body.get("tools"), body.get("response_format")], body["messages"]
    system = [] if isinstance(messages, msgspec.Raw) else list(takewhile(_is_system, messages))
    head = dumps([*first, *system])
    if system and len(head) >= least:
        return Beginning(_name(request.model, head), head)
    whole = dumps([*first, messages])
    return Beginning(_name(request.model, whole[:least]), b"") if len(whole) >= least else None


def _is_system(message: Message) -> bool:
    return message.get("role") in _SYSTEM


def _name(model: str, text: bytes) -> str:
    return hashlib.sha256(b"%s\n%s" % (model.encode("utf-8", "replace"), text)).hexdigest()


def spelled(request: ChatRequest, wanted: PromptCache, found: Beginning) -> ChatRequest:
    """`request` with what the upstream wants to be told. What its author has said of it himself stays."""
    if wanted.marks is not None and found.head and not _marked(request):
        last = sum(1 for _ in takewhile(_is_system, request.messages)) - 1
        messages = list(request.messages)
        messages[last] = _with_mark(messages[last], wanted.marks)
        request = msgspec.structs.replace(request, messages=messages)
    if wanted.key and KEY not in request.extra:
        request = msgspec.structs.replace(request, extra={**request.extra, KEY: f"siafu-{found.name[:24]}"})
    return request


def _marked(request: ChatRequest) -> bool:
    places: list[Any] = [request.extra, *(request.tools or ())]
    for message in request.messages:
        content = message.get("content")
        places += content if isinstance(content, list) else ()
    return any(isinstance(place, Mapping) and MARK in place for place in places)


def _with_mark(message: Message, marks: Marks) -> Message:
    mark = {"type": "ephemeral"} if marks == "ephemeral" else {"type": "ephemeral", "ttl": marks}
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list) or not parts or not isinstance(parts[-1], Mapping):
        return message
    return {**message, "content": [*parts[:-1], {**parts[-1], MARK: mark}]}


class Difference(NamedTuple):
    """Where the heads of two requests part. at: characters of the system text that are alike; 0 for the other parts."""

    part: Literal["tools", "format", "system"]
    at: int = 0


class _Kind(msgspec.Struct):
    head: bytes  # the first
    names: set[str]  # different ones
    calls: int = 0


class HeadWatch:
    """Notices that requests of one kind begin differently from call to call, so that no cache can help."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, ...], _Kind] = {}

    def saw(self, kind: tuple[str, ...], found: Beginning) -> Difference | None:
        """Where the head differs from the first of its kind: told once, when at least half of the first calls of the
        kind had a head of their own. Later calls are not looked at.
        """
        if not found.head:
            return None
        if kind not in self._kinds:
            if len(self._kinds) >= MOST_KINDS:
                return None
            self._kinds[kind] = _Kind(found.head, set())
        seen = self._kinds[kind]
        if seen.calls >= FIRST_CALLS:
            return None
        seen.calls += 1
        seen.names.add(found.name)
        if 2 * len(seen.names) < FIRST_CALLS:
            return None
        seen.calls = FIRST_CALLS
        return _difference(seen.head, found.head)


def _difference(one: bytes, other: bytes) -> Difference:
    first, second = _decode(one), _decode(other)
    if dumps(first[0]) != dumps(second[0]):
        return Difference("tools")
    if dumps(first[1]) != dumps(second[1]):
        return Difference("format")
    texts = ["".join(str(message.get("content")) for message in head[2:]) for head in (first, second)]
    return Difference("system", sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False))))
