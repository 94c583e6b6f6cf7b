"""Canaries where the settings keep them, and how a process that runs follows them: it divides its calls, tells what it
has seen, and makes a move when it is time for one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from siafu.config.advice import Row
from siafu.config.settings import Settings
from siafu.errors import ConfigError, InputError, StoreError
from siafu.gateway.canary import Split, side
from siafu.gateway.client import Gateway
from siafu.gateway.routing import target
from siafu.gateway.tally import Tally
from siafu.gateway.verdict import decide
from siafu.observe.events import CanaryMoved, Observer
from siafu.store.canary_records import Canary, Numbers, Seen, Side

if TYPE_CHECKING:
    from siafu.store.canaries import Canaries
    from siafu.store.database import Database

FILE = "canary.db"
WHAT = "the database of canaries"
EVERY = 1.0  # seconds between two looks


def place(settings: Settings) -> str | Path | None:
    """Where canaries are kept; None while there is no such file, so that nothing is made where nobody uses them.

    Raises: ConfigError.
    """
    found = settings.database(FILE)
    return None if isinstance(found, Path) and not found.exists() else found


def _open(url: str | Path) -> Database:
    from siafu.store.canaries import MIGRATIONS, SCHEMA  # noqa: PLC0415 (SQLAlchemy, 140 ms)
    from siafu.store.database import Database  # noqa: PLC0415

    return Database(url, MIGRATIONS, what=WHAT, schema=SCHEMA)


@contextlib.asynccontextmanager
async def canaries(url: str | Path) -> AsyncIterator[Canaries]:
    """The canaries at `url`. Raises: ConfigError, StoreError."""
    database = await asyncio.to_thread(_open, url)
    from siafu.store.canaries import Canaries  # noqa: PLC0415

    try:
        yield Canaries(database)
    finally:
        await database.aclose()


async def settled(found: Canaries, seen: Seen) -> Seen:
    """`seen`, or how all stands after the move that it calls for; of all who see it, one makes it."""
    if seen.last is None or (move := decide(seen.last, seen)) is None:
        return seen
    await found.move(seen.last, move)
    return await found.look()


@contextlib.asynccontextmanager
async def following_canaries(
    settings: Settings, gateway: Gateway, tally: Tally, observer: Observer, notice: Callable[[str], None] | None
) -> AsyncIterator[None]:
    """Let `gateway` divide its calls as canaries say, from its first call on, while the block runs.

    Raises: ConfigError, StoreError when they cannot be read at the start. Later all stays as it was until they can.
    """
    if settings.simulated:
        yield
        return
    follower = _Follower(settings, gateway, tally, observer, notice)
    await follower.look()
    task = asyncio.create_task(follower.run(), name="siafu canary")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        await follower.aclose()


class _Follower:
    def __init__(
        self,
        settings: Settings,
        gateway: Gateway,
        tally: Tally,
        observer: Observer,
        notice: Callable[[str], None] | None,
    ) -> None:
        self._settings = settings
        self._gateway = gateway
        self._tally = tally
        self._observer = observer
        self._notice = notice or (lambda text: None)
        self._stack = contextlib.AsyncExitStack()
        self._canaries: Canaries | None = None
        self._last: Canary | None = None
        self._unsaid: dict[tuple[int, int, Side], Numbers] = {}  # what could not be told yet
        self._fault = ""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            try:
                await self.look()
                self._fault = ""
            except (ConfigError, StoreError) as error:
                if error.message != self._fault:
                    self._notice(f"the canary stays as it is here: {error.message}")
                self._fault = error.message

    async def look(self) -> None:
        """Tell what was seen, and follow. Raises: ConfigError, StoreError."""
        if self._canaries is None:
            if (url := place(self._settings)) is None:
                return
            self._canaries = await self._stack.enter_async_context(canaries(url))
        news, self._unsaid = self._news(), {}
        try:
            seen = await self._canaries.look(news)
        except StoreError:
            self._unsaid = news
            raise
        seen = await settled(self._canaries, seen)
        last = seen.last
        if last is None or (self._last and (last.id, last.number) == (self._last.id, self._last.number)):
            return
        self._gateway.divide(Split(seen.canaries))
        self._tally.anew()
        if self._last is not None or last.state == "running":
            self._tell(last)
        self._last = last

    def _news(self) -> dict[tuple[int, int, Side], Numbers]:
        """What is to be told: of the window that is known here, as that is what the calls were divided by."""
        last = self._last
        for (canary, side_), numbers in self._tally.take().items():
            if last is not None and last.id == canary and last.state == "running":
                key = (canary, last.number, side_)
                known = self._unsaid.get(key)
                self._unsaid[key] = numbers if known is None else known + numbers
        return self._unsaid

    def _tell(self, canary: Canary) -> None:
        plan = canary.plan
        self._notice(standing(canary) + (f" ({canary.reason})" if canary.number > 1 else ""))
        self._observer(
            CanaryMoved(
                old=shown(plan.old),
                new=shown(plan.new),
                state=canary.state,
                percent=canary.percent,
                reason=canary.reason,
            )
        )

    async def aclose(self) -> None:
        """Tell the rest, if it can be told now, and close."""
        with contextlib.suppress(ConfigError, StoreError):
            if self._canaries is not None and (news := self._news()):
                await settled(self._canaries, await self._canaries.look(news))
        await self._stack.aclose()


def shown(side_: str) -> str:
    """A side as people write it."""
    return side_.removeprefix("@")


def standing(canary: Canary) -> str:
    """One line about a canary."""
    old, new = shown(canary.plan.old), shown(canary.plan.new)
    percent = canary.percent
    return {
        "running": f"canary {old} -> {new}: {percent} % of users get {new} first, {old} stands in",
        "promoted": f"canary {old} -> {new}: promoted; everybody gets {new} first, {old} stands in",
        "rolled_back": f"canary {old} -> {new}: rolled back; everybody gets {old}",
        "retired": f"canary {old} -> {new}: {old} is retired; everybody gets {new}",
    }[canary.state]


def checked_sides(settings: Settings, old: str, new: str) -> tuple[str, str]:
    """The two sides as they are kept, when they can be compared under these settings.

    Raises: ConfigError, InputError.
    """
    if settings.simulated:
        raise ConfigError("a canary needs real upstreams, and none is set: see [upstreams] in docs/upstreams.md")
    upstreams = list(settings.upstreams)
    places = [old in upstreams, new in upstreams]
    if all(places):
        if old == new:
            raise InputError(f"there is nothing to compare: both sides are {old}")
        models = [settings.upstreams[name].models for name in (old, new)]
        if models[0] is not None and models[1] is not None and not set(models[0]) & set(models[1]):
            raise InputError(f"there is nothing to compare: {old} and {new} offer no model in common")
        return f"@{old}", f"@{new}"
    if any(places):
        other = new if places[0] else old
        raise InputError(
            f"{other[:60]!r} is no upstream of these settings, and the other is: give two upstreams "
            f"({', '.join(upstreams)}), or two models"
        )
    for text in (old, new):
        each = target(text)
        if each.upstream and each.upstream not in (upstreams or ["default"]):
            raise InputError(f"there is no upstream {each.upstream[:60]!r}; there are: {', '.join(upstreams)}")
        if upstreams and not any(
            each.upstream in ("", name) and (own.models is None or each.model in own.models)
            for name, own in settings.upstreams.items()
        ):
            raise InputError(
                f"{text[:60]!r} is neither an upstream ({', '.join(upstreams)}) nor a model that one offers"
            )
    if target(old) == target(new):
        raise InputError("there is nothing to compare: both sides are the same")
    return old, new


async def canary_rows(settings: Settings) -> list[Row]:
    """A doctor's look at the canary; no row while none was ever started. Nothing is made or changed."""
    try:
        url = place(settings)
        if settings.simulated or url is None:
            return []
        from siafu.store.canaries import MIGRATIONS, SCHEMA  # noqa: PLC0415
        from siafu.store.database import look  # noqa: PLC0415

        done = (await asyncio.to_thread(look, url, what=WHAT, schema=SCHEMA, versions=len(MIGRATIONS)))[1]
        if done != len(MIGRATIONS):
            return []
        async with canaries(url) as found:
            canary = (await found.look()).last
    except (ConfigError, StoreError) as error:
        return [Row(check="canary", state="fail", found=error.message)]
    if canary is None:
        return []
    return [_row(canary, settings)]


def _row(canary: Canary, settings: Settings) -> Row:
    names = list(settings.upstreams) or ["default"]
    missing = [name for text in (canary.plan.old, canary.plan.new) if (name := side(text).upstream) not in ("", *names)]
    found = standing(canary)
    if missing and canary.state in ("running", "promoted"):
        more = f"these settings have no upstream {missing[0]}, so nothing is divided here: set it, or roll back"
        return Row(check="canary", state="warn", found=found, advice=more)
    if canary.state == "rolled_back":
        more = f"{canary.reason}; then start another one, or take {shown(canary.plan.new)} out of siafu.toml"
        return Row(check="canary", state="warn", found=found, advice=more)
    more = {
        "running": "siafu canary status",
        "promoted": f"siafu canary retire, when {shown(canary.plan.old)} is not needed any more",
        "retired": "" if missing else f"take {shown(canary.plan.old)} out of siafu.toml",
    }[canary.state]
    return Row(check="canary", state="ok", found=found, advice=more)
