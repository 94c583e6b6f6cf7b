"""Leaving alone what fails: a breaker for each model of each upstream, and one for the credit of each key.

While one is open, calls wait in front of it, out of every limit, and now and then one of them leaves as a probe. They
wait no longer than `Patience` says, and not at all when it could not help: for an upstream when none has ever answered,
or when their own deadline comes before the next probe. Then they fail as `Gate.enter` says.

What counts: 5xx, timeouts, broken answers and lost connections; overload, when nothing else is under way there (else it
is full, which is the limiter's matter). What does not: errors of the client (4xx), rate limits, our own refusals,
cancellations and deadlines. Used-up credit opens its key's breaker at once; wording that may mean a limit of this
minute as well does when it comes three times in a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from weakref import WeakSet

import msgspec

from siafu.errors import AccessRefused, ModelError, Overloaded, QuotaExhausted
from siafu.gateway.chat import ChatRequest
from siafu.gateway.classify import ambiguous_quota
from siafu.gateway.endpoint import Reply
from siafu.gateway.gate import Gate, Sign
from siafu.gateway.limits import Limited, Limits
from siafu.gateway.retry import again, kind_of, used_up
from siafu.gateway.warmed import Warmed
from siafu.observe.calls import CallContext
from siafu.observe.events import LaneClosed, LaneOpened, Observer
from siafu.pace.breaker import Pattern
from siafu.pace.clock import Clock

MOST_MODELS = 1000  # that an upstream is remembered for
FAULTS = Pattern()


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long calls wait, in seconds since it began; 0 = not at all. outage: for an upstream that fails, once any has
    answered. ends_run: what fails there, or is not sent, when others fail too is an Outage, which leaves it to a later
    run. quota: for credit. probe: until a key without credit is asked again; where calls wait for it doubled each
    time, up to ten times as long.
    """

    outage: float = 0.0
    ends_run: bool = False
    quota: float = 0.0
    probe: float = 30.0


class Known:
    """What the keys of one upstream know together. gates: by model, of those that have failed since their last answer.
    heard: by model, when the last call left that was answered.
    """

    __slots__ = ("gates", "heard", "lanes")

    def __init__(self) -> None:
        self.gates: dict[str, Gate] = {}
        self.heard: dict[str, float] = {}
        self.lanes: WeakSet[Guarded] = WeakSet()


class Guard:
    """What all lanes of a gateway have in common."""

    def __init__(self, patience: Patience, *, clock: Clock, observer: Observer) -> None:
        self.patience = patience
        self.clock = clock
        self.observer = observer
        growth = 10.0 if patience.quota else 1.0
        self.credit = Pattern(first=patience.probe, longest=growth * patience.probe, hurried=False)
        self._upstreams: list[tuple[object, Known]] = []

    def known(self, place: object) -> Known:
        """What is known of a place; equal ones are one."""
        for each, known in self._upstreams:
            if each == place:
                return known
        self._upstreams.append((place, Known()))
        return self._upstreams[-1][1]

    @property
    def lanes(self) -> list[Guarded]:
        return [lane for _, known in self._upstreams for lane in known.lanes]

    @property
    def answered(self) -> bool:
        """Whether anybody has ever answered."""
        return any(known.heard for _, known in self._upstreams)

    def gate(self, pattern: Pattern, sent_at: float, patience: float, sign: Sign) -> Gate:
        return Gate(pattern, sent_at, patience, sign, clock=self.clock, observer=self.observer)

    def opened(self, gate: Gate, run: str) -> None:
        """Calls pass `gate` again: those that wait elsewhere may come here."""
        self.observer(LaneOpened(run=run, lane=gate.sign.lane, model=gate.sign.model))
        if len(self.lanes) > 1:
            for lane in self.lanes:
                lane.leave_gates(lambda: again(f"{gate.sign.lane} answers again"))


