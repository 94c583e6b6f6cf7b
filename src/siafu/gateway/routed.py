"""Several upstreams and keys behind one Endpoint: each call goes to one lane, and what fails there may go on elsewhere.

A lane is one key at one upstream, with its own limits. This wrapper chooses; `Retrying` outside it asks again, told by
the error whether another lane or model would take the call (`elsewhere`) and what failed (`tried`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from siafu.errors import (
    AccessRefused,
    BudgetReached,
    ModelError,
    QuotaExhausted,
    RequestRefused,
    Tried,
    UnpricedModel,
)
from siafu.gateway.canary import Split
from siafu.gateway.chat import ChatRequest
from siafu.gateway.day_budgets import DAY
from siafu.gateway.endpoint import Reply
from siafu.gateway.guard import Guarded
from siafu.gateway.retry import again, kind_of
from siafu.gateway.routing import Rule, Target, chain, pick
from siafu.observe.calls import CallContext
from siafu.observe.events import LaneClosed, Observer, Rerouted
from siafu.pace.clock import Clock

PATIENCE = 5.0  # seconds that a call waits for the model it wants before another model stands in
_OTHERWISE = ("context_length_exceeded", "model_not_found", "deployment_not_found")


class Lane:
    """One key at one upstream.

    endpoint: its part of the onion. id: unique. upstream: its configured name. models: names it offers -> its own names
    for them; None = every name, as it is. tier, weight: as in `routing.Choosable`.
    """

    def __init__(
        self,
        endpoint: Guarded,
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
        self.shut = False  # its key is refused
        self.lacks: Callable[[ChatRequest, str], float] = _no_budget  # as `DayBudgeted.lacks`
        self.spent_on = -1.0  # the day on which its key's budget was said to be used up

    def offers(self, wanted: Target) -> bool:
        if (wanted.upstream and wanted.upstream != self.upstream) or self.upstream in wanted.but_not:
            return False
        return self.models is None or wanted.model in self.models

    def own_name(self, model: str) -> str:
        return model if self.models is None else self.models.get(model, model)


def _no_budget(request: ChatRequest, model: str) -> float:
    return 0.0


class _Option(NamedTuple):
    """A model at a lane. shut: seconds for which a call is better not sent there, infinite = until its key is changed.
    lacks: seconds until its key's budget may have room. wait: seconds until it takes the call, those included that the
    call would wait there for. A full lane has none: calls queue there.
    """

    lane: Lane
    wanted: Target
    tried: Tried | None
    shut: float
    lacks: float
    wait: float


class Routed:
    """The wrapper that chooses. `lanes`: in the order of the settings. `rules`: the first that fits a call counts.
    `split`: how canaries divide calls. All of them may be replaced.
    """

    def __init__(self, lanes: Sequence[Lane], rules: Sequence[Rule], *, clock: Clock, observer: Observer) -> None:
        self.lanes = lanes
        self.rules = rules
        self.split: Split | None = None
        self._clock = clock
        self._observer = observer

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        """Send `request` on one lane.

        Raises: ModelError, with `tried` and `elsewhere`; RequestRefused when no upstream offers the model;
        BudgetReached.
        """
        targets = chain(self.rules, request, context)
        if self.split is not None:
            targets = self.split.targets(targets, request, context, self._offered)
        lane, wanted = self._choose(targets, request, context)
        if wanted != targets[0] or context.tried:
            self._observer(
                Rerouted(run=context.run, task=context.task, wanted=targets[0].model, model=wanted.model, lane=lane.id)
            )
        if context.heat is not None:
            context.heat.tried = Tried(lane.id, wanted.model, final=False)
        asked, name = request, lane.own_name(wanted.model)
        if name != request.model:
            request = msgspec.structs.replace(request, model=name)
        if wanted.bucket != context.bucket:
            context = msgspec.structs.replace(context, bucket=wanted.bucket)
        try:
            return await lane.endpoint.open(request, context)
        except BudgetReached as error:
            tried = (*context.tried, Tried(lane.id, wanted.model, final=True))
            left = [each for each in self._options(targets, asked, tried) if not each.tried and each.lacks <= PATIENCE]
            if error.budget != "key" or all(math.isinf(each.shut) for each in left):
                raise
            raise _elsewhere(error, tried[-1]) from error
        except ModelError as error:
            if isinstance(error, AccessRefused) and error.status == 401 and not error.held:
                self._shut(lane, error, context)
            fault, widely = kind_of(error) == "fault", isinstance(error, RequestRefused)
            final = not fault and not isinstance(error, QuotaExhausted)
            error.tried = Tried(lane.upstream if fault or widely else lane.id, wanted.model, final=final)
            tried = (*context.tried, error.tried)
            error.elsewhere = _movable(error) and any(
                not option.tried and option.wait <= 0.0 for option in self._options(targets, asked, tried)
            )
            raise

    def _choose(self, targets: Sequence[Target], request: ChatRequest, context: CallContext) -> tuple[Lane, Target]:
        """Where a call goes: to the first model that has not failed it and that somebody takes now; with no such, to
        the one that takes it soonest. For a short wait that an upstream asked for, no other model stands in; after a
        fault one is rather asked of another upstream.
        """
        tried = context.tried
        options = self._options(targets, request, tried)
        for lane in {option.lane for option in options if option.lacks > PATIENCE}:
            self._note_spent(lane, context)
        if not self.lanes:
            raise AccessRefused("no key is left: siafu upstream-keys enable one, or add one", attempts=0)
        if not options:
            raise RequestRefused(
                f"no upstream offers the model {targets[0].model!r}; see [upstreams] in siafu.toml", attempts=0
            )
        faulty = {each.place for each in tried if not each.final}
        for wanted in targets:
            fresh = [option for option in options if option.wanted is wanted and not option.tried]
            if ready := [option.lane for option in fresh if option.wait <= 0.0]:
                well = [lane for lane in ready if lane.upstream not in faulty]
                return pick(well or ready), wanted
            if soon := [option for option in fresh if option.shut <= 0.0 and option.wait <= PATIENCE]:
                options = soon
                break
        best = min(options, key=lambda option: (option.tried is not None and option.tried.final, option.wait))
        if math.isinf(best.shut):
            raise AccessRefused(
                f"every key for {best.wanted.model!r} was refused by its upstream: add one with siafu upstream-keys",
                attempts=0,
            )
        return best.lane, best.wanted

    def _offered(self, wanted: Target) -> bool:
        return any(lane.offers(wanted) for lane in self.lanes)

    def _options(self, targets: Sequence[Target], request: ChatRequest, tried: Sequence[Tried]) -> list[_Option]:
        """Everything that could answer, the best first."""
        now, found = self._clock.now(), []
        for wanted in targets:
            failed = {each.place: each for each in tried if each.model == wanted.model}
            for lane in self.lanes:
                if lane.offers(wanted):
                    own = lane.own_name(wanted.model)
                    shut = math.inf if lane.shut else lane.endpoint.rests(own, now)
                    lacks = lane.lacks(request, own)
                    wait = max(shut, lane.endpoint.pause(now), lacks)
                    before = failed.get(lane.id) or failed.get(lane.upstream)
                    found.append(_Option(lane, wanted, before, shut, lacks, wait))
        return found

    def _shut(self, lane: Lane, error: AccessRefused, context: CallContext) -> None:
        """Take out a key that is refused, until it is changed. Who waits there chooses again."""
        lane.shut = True
        lane.endpoint.turn_away(lambda: again(f"{lane.id} takes no calls for now: {error.message}"))
        self._observer(LaneClosed(run=context.run, lane=lane.id, reason=error.code))

    def _note_spent(self, lane: Lane, context: CallContext) -> None:
        """Say once a day that the budget of a key is used up, or too little for some calls."""
        today = self._clock.wall() // DAY
        if lane.spent_on != today:
            lane.spent_on = today
            self._observer(LaneClosed(run=context.run, lane=lane.id, reason=BudgetReached.code))


def _elsewhere(reached: BudgetReached, tried: Tried) -> ModelError:
    """For a call that its key's budget does not allow and another lane may take."""
    error = QuotaExhausted(reached.message, attempts=0)
    error.tried, error.elsewhere = tried, True
    return error


def _movable(error: ModelError) -> bool:
    """Whether another upstream, key or model may answer what failed so."""
    if isinstance(error, RequestRefused):
        return error.status == 404 or error.provider_code in _OTHERWISE
    return kind_of(error) != "final" or isinstance(error, AccessRefused | QuotaExhausted | UnpricedModel)
