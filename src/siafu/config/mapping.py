"""`siafu.map`: the one primitive, with everything it needs built around it."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import logging
import os
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack

import msgspec

from siafu.agents.task import ModelOptions
from siafu.border.money import parse_usd, show_usd
from siafu.border.secrets import Secret
from siafu.config.assembly import Plan, opened
from siafu.config.settings import Settings, load, refers
from siafu.errors import ConfigError, ToolUnavailable
from siafu.gateway.endpoint import Endpoint
from siafu.observe.events import CheaperModel, Event, LaneClosed, Observer, RunResumed, Waited, fan_out, nobody
from siafu.swarm.map import MapRun, map_items
from siafu.swarm.options import MapOptions
from siafu.swarm.results import MapResult, MapSummary
from siafu.swarm.work import Work, WorkFunction
from siafu.tools.functions import Functions
from siafu.tools.toolset import ToolSet

_log = logging.getLogger("siafu")


class MapKeywords(TypedDict, total=False):
    """Options of `siafu.map`. None is as good as left away.

    How it runs, as in MapOptions: run, key, concurrency, lookahead, priority, user, tenant, item_timeout, deadline,
    grace, on_error, retry_failed, wait, on_change, version, ordered, value_type.

    What it may use: budget ("5 USD"; the run stops before it would be passed), budget_per_item (an item that would pass
    its own fails, others go on), allow_unpriced (models without a price may run under a budget), journal (a file; with
    it the run survives `kill -9`), rpm (requests a minute).

    Where models are called: base_url, api_key, config (a siafu.toml); model, system, temperature, max_tokens,
    response_format for calls that do not set their own. tools: Python functions or a ToolSet; those with a rule in
    `[tools.effects]` of siafu.toml are called under its contract. observer: told of every event. endpoint: an Endpoint
    instead of a configured one.
    """

    run: str
    key: Callable[[Any], Any]
    concurrency: int
    lookahead: int
    priority: Callable[[Any], int]
    user: Callable[[Any], str]
    tenant: Callable[[Any], str]
    item_timeout: float
    deadline: float
    grace: float
    on_error: Literal["isolate", "fail_fast"]
    retry_failed: bool
    wait: float
    on_change: Literal["rerun", "keep", "refuse"]
    version: str
    ordered: bool
    value_type: Any
    budget: str | int | Decimal
    budget_per_item: str | int | Decimal
    allow_unpriced: bool
    journal: str | Path
    rpm: float
    base_url: str
    api_key: str
    config: str | Path
    model: str
    system: str
    temperature: float
    max_tokens: int
    response_format: dict[str, Any]
    tools: ToolSet | Sequence[Callable[..., Any]]
    observer: Observer
    endpoint: Endpoint


_OPTIONS = {field.name for field in msgspec.structs.fields(MapOptions)}
_DEFAULTS = ("system", "temperature", "max_tokens", "response_format")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and str(value) != "" and "\0" not in str(value)


def _are_tools(value: Any) -> bool:
    if isinstance(value, Sequence):
        return all(callable(each) for each in value)
    return hasattr(value, "list") and hasattr(value, "call")


# what the kinds of options are, for those that nothing else looks at before there are items to fail
_KINDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("key priority user tenant", callable, 'a function of an item, like lambda item: item["id"]'),
    ("observer", callable, "a function of an event"),
    ("run version model system base_url api_key", lambda value: isinstance(value, str), "text"),
    ("journal config", _is_path, "the path of a file"),
    ("ordered retry_failed allow_unpriced", lambda value: isinstance(value, bool), "True or False"),
    ("item_timeout deadline grace wait temperature", _is_number, "a number"),
    ("lookahead", lambda value: _is_number(value) and not isinstance(value, float), "a whole number"),
    ("max_tokens", lambda value: _is_number(value) and not isinstance(value, float) and value > 0, "1 or more tokens"),
    ("response_format", lambda value: isinstance(value, Mapping), "a dict"),
    ("tools", _are_tools, "a list of functions or one ToolSet"),
    ("endpoint", lambda value: hasattr(value, "open"), "an Endpoint"),
)


def map(
    work: str | Work | WorkFunction, items: Iterable[Any] | AsyncIterable[Any], **keywords: Unpack[MapKeywords]
) -> Map:
    """Do `work` for every item, many at once: `async for result in siafu.map("Translate: {text}", rows): ...`

    `work`: a prompt template (`{field}` of a dict item, `{item}` for the item itself), an `Agent`, or any
    `async def work(item, ctx)` that calls `ctx.model(...)` and `ctx.tool(...)`. `items`: any iterable, also an
    asynchronous or endless one. Results come as they finish. With `journal="run.db"` the same call after a crash
    repeats nothing that finished and pays for no answer twice.

    The options are those of `siafu.MapKeywords` (see `help(siafu.MapKeywords)` and `help(siafu.MapOptions)`): among
    them key, concurrency, budget, journal, priority, item_timeout, deadline, on_error, retry_failed, on_change,
    ordered, model, system, max_tokens, tools, base_url, api_key.

    When a budget, a quota, an outage or a deadline ends the map early, the iteration ends and `summary.stopped` says
    why (it is logged too); items that are left run when the same map runs again. Under a budget a call that names no
    maximum of output gets one of 4,096 tokens, since its cost would have no bound.

    Raises: ConfigError for an option that is none or of another kind. When it is iterated: ConfigError, StoreError;
    errors of single items are results.
    """
    unknown = set(keywords) - MapKeywords.__annotations__.keys()
    if unknown:
        name = min(unknown)
        near = difflib.get_close_matches(name, MapKeywords.__annotations__, n=1)
        raise ConfigError(f"siafu.map has no option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    given = {name: value for name, value in keywords.items() if value is not None}
    for names, fits, what in _KINDS:
        for name in names.split():
            if name in given and not fits(given[name]):
                got = repr(given[name]) if isinstance(given[name], int | float) else type(given[name]).__name__
                raise ConfigError(f"siafu.map: {name} is {what}, not {got}")
    return Map(work, items, given)


class Map:
    """A running map: an async iterator of MapResult and an async context manager.

    It starts with the first result that is asked for. Leaving the `async with`, `aclose` and cancelling whoever
    iterates cancel what runs and wait until all of it is closed. A map that is let go of in another way, such as by a
    `break`, ends by itself, without anybody waiting.
    """

    def __init__(
        self, work: str | Work | WorkFunction, items: Iterable[Any] | AsyncIterable[Any], given: dict[str, Any]
    ) -> None:
        self._owner: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[MapRun] | None = None
        self._run: MapRun | None = None
        self._closed = False
        if isinstance(key := given.get("api_key"), str) and not refers(key):
            given["api_key"] = Secret(key)  # from here on nothing shows it
        self._begin = partial(_own, work, items, given)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> MapResult:
        if self._closed:
            raise StopAsyncIteration
        try:
            if self._run is None:
                self._run = await self._opened()
            return await anext(self._run)
        except BaseException as error:
            if isinstance(error, StopAsyncIteration) and self.summary.stopped:
                _log.warning("%s; %d items are left", self.summary.stop_message, self.summary.left)
            await self.aclose()
            raise

    async def _opened(self) -> MapRun:
        if self._owner is None or self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._owner = asyncio.create_task(self._begin(self._ready), name="siafu.map owner")
        either: set[asyncio.Future[Any]] = {self._ready, self._owner}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            self._owner.result()  # raises why
        return self._ready.result()

    @property
    def summary(self) -> MapSummary:
        """The sums so far, at any time."""
        return MapSummary() if self._run is None else self._run.summary

    async def aclose(self) -> None:
        """Cancel what runs, wait for it, and close everything. Idempotent.

        Raises: StoreError when something could not be kept.
        """
        self._closed = True
        if self._owner is None or self._owner.done():
            return
        self._owner.cancel()
        await asyncio.wait({self._owner})
        if not self._owner.cancelled():
            self._owner.result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        owner = self._owner
        if owner is not None and not owner.done():
            with contextlib.suppress(RuntimeError):  # its loop is closed, and has ended it
                owner.get_loop().call_soon_threadsafe(owner.cancel)


async def _own(
    work: str | Work | WorkFunction,
    items: Iterable[Any] | AsyncIterable[Any],
    given: dict[str, Any],
    ready: asyncio.Future[MapRun],
) -> None:
    """Open what the map needs, hand the run out, and close everything when cancelled.

    All of it happens in one task that knows nothing of the Map that users hold: so it is closed in order, whoever lets
    go of the Map, and also when the event loop shuts down.
    """
    settings = _settings(given)
    options = MapOptions(
        **{"concurrency": settings.limits.concurrency, **{name: given[name] for name in _OPTIONS & given.keys()}}
    )
    async with contextlib.AsyncExitStack() as stack:
        plan = _plan(given, settings, options.run)
        if plan.tools is not None and settings.tools.effects:
            from siafu.config.effects import guarded_tools  # noqa: PLC0415 (SQLAlchemy, 140 ms)

            tools = Functions(*plan.tools) if isinstance(plan.tools, Sequence) else plan.tools
            guarded = await stack.enter_async_context(guarded_tools(settings, tools, named="run" in given))
            plan = msgspec.structs.replace(plan, tools=guarded)
        house = await stack.enter_async_context(opened(settings, plan))
        run = map_items(work, items, around=house.around, store=house.store, options=options)
        async with run:
            ready.set_result(run)
            await asyncio.Event().wait()


def _settings(given: dict[str, Any]) -> Settings:
    config = given.get("config")
    return load(
        config=None if config is None else Path(config),
        flags={
            "endpoint.base_url": given.get("base_url"),
            "endpoint.api_key": given.get("api_key"),
            "limits.rpm": given.get("rpm"),
            "limits.concurrency": given.get("concurrency"),
        },
    )


def _plan(given: dict[str, Any], settings: Settings, run: str) -> Plan:
    model = given.get("model")
    if model is None and given.get("endpoint") is None:
        model = settings.model("default")
    if model is not None and not model.strip():
        raise ConfigError("model is empty; name one, or leave it away for the configured one")
    defaults: ModelOptions = {"model": model or "default"}
    for name in _DEFAULTS:
        if name in given:
            defaults[name] = given[name]  # type: ignore[literal-required]
    journal = given.get("journal")
    return Plan(
        run=run,
        journal=None if journal is None else Path(journal),
        budget_pico=None if "budget" not in given else parse_usd(given["budget"]),
        per_item_pico=None if "budget_per_item" not in given else parse_usd(given["budget_per_item"]),
        allow_unpriced=given.get("allow_unpriced", False),
        tools=given.get("tools"),
        endpoint=given.get("endpoint"),
        defaults=defaults,
        observer=fan_out(_warn, given.get("observer", nobody)),
        notice=lambda text: _log.warning("%s", text),
    )


def _warn(event: Event) -> None:
    """Say what costs money that nobody may expect, what is done to save it, and why nothing goes on."""
    if isinstance(event, CheaperModel):
        _log.warning("most of a budget is used: %s is asked instead of %s from now on", event.instead, event.model)
    if isinstance(event, Waited) and event.reason == "quota":
        _log.warning("%s has no credit or quota left: it is asked again in %.0f s", event.upstream, event.seconds)
    if isinstance(event, LaneClosed) and event.reason == ToolUnavailable.code:
        _log.warning("%s cannot be reached: calls wait for it", event.lane)
    if isinstance(event, RunResumed) and event.changed:
        _log.warning(
            "the work has changed: %d finished items run again (on_change), which cost %s the first time; calls that "
            "are asked as before come from the journal",
            event.changed,
            show_usd(event.changed_usd_pico),
        )
