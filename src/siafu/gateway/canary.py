"""Which calls a canary sends to its new side. Pure: `routed.py` acts on it.

A side is an upstream, or a model at one upstream or at any. Between upstreams a canary is about the models that both
offer. A user is on the same side for as long as the canary lasts, and the users of a stage stay on the new side in
all later ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from siafu.gateway.chat import ChatRequest
from siafu.gateway.routing import Target
from siafu.observe.calls import CallContext
from siafu.store.canary_records import Canary

Offered = Callable[[Target], bool]


def side(text: str) -> Target:
    """The side that `text` names: `MODEL`, `MODEL@UPSTREAM` or `@UPSTREAM`. `model` empty = any."""
    model, at, upstream = text.rpartition("@")
    return Target(model, upstream) if at else Target(text)


def place_of(salt: str, user: str) -> int:
    """From 0 to 99, the same for ever, and evenly spread over users."""
    return int.from_bytes(hashlib.sha256(f"{salt}{user}".encode("utf-8", "replace")).digest()) % 100


def user_of(request: ChatRequest, context: CallContext) -> str:
    """For whom a call is, as far as it says: the user, the one that a request names by itself, else the task."""
    if context.user:
        return context.user
    named = request.extra.get("user")
    if isinstance(named, msgspec.Raw):  # as a client of `siafu serve` wrote it
        named = msgspec.json.decode(named)
    return named if isinstance(named, str) and named else context.task


class Ended(msgspec.Struct, frozen=True):
    """What the end of a canary left: `lost` gets no calls any more that `won` takes."""

    lost: Target
    won: Target
    how: Literal["rolled_back", "retired"]


class Split:
    """How canaries divide calls. canaries: all that there ever were, oldest first."""

    def __init__(self, canaries: Sequence[Canary]) -> None:
        last = canaries[-1] if canaries else None
        self.current = last if last is not None and last.state in ("running", "promoted") else None
        self.ended = _ended(canaries)

    def targets(
        self, targets: Sequence[Target], request: ChatRequest, context: CallContext, offered: Offered
    ) -> tuple[Target, ...]:
        """Where a call may go that could have gone to `targets`, the best first. offered: whether some lane has it."""
        for each in self.ended:
            targets = [_after(each, target, offered) for target in targets]
        if self.current is None:
            return tuple(targets)
        plan, id = self.current.plan, self.current.id
        old, new = side(plan.old), side(plan.new)
        chosen = place_of(plan.salt, user_of(request, context)) < self.current.percent
        found: list[Target] = []
        for target in targets:
            instead = _instead(old, new, target, offered)
            if instead is None:
                found.append(target)
                continue
            if chosen:
                found.append(msgspec.structs.replace(instead, bucket=f"{id}/new"))
            bucket = f"{id}/fallback" if chosen else f"{id}/old"
            found.append(msgspec.structs.replace(_without(new, target), bucket=bucket))
        return tuple(found)


def _instead(old: Target, new: Target, target: Target, offered: Offered) -> Target | None:
    """The new side's target for one that belongs to the old side; None when it does not, or one side is not there."""
    if old.model:
        if target.model != old.model or (old.upstream and target.upstream != old.upstream):
            return None
        found = Target(new.model, new.upstream or ("" if old.upstream else target.upstream))
    else:
        if target.upstream not in ("", old.upstream):
            return None
        found = Target(target.model, new.upstream)
    there = offered(found) and offered(Target(target.model, old.upstream or target.upstream))
    return found if there else None


def _without(lost: Target, target: Target) -> Target:
    """`target`, but not at an upstream that has lost. Of models, the name says it already."""
    if lost.model or target.upstream:
        return target
    return msgspec.structs.replace(target, but_not=(*target.but_not, lost.upstream))


def _after(end: Ended, target: Target, offered: Offered) -> Target:
    """Where calls go after the end of a canary. A route that names the upstream that was rolled back is left alone."""
    if end.how == "rolled_back":
        instead = _instead(end.won, end.lost, target, offered)
        return target if instead is None or target.upstream else _without(end.lost, target)
    instead = _instead(end.lost, end.won, target, offered)
    if instead is None:
        return target
    return instead if end.lost.model or target.upstream else _without(end.lost, target)


def _ended(canaries: Sequence[Canary]) -> tuple[Ended, ...]:
    """What the ends of canaries left; what takes part in a later one is free of what came before."""
    found: list[Ended] = []
    for canary in canaries:
        old, new = side(canary.plan.old), side(canary.plan.new)
        found = [end for end in found if end.lost not in (old, new)]
        if canary.state == "rolled_back":
            found.append(Ended(lost=new, won=old, how="rolled_back"))
        elif canary.state == "retired":
            found.append(Ended(lost=old, won=new, how="retired"))
    return tuple(found)
