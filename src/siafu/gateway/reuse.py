"""Whole answers used again, where a rule says so: the same question of the same tenant is asked once.

Only what has one right answer: temperature 0, no tools, not streamed. Only answers that ended by themselves are kept.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from siafu.gateway.chat import ChatAnswer, ChatRequest, Usage
from siafu.gateway.endpoint import Endpoint, PlainReply, Reply, ReplyHead
from siafu.observe.calls import CallContext
from siafu.observe.events import Observer, Reused
from siafu.pace.clock import Clock
from siafu.pace.lead import Lead

MOST_KEPT = 1_000
MOST_BYTES = 64 * 1024  # of an answer's text; longer ones are not kept


class ReuseRule(msgspec.Struct, frozen=True, kw_only=True):
    """Answers to calls that fit are used again for `seconds`. A condition that is None fits every call."""

    seconds: float
    models: frozenset[str] | None = None
    roles: frozenset[str] | None = None
    tenants: frozenset[str] | None = None

    def fits(self, request: ChatRequest, context: CallContext) -> bool:
        asked = ((self.models, request.model), (self.roles, context.role), (self.tenants, context.tenant))
        return all(wanted is None or value in wanted for wanted, value in asked)


class _Place(Lead):
    """Where one question is asked, and the answer while it is warm."""

    answer: ChatAnswer


class Reusing:
    """The wrapper that asks once. Of equal calls at the same time one goes, and the others wait for its answer; when it
    fails, the next goes, as no error is anybody else's. An answer that is used again costs nothing, and says so.
    """

    def __init__(self, inner: Endpoint, rules: Sequence[ReuseRule], *, clock: Clock, observer: Observer) -> None:
        self.inner = inner  # may be replaced
        self._rules = rules
        self._clock = clock
        self._observer = observer
        self._places: OrderedDict[bytes, _Place] = OrderedDict()  # the last used is the last

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        rule = next((rule for rule in self._rules if rule.fits(request, context)), None)
        if rule is None or not reusable(request):
            return await self.inner.open(request, context)
        tenant = context.tenant.encode("utf-8", "surrogatepass")
        place = self._place(hashlib.sha256(b"%s\n%s" % (tenant, request.canonical())).digest())
        if not await place.enter(self._clock.now(), 0, None):
            return self._again(place.answer, context)
        try:
            reply = await self.inner.open(request, context)
            answer = await reply.message()
            if answer.finish_reason == "stop" and len(answer.text.encode("utf-8", "replace")) <= MOST_BYTES:
                place.answer = answer
                place.warm(self._clock.now() + rule.seconds)
        finally:
            place.left()
        return reply

    def forget(self) -> None:
        """Use no answer of before again; who waits for one gets it."""
        self._places = OrderedDict()

    def _place(self, name: bytes) -> _Place:
        place = self._places.pop(name, None) or _Place()
        self._places[name] = place
        if len(self._places) > MOST_KEPT:
            self._places.popitem(last=False)  # who waits there has hold of it
        return place

    def _again(self, answer: ChatAnswer, context: CallContext) -> Reply:
        self._observer(
            Reused(run=context.run, task=context.task, role=context.role, model=answer.model, usd_pico=answer.usd_pico)
        )
        free = msgspec.structs.replace(answer, usage=Usage(), usd_pico=0, attempts=0)
        return PlainReply(free, ReplyHead(began=self._clock.now(), attempts=0))


def reusable(request: ChatRequest) -> bool:
    """Whether a request has one right answer, as far as can be seen."""
    if request.temperature != 0 or request.tools or request.stream or request.given or request.keep_raw:
        return False
    used = {"tools", "functions", "tool_choice"} & request.extra.keys()
    return not used and not any(message.get("role") == "tool" for message in request.messages)