class Guarded:
    """The wrapper that leaves alone. One for each lane, a key (`lane`) at an upstream. place: what lanes have in common
    that fail together; None = the upstream's name.
    """

    def __init__(
        self, inner: Limited | Warmed, guard: Guard, *, upstream: str, lane: str, place: object = None
    ) -> None:
        self._inner = inner
        self._guard = guard
        self._clock = guard.clock
        self.lane = lane
        self._upstream = upstream
        self._known = guard.known(upstream if place is None else place)
        self._credit: Gate | None = None
        self._renewed = -math.inf  # when its key became another one
        self._known.lanes.add(self)

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        known, model = self._known, request.model
        entered = () if not known.gates and self._credit is None else await self._enter(model, context)
        began = self._clock.now()
        try:
            reply = await self._inner.open(request, context)
        except ModelError as error:
            found = error if error.sent_at is None else self._failed(model, error, error.sent_at, context)
            if found is error:
                raise
            raise found from error
        finally:
            for gate, taken in entered:
                gate.breaker.ended(taken)
                gate.look()
        sent_at, before = max(began, reply.head.began), known.heard.get(model)
        if before is None and len(known.heard) >= MOST_MODELS:
            known.heard.clear()
        if before is None or sent_at > before:
            known.heard[model] = sent_at
        if known.gates or self._credit is not None:
            self._answered(model, sent_at, context.run)
        return reply

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

    @property
    def gates(self) -> list[Gate]:
        """Those that stand before it now; lanes that fail together have them in common."""
        return [gate for gate in (*self._known.gates.values(), self._credit) if gate is not None]

    def rests(self, model: str, now: float) -> float:
        """Seconds for which it is left alone."""
        return max((gate.breaker.ready(now) for gate in self._gates(model)), default=0.0)

    def pause(self, now: float) -> float:
        """Seconds until the wait that the upstream asked for is over."""
        return self._inner.pause(now)

    def renew(self) -> None:
        """Its key is another one, of whose credit nothing is known."""
        self._renewed = self._clock.now()
        credit, self._credit = self._credit, None
        if credit is not None:
            credit.release(lambda: again("the key was changed"))

    def change(self, limits: Limits) -> None:
        """As `Limited.change`."""
        self._inner.change(limits)

    def when_idle(self, told: Callable[[], None]) -> None:
        """As `Limited.when_idle`."""
        self._inner.when_idle(told)

    def enter_by(self, inner: Limited | Warmed) -> None:
        """From now on calls go on to `inner`, which leads to the same limits as the one before."""
        before, self._inner = self._inner, inner
        if isinstance(before, Warmed):
            before.let_go()

    def turn_away(self, error: Callable[[], ModelError]) -> None:
        """Let all who wait here fail with an error of their own each; what is under way goes on."""
        self._inner.turn_away(error)
        self.leave_gates(error)

    def leave_gates(self, error: Callable[[], ModelError]) -> None:
        """The same for those who wait until it is worth a call."""
        for gate in self.gates:
            gate.release(error)

    def _gates(self, model: str) -> list[Gate]:
        """What calls for `model` have to pass."""
        return [gate for gate in (self._known.gates.get(model), self._credit) if gate is not None]

    async def _enter(self, model: str, context: CallContext) -> Sequence[tuple[Gate, float]]:
        entered: list[tuple[Gate, float]] = []
        if context.heat is not None and context.heat.spare:
            raise Overloaded(f"{self.lane} fails now: no second request", attempts=0)
        try:
            for gate in self._gates(model):
                taken = await gate.enter(context)
                entered.append((gate, taken))
        except BaseException:
            for gate, taken in entered:
                gate.breaker.ended(taken)
            raise
        return entered

    def _answered(self, model: str, sent_at: float, run: str) -> None:
        for gate in self._gates(model):
            closed = gate.breaker.answered(sent_at, self._clock.now())
            if closed and gate is self._credit:
                self._credit = None
            elif closed:
                del self._known.gates[model]
            gate.look()
            if closed and gate.breaker.opened:
                self._guard.opened(gate, run)

    def _failed(self, model: str, error: ModelError, sent_at: float, context: CallContext) -> ModelError:
        """Count a failure. Returns what the call fails with."""
        if sent_at < self._renewed and isinstance(error, AccessRefused | QuotaExhausted):  # the former key was meant
            error.held = True
            return error
        certain = isinstance(error, QuotaExhausted)
        unsure = self._guard.patience.quota > 0 and not certain and ambiguous_quota(error.provider_code)
        if certain or unsure:
            gate, lanes = self._credit_gate(sent_at), [self]
            if unsure and sent_at < gate.failed_at:  # refused together with one that has been counted
                return error
        elif kind_of(error) == "fault" or (isinstance(error, Overloaded) and not self._inner.in_flight):
            if sent_at < self._known.heard.get(model, -math.inf):  # a call that left later was answered
                return error
            gate, lanes = self._model_gate(model, sent_at), list(self._known.lanes)
        else:
            return error
        was, now = gate.breaker.state, self._clock.now()
        least, under_way = error.wait or 0.0, self._inner.in_flight
        left_alone = gate.breaker.failed(sent_at, now, under_way=under_way, certain=certain, least=least)
        if unsure and left_alone:
            error = used_up(error, f"{gate.breaker.failures} times in a row")
        gate.failed(error, now, context)
        if left_alone and was != "open":
            for lane in lanes:
                lane._inner.turn_away(lambda: again(f"{gate.sign.lane} is left alone for now: {error.message}"))
            self._guard.observer(
                LaneClosed(run=context.run, lane=gate.sign.lane, model=gate.sign.model, reason=error.code)
            )
        if left_alone:
            gate.review(context.run)
            if len(self._guard.lanes) > 1:  # another may be tried sooner
                gate.release(lambda: again(f"{gate.sign.lane} is left alone for now: {error.message}"))
        error.held = gate.holds(now, math.inf if context.deadline is None else context.deadline)
        error.late = gate.holds(now) and not error.held
        error.common = gate.ends_run and gate.common and gate.breaker.state == "open"
        return error

    def _credit_gate(self, sent_at: float) -> Gate:
        if self._credit is None:
            guard = self._guard
            self._credit = guard.gate(guard.credit, sent_at, guard.patience.quota, Sign(self.lane, "", "quota"))
        return self._credit

    def _model_gate(self, model: str, sent_at: float) -> Gate:
        gates = self._known.gates
        patience = self._guard.patience.outage if self._guard.answered else 0.0
        if model not in gates:
            if len(gates) >= MOST_MODELS:
                gates.pop(next(iter(gates))).release(lambda: again("too many models fail at once"))  # the oldest
            gates[model] = self._guard.gate(FAULTS, sent_at, patience, Sign(self._upstream, model, "outage"))
        gates[model].patience, gates[model].ends_run = patience, self._guard.patience.ends_run
        return gates[model]
