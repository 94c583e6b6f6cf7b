"""Several upstreams and keys behind one Endpoint: each call goes to one lane, and what fails there may go on elsewhere.

A lane is one key at one upstream, with its own limits. This wrapper chooses; `Retrying` outside it asks again, told by
the error whether another lane would take the call (`elsewhere`) and which one failed (`lane`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from siafu.errors import AccessRefused, ModelError, QuotaExhausted, RequestRefused, UnpricedModel
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import Reply
from siafu.gateway.limits import Limited
from siafu.gateway.retry import kind_of
from siafu.gateway.routing import Rule, Target, chain, pick
from siafu.observe.calls import CallContext
from siafu.observe.events import LaneClosed, Observer, Rerouted
from siafu.pace.clock import Clock

PATIENCE = 5.0  # seconds that a call waits for the model it wants before another model stands in
NO_CREDIT = 60.0  # seconds until a key without credit is tried again
_OTHERWISE = ("context_length_exceeded", "model_not_found", "deployment_not_found")


class Lane:
    """One key at one upstream.

    endpoint: its part of the onion. id: unique. upstream: its configured name. models: names it offers -> its own names
    for them; None = every name, as it is. tier, weight: as in `routing.Choosable`.
    """

    def __init__(
        self,
        endpoint: Limited,
        *,
        id: str,
        upstream: str,
        models: Mapping[str, str] | None = None,
        tier: int = 1,
        weight: float = 1.0,
    ) -> None:
        self.endpoint = endpoint
        self.id = id
        self.upstream = upstream
        self.models = models
        self.tier = tier
        self.weight = weight
        self.credit = 0.0
        self.shut_until = -math.inf

    def offers(self, wanted: Target) -> bool:
        if wanted.upstream and wanted.upstream != self.upstream:
            return False
        return self.models is None or wanted.model in self.models

    def own_name(self, model: str) -> str:
        return model if self.models is None else self.models.get(model, model)

    def closed_for(self, now: float) -> float:
        """Seconds until it takes a call again; 0.0 = now, infinite = not by itself. A full lane is not closed: calls
        queue there.
        """
        return max(0.0, self.shut_until - now, self.endpoint.pause(now))


class Routed:
    """The wrapper that chooses. `lanes`: in the order of the settings. `rules`: the first that fits a call counts."""

    def __init__(self, lanes: Sequence[Lane], rules: Sequence[Rule], *, clock: Clock, observer: Observer) -> None:
        self.lanes = lanes
        self._rules = rules
        self._clock = clock
        self._observer = observer

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        """Send `request` on one lane.

        Raises: ModelError, with `lane` and `elsewhere`; RequestRefused when no upstream offers the model.
        """
        targets = chain(self._rules, request, context)
        lane, wanted = self._choose(targets, context.avoid)
        if wanted != targets[0] or context.avoid:
            self._observer(
                Rerouted(run=context.run, task=context.task, wanted=targets[0].model, model=wanted.model, lane=lane.id)
            )
        name = lane.own_name(wanted.model)
        if name != request.model:
            request = msgspec.structs.replace(request, model=name)
        try:
            return await lane.endpoint.open(request, context)
        except ModelError as error:
            self._shut(lane, error, context)
            error.lane = lane.id
            error.elsewhere = _movable(error) and self._elsewhere(targets, lane, error, context)
            raise

    def _choose(self, targets: Sequence[Target], avoid: Sequence[str]) -> tuple[Lane, Target]:
        """The lane for a call. Lanes where it failed already come last. A lane that is closed for a while is only
        chosen when no other takes the call sooner.
        """
        now = self._clock.now()
        every = [(lane, wanted) for wanted in targets for lane in self._offering(wanted)]
        if not every:
            raise RequestRefused(
                f"no upstream offers the model {targets[0].model!r}; see [upstreams] in siafu.toml", attempts=0
            )
        for wanted in targets:
            fresh = [lane for lane in self._offering(wanted) if lane.id not in avoid]
            if ready := [lane for lane in fresh if lane.closed_for(now) <= 0.0]:
                return pick(ready), wanted
            if soon := [(lane, wanted) for lane in fresh if lane.closed_for(now) <= PATIENCE]:
                every = soon
                break
        lane, wanted = min(every, key=lambda one: (one[0].closed_for(now), one[0].id in avoid))
        if math.isinf(lane.closed_for(now)):
            raise AccessRefused(
                f"every key for {wanted.model!r} was refused by its upstream: set working ones", attempts=0
            )
        return lane, wanted

    def _offering(self, wanted: Target) -> Iterator[Lane]:
        return (lane for lane in self.lanes if lane.offers(wanted))

    def _shut(self, lane: Lane, error: ModelError, context: CallContext) -> None:
        """Take a lane out that would refuse every call: when its key is refused, and for a while without credit."""
        if error.attempts == 0:
            return
        if isinstance(error, AccessRefused) and error.status == 401:
            lane.shut_until = math.inf
        elif isinstance(error, QuotaExhausted):
            lane.shut_until = self._clock.now() + max(NO_CREDIT, error.wait or 0.0)
        else:
            return
        self._observer(LaneClosed(run=context.run, lane=lane.id, reason=error.code))

    def _elsewhere(self, targets: Sequence[Target], failed: Lane, error: ModelError, context: CallContext) -> bool:
        """Whether another lane would take the call now. What was refused as a request is not asked in the same words
        of the same upstream again.
        """
        now = self._clock.now()
        alike = failed.upstream if isinstance(error, RequestRefused | UnpricedModel) else None
        return any(
            lane is not failed
            and lane.id not in context.avoid
            and lane.closed_for(now) <= 0.0
            and (lane.upstream != alike or wanted != targets[0])
            for wanted in targets
            for lane in self._offering(wanted)
        )


def _movable(error: ModelError) -> bool:
    """Whether another upstream, key or model may answer what failed so."""
    if isinstance(error, RequestRefused):
        return error.status == 404 or error.provider_code in _OTHERWISE
    return kind_of(error) != "final" or isinstance(error, AccessRefused | QuotaExhausted | UnpricedModel)
