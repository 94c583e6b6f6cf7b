"""Prompt caches filled before a fan-out: of calls that begin alike one goes first, and its siblings when its answer has
begun, so that they pay the cached price.

It stands outside of the limits: who waits here holds no permit, so that the first one gets its own also where one call
at a time is allowed.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from siafu.errors import ModelError
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import Reply
from siafu.gateway.limits import Limited, Limits
from siafu.gateway.prefix import HeadWatch, PromptCache, beginning, spelled
from siafu.observe.calls import CallContext
from siafu.observe.events import HeadsDiffer, Observer, WentFirst
from siafu.pace.clock import Clock
from siafu.pace.lead import Lead

MOST_LEADS = 10_000


class Warmed:
    """The wrapper around one upstream and key. Calls that begin differently never wait for each other."""

    def __init__(self, inner: Limited, wanted: PromptCache, *, clock: Clock, upstream: str, observer: Observer) -> None:
        self._inner = inner
        self._wanted = wanted
        self._clock = clock
        self._upstream = upstream
        self._observer = observer
        self._leads: OrderedDict[str, Lead] = OrderedDict()  # by how calls begin; the last used is the last
        self._watch = HeadWatch()

    @property
    def in_flight(self) -> int:
        return self._inner.in_flight

    @property
    def waiting(self) -> int:
        """As `Limited.waiting`."""
        return self._inner.waiting

    @property
    def limit(self) -> int:
        """As `Limited.limit`."""
        return self._inner.limit

    def pause(self, now: float) -> float:
        return self._inner.pause(now)

    def change(self, limits: Limits) -> None:
        """As `Limited.change`."""
        self._inner.change(limits)

    def when_idle(self, told: Callable[[], None]) -> None:
        """As `Limited.when_idle`."""
        self._inner.when_idle(told)

    def let_go(self) -> None:
        """Let all go on who wait for the first."""
        for lead in self._leads.values():
            lead.warm(-math.inf)

    def turn_away(self, error: Callable[[], ModelError]) -> None:
        """As `Limited.turn_away`, also those who wait for the first."""
        self._inner.turn_away(error)
        for lead in self._leads.values():
            lead.turn_away(error)

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        found = beginning(request, self._wanted.min_tokens)
        if found is None:
            return await self._inner.open(request, context)
        kind = (context.run, context.role, request.model)
        if (difference := self._watch.saw(kind, found)) is not None:
            self._observer(HeadsDiffer(run=context.run, role=context.role, model=request.model, **difference._asdict()))
        request = spelled(request, self._wanted, found)
        spare = context.heat is not None and context.heat.spare  # it leaves at once or not at all
        if spare or not self._wanted.lead:
            return await self._inner.open(request, context)
        return await self._in_turn(self._lead(found.name), request, context)

    def _lead(self, name: str) -> Lead:
        lead = self._leads.pop(name, None) or Lead()
        self._leads[name] = lead
        if len(self._leads) > MOST_LEADS:
            self._leads.popitem(last=False)  # who waits there has hold of it
        return lead

    async def _in_turn(self, lead: Lead, request: ChatRequest, context: CallContext) -> Reply:
        asked = self._clock.now()
        leads = await lead.enter(asked, context.priority, self._wanted.wait)
        if context.since is None and self._clock.now() > asked:  # the place in the queue of the limits stays
            context = msgspec.structs.replace(context, since=asked)
        try:
            reply = await self._inner.open(request, context)
            siblings = lead.warm(max(asked, reply.head.began) + self._wanted.keep)
        finally:
            if leads:
                lead.left()
        if siblings:
            self._observer(
                WentFirst(
                    run=context.run,
                    task=context.task,
                    role=context.role,
                    model=request.model,
                    upstream=self._upstream,
                    siblings=siblings,
                    seconds=self._clock.now() - asked,
                )
            )
        return reply
