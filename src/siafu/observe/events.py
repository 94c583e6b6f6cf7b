"""What happened, as frozen events. An observer is any callable that takes one; it must be quick and must not raise."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """Base of all events; `run` names the run they belong to. Their fields are text and numbers: no cycle can form."""

    run: str = ""


class AttemptEnded(Event, frozen=True, kw_only=True):
    """One physical request to a model ended. `outcome`: ok, refused, failed, abandoned. Times in seconds. `key`,
    `bucket`: as in `store.records.AttemptOpened`. `saved_pico`: what the prompt cache saved, below 0 when it cost more
    than it saved.
    """

    task: str = ""
    role: str = ""
    model: str = ""
    upstream: str = ""
    key: str = ""
    bucket: str = ""
    outcome: str = "ok"
    code: str = ""
    status: int | None = None
    seconds: float = 0.0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    usd_pico: int | None = None
    saved_pico: int = 0


class Waited(Event, frozen=True, kw_only=True):
    """A call begins to wait, for `seconds` or a little longer. `reason`: rate_limited, overloaded, backoff.

    Without a task, all calls do: quota (there is no credit), outage (the upstream fails) or tools (the tool server is
    away), until one of them asks again; waiting (until items that wait are looked at again).
    """

    task: str = ""
    upstream: str = ""
    reason: str = ""
    seconds: float = 0.0


class Rerouted(Event, frozen=True, kw_only=True):
    """A call goes to another lane or model than the one it wanted first. `lane`: where it goes."""

    task: str = ""
    wanted: str = ""
    model: str = ""
    lane: str = ""


class LaneClosed(Event, frozen=True, kw_only=True):
    """An upstream, one of its keys, or a tool server takes no calls for now. `model`: only of this one; empty = of all.

    `reason`: access_refused (until the key is changed), quota_exhausted, budget_reached (of the key, today),
    tool_unavailable (of a tool server: until it can be reached), else the code of the failures that came one after the
    other (it is tried now and then).
    """

    lane: str = ""
    model: str = ""
    reason: str = ""


class LaneOpened(Event, frozen=True, kw_only=True):
    """What took no calls for now takes them again: an upstream that failed has answered, a key has credit."""

    lane: str = ""
    model: str = ""


class Hedged(Event, frozen=True, kw_only=True):
    """A second request leaves for a call whose first one is under way for more than `seconds`, which is slow for it."""

    task: str = ""
    model: str = ""
    seconds: float = 0.0


class WentFirst(Event, frozen=True, kw_only=True):
    """A call filled the prompt cache for others that begin alike: so many `siblings` waited for it, for `seconds` at
    most.
    """

    task: str = ""
    role: str = ""
    model: str = ""
    upstream: str = ""
    siblings: int = 0
    seconds: float = 0.0


class Reused(Event, frozen=True, kw_only=True):
    """A call was answered with an earlier answer, as a rule of the settings says. `usd_pico`: what that had cost."""

    task: str = ""
    role: str = ""
    model: str = ""
    usd_pico: int | None = None


class HeadsDiffer(Event, frozen=True, kw_only=True):
    """Calls of one role begin differently from call to call, so that the prompt cache cannot help. `part`: tools,
    format (of the answer) or system; `at`: how many characters of the system text are alike. Told once a run and role.
    """

    role: str = ""
    model: str = ""
    part: str = ""
    at: int = 0


class CheaperModel(Event, frozen=True, kw_only=True):
    """A budget is nearly used: calls for `model` go to `instead`, from this one on. Told once a run and model."""

    task: str = ""
    model: str = ""
    instead: str = ""


class CanaryMoved(Event, frozen=True, kw_only=True):
    """From now on, `percent` of the users of `old` get `new` first. `state`: running, promoted, rolled_back, retired.
    `reason`: why it has moved.
    """

    old: str = ""
    new: str = ""
    state: str = "running"
    percent: int = 0
    reason: str = ""


class LimitsShared(Event, frozen=True, kw_only=True):
    """A process can (`alone` False, again) or cannot share an upstream's limits with the other processes of its key.
    Alone it takes its fair part: the limits divided by `processes`. `why`: what went wrong.
    """

    upstream: str = ""
    alone: bool = False
    processes: int = 1
    why: str = ""


class SettingsChanged(Event, frozen=True, kw_only=True):
    """Settings were read again. `places`: what is other than before, such as `limits.rpm`; `later`: those of them that
    count only after a new start. `refused`: why nothing of it counts; empty when it does.
    """

    places: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    refused: str = ""


class ToolCalled(Event, frozen=True, kw_only=True):
    task: str = ""
    role: str = ""
    tool: str = ""
    outcome: str = "ok"
    seconds: float = 0.0


class ItemStarted(Event, frozen=True, kw_only=True):
    task: str = ""


class ItemEnded(Event, frozen=True, kw_only=True):
    """`restored`: the result was in the journal, nothing ran. `code`: of the error, empty when it succeeded. `waits`:
    it has not failed; `code` says what it waits for, and it starts again later.
    """

    task: str = ""
    ok: bool = True
    code: str = ""
    seconds: float = 0.0
    restored: bool = False
    waits: bool = False


class Replayed(Event, frozen=True, kw_only=True):
    """A journaled call was answered from the journal; it was not billed again."""

    task: str = ""
    kind: str = ""


class Discarded(Event, frozen=True, kw_only=True):
    """A journaled call no longer fits (prompt or code changed) and runs again; `usd_pico` was its first cost."""

    task: str = ""
    kind: str = ""
    usd_pico: int | None = None


class RunResumed(Event, frozen=True, kw_only=True):
    """A run goes on: items finished before, failed before, finished ones that run again as the work changed, the
    cost of those the first time, and calls that were in flight when the last process ended.
    """

    finished: int = 0
    failed: int = 0
    changed: int = 0
    changed_usd_pico: int = 0
    in_flight: int = 0


class Observer(Protocol):
    def __call__(self, event: Event, /) -> None: ...


def nobody(event: Event, /) -> None:
    """The observer that does nothing."""


def fan_out(*observers: Observer) -> Observer:
    """One observer that tells all of `observers`, in order."""
    observers = tuple(observer for observer in observers if observer is not nobody)
    if len(observers) == 1:
        return observers[0]

    def tell(event: Event, /) -> None:
        for observer in observers:
            observer(event)

    return tell
