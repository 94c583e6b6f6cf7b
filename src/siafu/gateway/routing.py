"""Which model, and which of several upstreams, may answer a call. Pure: `routed.py` acts on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, TypeVar

import msgspec

from siafu.errors import ConfigError
from siafu.gateway.chat import ChatRequest
from siafu.gateway.wire import encode
from siafu.observe.calls import CallContext

BYTES_A_TOKEN = 4  # of a request's JSON; for rules by length only, never for limits or money


class Target(msgspec.Struct, frozen=True):
    """A model, at one upstream or (`upstream` empty) at any that offers it, `but_not` at some. Written `model` or
    `model@upstream`. bucket: the side of a canary that calls are on which go there.
    """

    model: str
    upstream: str = ""
    but_not: tuple[str, ...] = ()
    bucket: str = ""


def target(text: str) -> Target:
    """The Target that `text` names. The last `@` counts, as models may have one in their name.

    Raises: ConfigError.
    """
    model, at, upstream = text.rpartition("@")
    if not at:
        model, upstream = text, ""
    if not model.strip() or (at and not upstream.strip()):
        raise ConfigError(f"{text[:80]!r} names no model; write MODEL or MODEL@UPSTREAM")
    return Target(model.strip(), upstream.strip())


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of one kind go to `use`: the first is wanted, the others stand in for it, in order.

    A condition that is None fits every call. min_tokens, max_tokens: estimated tokens of input, both included.
    """

    use: tuple[Target, ...]
    models: frozenset[str] | None = None
    roles: frozenset[str] | None = None
    categories: frozenset[str] | None = None
    tenants: frozenset[str] | None = None
    priorities: frozenset[int] | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not self.use:
            raise ConfigError("a route names at least one model in `use`")

    @property
    def by_length(self) -> bool:
        return self.min_tokens is not None or self.max_tokens is not None

    def fits(self, model: str, context: CallContext, tokens: int) -> bool:
        asked = (
            (self.models, model),
            (self.roles, context.role),
            (self.categories, context.category),
            (self.tenants, context.tenant),
            (self.priorities, context.priority),
        )
        if any(wanted is not None and value not in wanted for wanted, value in asked):
            return False
        return (self.min_tokens or 0) <= tokens <= (math.inf if self.max_tokens is None else self.max_tokens)


def chain(rules: Sequence[Rule], request: ChatRequest, context: CallContext) -> tuple[Target, ...]:
    """Where `request` may go, the best first: by the first rule that fits, else the model it names, anywhere."""
    tokens = len(encode(request)) // BYTES_A_TOKEN if any(rule.by_length for rule in rules) else 0
    for rule in rules:
        if rule.fits(request.model, context, tokens):
            return rule.use
    return (Target(request.model),)


class Choosable(Protocol):
    """What choosing needs to know of a lane. tier: 1 is asked first. weight: its share within the tier.
    credit: what it is owed by the others; only `pick` changes it.
    """

    tier: int
    weight: float
    credit: float


L = TypeVar("L", bound=Choosable)


def pick(lanes: Sequence[L]) -> L:
    """One of the lanes of the lowest tier, each as often as its weight says, evenly spread (smooth weighted round
    robin, as in nginx 1.3.1).
    """
    tier = min(lane.tier for lane in lanes)
    among = [lane for lane in lanes if lane.tier == tier]
    for lane in among:
        lane.credit += lane.weight
    best = max(among, key=lambda lane: lane.credit)
    best.credit -= sum(lane.weight for lane in among)
    return best
