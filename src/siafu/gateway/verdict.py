"""Whether the new side of a canary is good enough, by its numbers. Pure; the sums behind it are small on purpose.

At the end of a window there is one test, of three parts that must all hold (so that each may have the whole error
probability: an intersection-union test, Berger 1982). A part shows that the new side is not worse than the old one by
more than a bound, or that it is, or neither.

- Failures: Newcombe's interval for the difference of two proportions (Statistics in Medicine 17, 1998, method 10). It
  holds near 0 too, where calls live.
- Latency: the share of the new side's answers that took longer than the bound times the old side's p95, against the
  5 % that it is when both are at the bound: Mathisen's two-sample test (Annals of Mathematical Statistics 14, 1943) at
  the 95th percentile instead of the median.
- Cost: the means a task, by their standard errors.

A stage has at most TRIES windows, of fresh numbers each, and they share its error probability ALPHA.

Rails roll back at any time, so they must bear being looked at all the time. For shares this is a likelihood ratio
against all larger shares, mixed evenly: while the share is in fact no larger than allowed, it ever reaches 1,000 with
a probability of at most 1 in 1,000 (Ville's inequality; Robbins 1970). For cost it is a distance of four standard
errors. That calls fail one by one, and not all at once in an outage, is assumed by all of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Literal

import msgspec

from siafu.store.canary_records import Bounds, Canary, Move, Numbers, Seen

ALPHA, TRIES = 0.05, 3
Z = NormalDist().inv_cdf(1 - ALPHA / TRIES)
TAIL = 0.05  # of the answers take longer than p95
RAIL_ODDS = 1_000.0
RAIL_ERRORS = 4.0
LEAST_BAD = 5  # failed or slow calls before a rail holds
LEAST_TASKS = 50  # of each side, before the rails of latency and cost do
TIMES_OLD = 2.0  # what the new side may fail more often than the old one
FREE_FAILURES = 0.02  # ... or this, if that is more
PICO = 10**12

# Seconds are kept in slots, each 2 % wider than the one before: a quantile is off by 1 % at most, and slots of several
# processes add up (Masson, Rim, Lee: DDSketch, VLDB 2019).
_WIDTH = math.log(1.02)
_SHORTEST = 0.001

State = Literal["good", "bad", "open", "none"]


def slot_of(seconds: float) -> int:
    return math.ceil(math.log(max(seconds, _SHORTEST)) / _WIDTH)


def seconds_of(slot: int) -> float:
    """The middle of a slot."""
    return 2 * math.exp(slot * _WIDTH) / (1 + math.exp(_WIDTH))


def quantile(slots: Mapping[int, int], share: float) -> float | None:
    """In seconds, by nearest rank; None without an answer."""
    slot = _quantile(slots, share)
    return None if slot is None else seconds_of(slot)


def _quantile(slots: Mapping[int, int], share: float) -> int | None:
    left = math.ceil(share * sum(slots.values()))
    for slot in sorted(slots):
        left -= slots[slot]
        if left <= 0:
            return slot
    return None


def _slower(new: Numbers, old: Numbers, factor: float) -> int | None:
    """The new side's answers that took longer than `factor` times the old side's p95; None when it has none."""
    p95 = _quantile(old.slots, 1 - TAIL)
    if p95 is None:
        return None
    longest = p95 + math.log(factor) / _WIDTH
    return sum(calls for slot, calls in new.slots.items() if slot > longest)


def wilson(bad: int, calls: int, z: float) -> tuple[float, float]:
    """The score interval of a share; all of 0 to 1 without calls."""
    if not calls:
        return 0.0, 1.0
    share, more = bad / calls, z * z / calls
    middle = (share + more / 2) / (1 + more)
    half = math.sqrt(more * share * (1 - share) + more * more / 4) / (1 + more)
    return max(0.0, middle - half), min(1.0, middle + half)


def enough(bounds: Bounds) -> int:
    """Calls of each side below which no test can succeed, though none fails and none is slow."""
    failures = Z * Z * (1 / bounds.worse - 1)
    tail = 2 * (1 - TAIL) / TAIL * Z * Z
    return math.ceil(max(failures, tail))


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a test. none: it cannot be compared, and does not count. told: for people."""

    what: str
    state: State
    told: str


def findings(old: Numbers, new: Numbers, bounds: Bounds) -> list[Finding]:
    """The three parts of the test."""
    return [_failures(old, new, bounds.worse), _latency(old, new, bounds.slower), _cost(old, new, bounds.dearer)]


def _failures(old: Numbers, new: Numbers, worse: float) -> Finding:
    if not (old.calls and new.calls):
        return Finding(what="failures", state="open", told="no calls to compare")
    was, is_ = _failed(old) / old.calls, _failed(new) / new.calls
    old_low, old_high = wilson(_failed(old), old.calls, Z)
    new_low, new_high = wilson(_failed(new), new.calls, Z)
    low = is_ - was - math.hypot(is_ - new_low, old_high - was)
    high = is_ - was + math.hypot(new_high - is_, was - old_low)
    told = (
        f"{100 * is_:.2f} % failed, {100 * was:.2f} % of the old side; {100 * low:+.2f} to {100 * high:+.2f} points, "
        f"allowed {100 * worse:+g}"
    )
    return Finding(what="failures", state="good" if high <= worse else "bad" if low > worse else "open", told=told)


