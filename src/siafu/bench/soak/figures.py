"""Whether something stays as it is: the rule, and what it is applied to. Pure.

The first third of the time is left out, as caches fill and pools grow then. Something is flat when the median of the
last third is not above the median of the middle one by more than 2 % and a fixed slack, by which chance moves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from siafu.bench.goals import Goal
from siafu.errors import MeasurementInvalid

SHARE = 0.02
LEAST_SAMPLES = 9
SLACK: dict[str, float] = {"memory_mb": 4.0, "descriptors": 4.0, "rows": 200.0, "file_mb": 1.0}


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """at: seconds after the beginning. values: by what they are of, such as `worker memory_mb`."""

    at: float
    values: dict[str, float]


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """submitted: tasks that were accepted. succeeded, other: how they left the worker. open: not ended at the end."""

    submitted: int
    succeeded: int
    other: int
    open: int


def check(totals: Totals) -> None:
    """Raises: MeasurementInvalid when more has ended than was submitted, or nothing."""
    ended = totals.succeeded + totals.other
    if not totals.submitted or ended > totals.submitted:
        raise MeasurementInvalid(f"{totals.submitted} tasks were submitted, and {ended} have ended")


def thirds(samples: Sequence[Sample], name: str) -> tuple[float, float] | None:
    """The medians of the middle and of the last third; None when too few samples have it."""
    found = [(sample.at, sample.values[name]) for sample in samples if name in sample.values]
    if len(found) < LEAST_SAMPLES:
        return None
    whole = found[-1][0]
    middle = [value for at, value in found if whole / 3 <= at < whole * 2 / 3]
    last = [value for at, value in found if at >= whole * 2 / 3]
    return (median(middle), median(last)) if middle and last else None


def rows(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """A row for each thing that was looked at: how it began, both medians, its most, and how it grew an hour from the
    one third to the other.
    """
    table = []
    hours = samples[-1].at / 3 / 3600 if samples else 0.0
    for name in dict.fromkeys(name for sample in samples for name in sample.values):
        values = [sample.values[name] for sample in samples if name in sample.values]
        found = thirds(samples, name)
        table.append(
            {
                "what": name,
                "first": round(values[0], 2),
                "middle": None if found is None else round(found[0], 2),
                "last": None if found is None else round(found[1], 2),
                "most": round(max(values), 2),
                "an_hour": None if found is None or not hours else round((found[1] - found[0]) / hours, 2),
                "flat": None if found is None or _slack(name) is None else _goal(name, found).met,
            }
        )
    return table


def goals(samples: Sequence[Sample], totals: Totals) -> list[Goal]:
    """Flat is what has a slack; a ledger keeps what it is told, so it grows with the calls."""
    found = [
        Goal(what="tasks that ended otherwise than well", value=float(totals.other), most=0.0),
        Goal(what="tasks accepted and not ended", value=float(totals.open), most=0.0),
    ]
    for name in dict.fromkeys(name for sample in samples for name in sample.values):
        medians = thirds(samples, name)
        if medians is not None and _slack(name) is not None:
            found.append(_goal(name, medians))
    return found


def _slack(name: str) -> float | None:
    return SLACK.get(name.rpartition(" ")[2])


def _goal(name: str, medians: tuple[float, float]) -> Goal:
    middle, last = medians
    most = round(middle * (1 + SHARE) + (_slack(name) or 0.0), 2)
    return Goal(what=f"{name} in the last third ({middle:,.5g} in the middle one)", value=last, most=most)
