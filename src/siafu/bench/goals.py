"""What a bench is to show, and whether it did. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """what: in words, with its unit. Either `most` or `least` is set: the value may not be above or below it."""

    what: str
    value: float
    most: float | None = None
    least: float | None = None

    @property
    def met(self) -> bool:
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)

    def told(self) -> dict[str, object]:
        """For machines."""
        return {**msgspec.structs.asdict(self), "value": round(self.value, 4), "met": self.met}


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A report with goals. `machine`: what its figures were taken on."""

    rows: list[dict[str, Any]]
    goals: list[Goal]
    machine: dict[str, Any]


def lines(goals: Sequence[Goal]) -> list[str]:
    """For people: one line each."""
    found = []
    for goal in goals:
        bound = f"at most {goal.most:,g}" if goal.most is not None else f"at least {goal.least:,g}"
        found.append(f"{'met' if goal.met else 'MISSED'}: {goal.what}: {goal.value:,.4g} ({bound})")
    return found
