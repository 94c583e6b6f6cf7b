"""What a canary is, how it moves, and what its sides did, as frozen records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

import msgspec

State = Literal["running", "promoted", "rolled_back", "retired"]
Side = Literal["old", "new"]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a new side may be. worse: its share of failed calls above the old side's. slower, dearer: its p95 and its
    cost a task, as a factor of the old side's. These are tested at the end of a window. The others roll back at any
    time: stop_failed, the share of failed calls; stop_slower, stop_dearer, factors.
    """

    worse: float = 0.02
    slower: float = 1.25
    dearer: float = 1.25
    stop_failed: float = 0.25
    stop_slower: float = 2.0
    stop_dearer: float = 2.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a canary is started with. old, new: `MODEL`, `MODEL@UPSTREAM` or `@UPSTREAM`. salt: divides its users.
    stages: percent of users, rising to 100. window_seconds: after which a stage is tested. min_samples: calls of each
    side that a test needs.
    """

    old: str
    new: str
    salt: str
    stages: tuple[int, ...]
    window_seconds: float
    min_samples: int
    bounds: Bounds = Bounds()


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """A canary as it stands. stage: its place in the plan's stages. number: of its window, from 1; every move counts it
    up. tries: windows of this stage that were tested and showed nothing. reference: the window whose old side is
    compared with, 0 = the present one. began_at: the window's begin, seconds since 1970. reason: of the last move.
    """

    id: int
    plan: Plan
    state: State = "running"
    stage: int = 0
    number: int = 1
    tries: int = 0
    reference: int = 0
    began_at: float = 0.0
    reason: str = ""

    @property
    def percent(self) -> int:
        """Of the users, who get the new side first."""
        if self.state == "running":
            return self.plan.stages[self.stage]
        return 0 if self.state == "rolled_back" else 100


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """Where a canary goes next. The fields are those of `Canary`; only a running one has a stage, tries, reference."""

    state: State
    stage: int = 0
    tries: int = 0
    reference: int = 0
    reason: str


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """A move that was made. number: the window that began with it. percent: of the users, from then on."""

    number: int
    at: float
    state: State
    percent: int
    reason: str


class Numbers(msgspec.Struct, frozen=True, kw_only=True):
    """What one side did. calls: attempts that tell something about it, `ok` of them answered. limited: refused for now
    (429, overloaded), which is no failure. tasks: for which some attempt was made, one that fell back from the new
    side too; usd_pico, usd_square: what they cost, and the sum of the squares in USD. unpriced: attempts without a
    price. slots: how long the answers took, see `gateway.verdict`.
    """

    calls: int = 0
    ok: int = 0
    limited: int = 0
    tasks: int = 0
    unpriced: int = 0
    usd_pico: int = 0
    usd_square: float = 0.0
    slots: Mapping[int, int] = {}

    def __add__(self, other: Numbers) -> Numbers:
        sums = {name: getattr(self, name) + getattr(other, name) for name in SUMS}
        return Numbers(**sums, slots=Counter(self.slots) + Counter(other.slots))


SUMS = tuple(name for name in Numbers.__struct_fields__ if name != "slots")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """The state as of `now` (the database's clock). canaries: all that there ever were, oldest first. old, new: the
    numbers of the last one, in its window; at its end, in the last one that had any.
    """

    now: float
    canaries: tuple[Canary, ...] = ()
    old: Numbers = Numbers()
    new: Numbers = Numbers()

    @property
    def last(self) -> Canary | None:
        return self.canaries[-1] if self.canaries else None
