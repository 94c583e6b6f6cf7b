"""What a map gives back: one result an item, and the sums over all of them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from siafu.border.secrets import redact
from siafu.border.text import clean
from siafu.errors import NotNow, SiafuError
from siafu.observe.events import Discarded, Event, Replayed
from siafu.swarm.ending import root_cause
from siafu.swarm.intake import Entry

MAX_MESSAGE = 2000


class MapError(msgspec.Struct, frozen=True):
    """`code`: stable word for machines, that of the SiafuError, or work_failed, duplicate_key,
    input_changed. `message`: for people, with secrets masked.
    """

    code: str
    message: str


class MapResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one item ended, or that it waits. Then the code of its error says what for (`pending_approval`: a person's
    decision; else what keeps a tool from acting now) and nothing is recorded: it goes on when the same map runs again,
    or in this run under `wait`, and has another result.

    value: what the work returned; None for an error. error: None when ok. exception: the live exception with its
    traceback; None when restored. seconds: of work. usd_pico: cost of all its answers, None when one is unknown.
    calls, tool_calls: answers got, journaled ones included. restored: it ended in an earlier session, nothing ran now
    (calls and tool_calls are 0 then).
    """

    key: str
    index: int
    item: Any
    status: Literal["ok", "error", "waiting"]
    value: Any = None
    error: MapError | None = None
    exception: BaseException | None = None
    seconds: float = 0.0
    usd_pico: int | None = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    tool_calls: int = 0
    restored: bool = False

    @property
    def ok(self) -> bool:
        return self.status == "ok"


def tell(error: BaseException) -> str:
    """`error` for people: its message, with its class when it is none of ours; masked, at most 2,000 characters."""
    try:
        text = error.message if isinstance(error, SiafuError) else f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  of the exception's own __str__
        text = f"{type(error).__name__} (its message cannot be read)"
    return redact(clean(text))[:MAX_MESSAGE]


def failure(entry: Entry, error: BaseException, *, code: str = "", **costs: Any) -> MapResult:
    """The result of an item that failed, or waits. `code` empty = that of the error, or what it waits for."""
    cause = root_cause(error)
    own = cause.code if isinstance(cause, SiafuError) else "work_failed"
    if waits := isinstance(cause, NotNow):
        own = cause.reason
    return MapResult(
        key=entry.name.key,
        index=entry.index,
        item=entry.item,
        status="waiting" if waits else "error",
        error=MapError(code or own, tell(cause)),
        exception=error,
        **costs,
    )


class MapSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The sums so far.

    read: items read = ok + failed + waiting + left. ok, failed: ended so, restored ones included. waiting: for a
    person's decision, or as something cannot be done now; they are recorded as neither, and the next session asks
    again. left: read and not ended: at the end of a run, those that a stop left for the next session; never recorded
    as failed.
    usd_pico: cost of all results; usd_unknown: results whose cost is not known. restored_usd_pico: the part that
    earlier sessions paid for.
    replayed: calls answered from the journal. changed: finished items that ran again as the work changed.
    discarded: journaled answers that no longer fitted; billed_again_pico: what they had cost the first time.
    in_flight_lost, in_flight_lost_pico: calls under way when the last process ended, and their largest possible cost.
    peak: most items worked on at once. abandoned: pieces of work that did not end when cancelled.
    stopped: why the run ended early: budget_reached, quota_exhausted, outage, access_refused, unpriced_model,
    deadline_reached, interrupted, failed or closed; empty when it did not. stop_message: the same for people.
    budget: the one that was reached, run, day or role; empty when none was. needs_pico: what the next call could cost.
    seconds: wall time.
    """

    read: int = 0
    ok: int = 0
    failed: int = 0
    waiting: int = 0
    left: int = 0
    restored: int = 0
    usd_pico: int = 0
    usd_unknown: int = 0
    restored_usd_pico: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    tool_calls: int = 0
    replayed: int = 0
    changed: int = 0
    discarded: int = 0
    billed_again_pico: int = 0
    in_flight_lost: int = 0
    in_flight_lost_pico: int = 0
    peak: int = 0
    abandoned: int = 0
    stopped: str = ""
    stop_message: str = ""
    budget: str = ""
    needs_pico: int = 0
    seconds: float = 0.0

    @property
    def budget_reached(self) -> bool:
        return self.stopped == "budget_reached"


_COUNTED = {"ok": "ok", "error": "failed", "waiting": "waiting"}


class Tally:
    """Adds up results and events. `sums` holds the fields of MapSummary by name."""

    def __init__(self) -> None:
        self.sums: dict[str, int] = dict.fromkeys(
            (f.name for f in msgspec.structs.fields(MapSummary) if f.type is int), 0
        )

    def add(self, result: MapResult, times: int = 1) -> None:
        """Count a result; with `times` -1 take back one that no longer holds."""
        sums = self.sums
        sums[_COUNTED[result.status]] += times
        sums["restored"] += times * result.restored
        for name in ("input_tokens", "cached_tokens", "output_tokens", "calls", "tool_calls"):
            sums[name] += times * getattr(result, name)
        if result.usd_pico is None:
            sums["usd_unknown"] += times
        else:
            sums["usd_pico"] += times * result.usd_pico
            sums["restored_usd_pico"] += times * result.usd_pico * result.restored

    def see(self, event: Event) -> None:
        if isinstance(event, Replayed):
            self.sums["replayed"] += 1
        elif isinstance(event, Discarded):
            self.sums["discarded"] += 1
            self.sums["billed_again_pico"] += event.usd_pico or 0
