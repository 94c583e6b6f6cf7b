"""From requests to figures: self-checks, rows and goals. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from siafu.bench.gateway.figures import nearest_rank
from siafu.bench.goals import Goal
from siafu.bench.surge.plan import Surge
from siafu.bench.watching import Held
from siafu.errors import MeasurementInvalid

LEAST_KEPT = 0.994  # of interactive requests
PLACE_MB, ROOM_MB = 0.1, 64.0  # memory that a request which waits may take, and all else
LATE_S = 1.0  # that the load itself may be late


class Came(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One request. planned: seconds after the beginning; late: how much later it left. status: 0 = no answer. told: it
    said when to ask again. seconds: from when it was planned to its answer's end.
    """

    planned: float
    late: float
    interactive: bool
    status: int
    told: bool
    seconds: float


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What else is known of a run. capacity: requests a second that the endpoint takes, burst: at once. waiting:
    requests that may wait. sent, completed: as the endpoint counted. held: the server's, before and during the run;
    empty = the system does not tell. cpu: seconds of the server's process.
    """

    capacity: float
    burst: float
    waiting: int
    sent: int
    completed: int
    held: list[Held]
    cpu: float | None


def check(surge: Surge, came: Sequence[Came], seen: Seen) -> None:
    """Raises: MeasurementInvalid when the figures contradict each other, or the endpoint's."""
    planned = sum(1 for _ in surge.times())
    answered = sum(each.status == 200 for each in came)
    if len(came) != planned:
        raise MeasurementInvalid(f"{planned} requests were planned, and {len(came)} are known of")
    if not answered <= seen.completed <= seen.sent <= len(came) * 3:
        raise MeasurementInvalid(
            f"{answered} answers to {len(came)} requests, but the endpoint counted {seen.completed} of {seen.sent}"
        )
    whole = max((each.planned + each.seconds for each in came), default=0.0)
    if seen.completed > seen.capacity * whole + seen.burst + 1:
        raise MeasurementInvalid(f"{seen.completed} answers are more than the endpoint's limit lets through")
    if any(each.seconds < each.late for each in came):
        raise MeasurementInvalid("a request was answered before it was sent")
    if (late := nearest_rank([each.late for each in came], 99)) > LATE_S:
        raise MeasurementInvalid(
            f"the load came {late:.1f} s late: this machine cannot send so much (a lower --peak, or an idle machine)"
        )


def rows(came: Sequence[Came]) -> list[dict[str, Any]]:
    """A row each for interactive requests and the others. Percentiles are of those that were answered."""
    table = []
    for interactive in (True, False):
        mine = [each for each in came if each.interactive == interactive]
        good = [each.seconds for each in mine if each.status == 200]
        table.append(
            {
                "requests": "interactive" if interactive else "others",
                "planned": len(mine),
                "answered": len(good),
                "kept": round(len(good) / len(mine), 4) if mine else None,
                **{f"p{rank}_ms": round(nearest_rank(good, rank) * 1e3, 1) if good else None for rank in (50, 95, 99)},
                "by_status": {str(status): n for status, n in sorted(Counter(each.status for each in mine).items())},
            }
        )
    return table


def goals(surge: Surge, came: Sequence[Came], seen: Seen) -> list[Goal]:
    """What can be judged of what was measured."""
    people = [each for each in came if each.interactive]
    not_told = sum(each.status in (429, 503) and not each.told for each in came)
    lost = sum(each.status not in (200, 429, 503) for each in came)
    back = recovery(surge, came)
    found = [
        Goal(what="refusals that do not say when to ask again", value=float(not_told), most=0.0),
        Goal(what="requests neither answered nor refused", value=float(lost), most=0.0),
        Goal(
            what="seconds after the peak until all are answered as before",
            value=back,
            most=recovered_within(seen.waiting, seen.capacity),
        ),
    ]
    if people:
        kept = sum(each.status == 200 for each in people) / len(people)
        found.insert(0, Goal(what="part of the interactive requests answered", value=kept, least=LEAST_KEPT))
    if seen.held:
        grown = max(each.rss_mb for each in seen.held) - seen.held[0].rss_mb
        what = f"MB that the server grew by, while {seen.waiting:,} may wait"
        found.append(Goal(what=what, value=grown, most=ROOM_MB + PLACE_MB * seen.waiting))
    return found


def recovered_within(waiting: int, capacity: float) -> float:
    """Seconds after which the peak shall be over for clients too: twice as long as the endpoint needs for those who
    wait, and one.
    """
    return 2 * waiting / capacity + 1


def recovery(surge: Surge, came: Sequence[Came]) -> float:
    """Seconds from the end of the peak to the end of the last second in which a request was planned that was not
    answered, or took longer than twice the slowest before the rise and 0.1 s; 0 = there was none.
    """
    before = [each.seconds for each in came if each.planned < surge.before and each.status == 200]
    slow = 2 * max(before, default=0.0) + 0.1
    bad = [each.planned for each in came if each.planned >= surge.over and (each.status != 200 or each.seconds > slow)]
    return float(int(max(bad) - surge.over) + 1) if bad else 0.0


def by_second(surge: Surge, came: Sequence[Came]) -> list[dict[str, Any]]:
    """Requests by the second in which they were planned."""
    seconds: dict[int, list[Came]] = defaultdict(list)
    for each in came:
        seconds[int(each.planned)].append(each)
    return [
        {
            "second": second,
            "planned": len(group),
            "answered": sum(each.status == 200 for each in group),
            "refused": sum(each.status in (429, 503) for each in group),
            "interactive": sum(each.interactive for each in group),
            "interactive_answered": sum(each.interactive and each.status == 200 for each in group),
        }
        for second, group in sorted(seconds.items())
    ]
