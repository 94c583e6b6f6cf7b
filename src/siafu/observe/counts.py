"""What happened, added up: an Observer that is cheap enough for every event, and the metrics made of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any

from siafu.border.money import PICO
from siafu.observe.events import (
    AttemptEnded,
    Event,
    Hedged,
    ItemEnded,
    LaneClosed,
    LimitsShared,
    Replayed,
    Rerouted,
    Reused,
    SettingsChanged,
    ToolCalled,
    Waited,
)
from siafu.observe.figures import OTHER, Family, Histogram, Labels, Names

CALL_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 30.0, 60.0, 120.0, 300.0)
TASK_MS = (100.0, 250.0, 500.0, 1000.0, 1500.0, 2000.0, 3000.0, 5000.0)
MOST_TOOLS = 200  # that have a label
MOST_KEYS = 10_000  # remembered as they came; then they are sorted into labels anew
_CALL = ("model", "upstream", "role")


class _Attempts:
    """Attempts with the same labels."""

    __slots__ = ("cached", "count", "input", "output", "seconds", "unpriced", "usd_pico")

    def __init__(self) -> None:
        self.count = self.input = self.cached = self.output = self.usd_pico = self.unpriced = 0
        self.seconds = Histogram(CALL_SECONDS)


class Counts:
    """models: names that the settings know; others get a label once they have answered."""

    def __init__(self, models: Container[str] = ()) -> None:
        self._models, self._roles, self._tools = Names(models), Names(), Names(most=MOST_TOOLS)
        self._attempts: dict[Labels, _Attempts] = {}  # by model, upstream, role, outcome
        self._as_came: dict[Labels, _Attempts] = {}  # the same ones, by what events say
        self._tool_seconds: dict[Labels, Histogram] = defaultdict(partial(Histogram, CALL_SECONDS))
        self._task_ms = Histogram(TASK_MS)
        self._item_seconds: dict[Labels, Histogram] = defaultdict(partial(Histogram, CALL_SECONDS))
        self._alone: dict[Labels, int] = {}
        self._errors = Counter[Labels]()
        self._canary = Counter[Labels]()
        self._counters: dict[str, Counter[Labels]] = {name: Counter() for name in _COUNTED}
        self._by_type: dict[type[Event], Callable[[Any], None]] = {
            AttemptEnded: self._attempt, ToolCalled: self._tool, ItemEnded: self._item, Waited: self._waited,
            Hedged: self._hedged, Reused: self._reused, Rerouted: self._rerouted, LaneClosed: self._closed,
            Replayed: self._replayed, SettingsChanged: self._settings, LimitsShared: self._shared,
        }  # fmt: skip

    def __call__(self, event: Event, /) -> None:
        count = self._by_type.get(type(event))
        if count is not None:
            count(event)

    def _attempt(self, event: AttemptEnded) -> None:
        key = (event.model, event.upstream, event.role, event.outcome)
        found = self._as_came.get(key) or self._new(key)
        found.count += 1
        found.seconds.add(event.seconds)
        found.input += event.input_tokens
        found.cached += event.cached_tokens
        found.output += event.output_tokens
        if event.usd_pico is None:
            found.unpriced += 1
        else:
            found.usd_pico += event.usd_pico
        if event.code and event.outcome != "ok":  # an answer has one too, when its usage is doubtful
            self._errors[event.upstream, event.code] += 1
        if event.bucket:
            canary, _, side = event.bucket.partition("/")
            self._canary[canary, side, event.outcome] += 1

    def _new(self, key: Labels) -> _Attempts:
        model, upstream, role, outcome = key
        name = self._models.bounded(model, newcomer=outcome == "ok")
        labels = (name, upstream, self._roles.bounded(role), outcome)
        found = self._attempts.setdefault(labels, _Attempts())
        if len(self._as_came) >= MOST_KEYS:
            self._as_came.clear()
        if name != OTHER:  # it may get a place yet
            self._as_came[key] = found
        return found

    def _tool(self, event: ToolCalled) -> None:
        labels = (self._tools.bounded(event.tool), event.outcome)
        self._tool_seconds[labels].add(event.seconds)

    def _item(self, event: ItemEnded) -> None:
        outcome = "restored" if event.restored else "waiting" if event.waits else "ok" if event.ok else "failed"
        self._item_seconds[outcome,].add(event.seconds)
        if outcome in ("ok", "failed"):
            self._task_ms.add(event.seconds * 1000)
            if not event.ok:
                self._counters["agent_swarm_task_error"][event.code or OTHER,] += 1

    def _waited(self, event: Waited) -> None:
        self._counters["siafu_waits"][event.upstream, event.reason] += 1
        self._counters["siafu_wait_seconds"][event.upstream, event.reason] += event.seconds  # type: ignore[assignment]

    def _hedged(self, event: Hedged) -> None:
        self._counters["siafu_hedges"][self._models.bounded(event.model),] += 1

    def _reused(self, event: Reused) -> None:
        self._counters["siafu_reused_answers"][self._models.bounded(event.model),] += 1

    def _rerouted(self, event: Rerouted) -> None:
        self._counters["siafu_reroutes"][event.lane,] += 1

    def _closed(self, event: LaneClosed) -> None:
        self._counters["siafu_lane_closings"][event.lane, event.reason] += 1

    def _replayed(self, event: Replayed) -> None:
        self._counters["siafu_replayed_calls"][event.kind,] += 1

    def _settings(self, event: SettingsChanged) -> None:
        self._counters["siafu_settings_reloads"]["refused" if event.refused else "applied",] += 1

    def _shared(self, event: LimitsShared) -> None:
        self._alone[event.upstream,] = event.alone

    def families(self) -> Sequence[Family]:
        """All of it, as metrics."""
        calls = Counter[Labels]()
        ok: dict[Labels, Histogram] = defaultdict(partial(Histogram, CALL_SECONDS))
        sums: dict[str, Counter[Labels]] = {name: Counter() for name in _SUMS}
        for (model, upstream, role, outcome), found in self._attempts.items():
            calls[model, upstream, role, outcome] = found.count
            for name, amount in zip(_SUMS, _amounts(found), strict=True):
                sums[name][model, upstream, role] += amount  # type: ignore[assignment]
            if outcome == "ok":  # quick refusals would make it look fast
                ok[model, upstream].merge(found.seconds)
        ended = sum(self._task_ms.counts)
        return [
            Family("siafu_model_calls", "counter", _CALLS, (*_CALL, "outcome"), list(calls.items())),
            Family("siafu_model_call_seconds", "histogram", _OK_SECONDS, ("model", "upstream"), list(ok.items())),
            *(Family(name, "counter", text, _CALL, list(sums[name].items())) for name, text in _SUMS.items()),
            Family("siafu_model_call_errors", "counter", _ERRORS, ("upstream", "code"), list(self._errors.items())),
            Family("siafu_limits_alone", "gauge", _ALONE, ("upstream",), list(self._alone.items())),
            Family("siafu_canary_calls", "counter", _CANARY, ("canary", "side", "outcome"), list(self._canary.items())),
            *(Family(n, "counter", *_COUNTED[n], list(rows.items())) for n, rows in self._counters.items()),
            Family(
                "siafu_tool_call_seconds", "histogram", _TOOL, ("tool", "outcome"), list(self._tool_seconds.items())
            ),
            Family("siafu_item_seconds", "histogram", _ITEM, ("outcome",), list(self._item_seconds.items())),
            Family("agent_swarm_task", "counter", "Tasks that ended, well or not", (), [((), ended)]),
            Family("agent_swarm_task_latency_ms", "histogram", "Of these, milliseconds", (), [((), self._task_ms)]),
        ]


def _amounts(found: _Attempts) -> tuple[float, ...]:
    return found.input, found.cached, found.output, found.usd_pico / PICO, found.unpriced


_CALLS = "Requests to models that ended, by outcome: ok, refused, failed, abandoned; each attempt counts"
_OK_SECONDS = "Seconds of the requests that were answered"
_ERRORS = "Requests to models that ended otherwise than well, by code; rate_limited are 429s"
_ALONE = "1 = Redis does not share its limits now: this process takes its part of them"
_CANARY = "Requests while a canary runs, by its number and the side that answered"
_TOOL = "Seconds of tool calls, by outcome: ok, error (the tool's own), failed"
_ITEM = "Seconds of items of maps and tasks, by outcome: ok, failed, waiting, restored"
_SUMS = {
    "siafu_input_tokens": "Tokens that models read, those from their cache included",
    "siafu_cached_input_tokens": "Of these, tokens that the provider's prompt cache held",
    "siafu_output_tokens": "Tokens that models wrote",
    "siafu_cost_usd": "What that cost in US dollars; of attempts with unknown usage, the most it can be",
    "siafu_unpriced_calls": "Requests to models without a price",
}
_COUNTED: dict[str, tuple[str, Labels]] = {
    "agent_swarm_task_error": ("Tasks that ended badly, by code", ("reason",)),
    "siafu_waits": (
        "Waits that began: rate_limited, overloaded, backoff, quota, outage, tools",
        ("upstream", "reason"),
    ),
    "siafu_wait_seconds": ("Their length, as it was planned", ("upstream", "reason")),
    "siafu_hedges": ("Second requests for slow calls", ("model",)),
    "siafu_reused_answers": ("Calls that an earlier answer was used for", ("model",)),
    "siafu_reroutes": ("Calls that went elsewhere than they wanted first", ("lane",)),
    "siafu_lane_closings": ("Times that an upstream, key or tool server was left alone", ("lane", "reason")),
    "siafu_replayed_calls": ("Calls that were answered from a journal", ("kind",)),
    "siafu_settings_reloads": ("Times that changed settings were read", ("outcome",)),
}