def _latency(old: Numbers, new: Numbers, slower: float) -> Finding:
    above = _slower(new, old, slower)
    if above is None or not new.ok:
        return Finding(what="latency", state="open", told="no answers to compare")
    share, error = above / new.ok, math.sqrt(TAIL * (1 - TAIL) * (1 / new.ok + 1 / old.ok))
    told = f"{100 * share:.2f} % took longer than {slower:g} x the old side's p95, less than 5 % is allowed"
    return Finding(what="latency", state=_state((TAIL - share) / error), told=told)


def _cost(old: Numbers, new: Numbers, dearer: float) -> Finding:
    if old.unpriced or new.unpriced:
        return Finding(what="cost", state="none", told="not compared: calls without a price")
    distance = _distance(old, new, dearer)
    if distance is None:
        return Finding(what="cost", state="open", told="no tasks to compare")
    told = f"{_usd(new):.6f} USD a task, {_usd(old):.6f} of the old side, allowed {dearer:g} x"
    return Finding(what="cost", state=_state(distance), told=told)


def _state(distance: float) -> State:
    return "good" if distance >= Z else "bad" if distance <= -Z else "open"


def _failed(numbers: Numbers) -> int:
    return numbers.calls - numbers.ok


def _usd(numbers: Numbers) -> float:
    """The mean of a task, for statistics."""
    return numbers.usd_pico / PICO / numbers.tasks


def _distance(old: Numbers, new: Numbers, factor: float) -> float | None:
    """By how many standard errors the new side's cost a task is below `factor` times the old side's; None = unknown."""
    if old.tasks < 2 or new.tasks < 2:
        return None
    below = factor * _usd(old) - _usd(new)
    error = math.sqrt(factor**2 * _variance(old) / old.tasks + _variance(new) / new.tasks)
    if error <= 1e-9 * max(_usd(old), _usd(new)):  # all cost the same
        return math.copysign(math.inf, below + 1e-12)
    return below / error


def _variance(numbers: Numbers) -> float:
    return max(0.0, numbers.usd_square / numbers.tasks - _usd(numbers) ** 2)


def odds(bad: int, calls: int, allowed: float) -> float:
    """How much more likely `bad` of `calls` are with a larger share than with the one that is allowed; 0 when there
    are not more of them than that.
    """
    if not 0 < allowed < 1 or bad <= allowed * calls:
        return 0.0
    mixed = math.lgamma(bad + 1) + math.lgamma(calls - bad + 1) - math.lgamma(calls + 2)
    return math.exp(min(700.0, mixed - bad * math.log(allowed) - (calls - bad) * math.log1p(-allowed)))


def tripped(old: Numbers, new: Numbers, bounds: Bounds) -> str:
    """Why the new side must get no more calls, now; empty = it need not stop."""
    failed, high = _failed(new), wilson(_failed(old), old.calls, Z)[1]
    allowed = min(bounds.stop_failed, max(FREE_FAILURES, TIMES_OLD * high))
    if failed >= LEAST_BAD and odds(failed, new.calls, allowed) >= RAIL_ODDS:
        return f"{failed:,} of {new.calls:,} calls failed; {100 * allowed:.1f} % are allowed"
    slow = _slower(new, old, bounds.stop_slower) if old.ok >= LEAST_TASKS else None
    if slow is not None and slow >= LEAST_BAD and odds(slow, new.ok, TAIL) >= RAIL_ODDS:
        return f"{slow:,} of {new.ok:,} answers took longer than {bounds.stop_slower:g} x the old side's p95"
    if min(old.tasks, new.tasks) >= LEAST_TASKS and not (old.unpriced or new.unpriced):
        distance = _distance(old, new, bounds.stop_dearer)
        if distance is not None and distance <= -RAIL_ERRORS:
            return f"{_usd(new):.6f} USD a task, more than {bounds.stop_dearer:g} x the {_usd(old):.6f} of the old side"
    return ""


def waits_for(canary: Canary, seen: Seen) -> str:
    """What a running canary waits for: time, samples, or nothing (empty)."""
    plan = canary.plan
    left = canary.began_at + plan.window_seconds - seen.now
    if left > 0:
        return "time"
    return "samples" if min(seen.old.calls, seen.new.calls) < plan.min_samples else ""


def decide(canary: Canary, seen: Seen) -> Move | None:
    """Where a canary goes next by its numbers; None = it stays."""
    if canary.state != "running":
        return None
    bounds = canary.plan.bounds
    if why := tripped(seen.old, seen.new, bounds):
        return Move(state="rolled_back", reason=why)
    if waits_for(canary, seen):
        return None
    parts = findings(seen.old, seen.new, bounds)
    told = "; ".join(f"{part.what}: {part.told}" for part in parts)
    if bad := [part.what for part in parts if part.state == "bad"]:
        return Move(state="rolled_back", reason=f"worse in {', '.join(bad)}: {told}")
    if all(part.state in ("good", "none") for part in parts):
        return onwards(canary, told)
    tries = canary.tries + 1
    if tries >= TRIES:
        reason = f"{tries} windows did not show that it is as good: {told}"
        return Move(state="rolled_back", reason=reason)
    return Move(
        state="running",
        stage=canary.stage,
        tries=tries,
        reference=canary.reference,
        reason=f"not shown to be as good, another window ({tries + 1} of {TRIES}): {told}",
    )


def onwards(canary: Canary, reason: str) -> Move:
    """The next stage, or after the last one the end. Where everybody gets the new side there is no old one to compare
    with: that of the window before stays.
    """
    stages, stage = canary.plan.stages, canary.stage + 1
    if stage == len(stages):
        return Move(state="promoted", reason=reason)
    reference = (canary.reference or canary.number) if stages[stage] == 100 else 0
    return Move(state="running", stage=stage, reference=reference, reason=reason)
