"""Settings that change while siafu runs: the file, and files with keys, are looked at now and then. What has changed is
checked as a whole; then all of it counts that can without a new start, for every call that is sent from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from siafu.border.money import parse_usd
from siafu.config.budgets import thrift
from siafu.config.checking import faults
from siafu.config.settings import Settings, file_mark, leaves, load_again
from siafu.config.upstream_keys import key_files
from siafu.config.upstreams import configured_ways, rules, way_to
from siafu.errors import ConfigError, ConfigErrors
from siafu.gateway.client import Gateway, Way
from siafu.observe.events import Observer, SettingsChanged

EVERY = 0.5  # seconds between two looks; a change counts when two looks in a row have found the same
MOST_BYTES = 2**20  # of a file that are looked at
_WHOLE = ("endpoint", "upstreams", "routes", "prices")
_LIMITS = ("concurrency", "rpm", "tpm", "processes", "max_wait_seconds")  # how limits are learned is fixed at the start
_SHOWN = ("limits", "budgets")


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """`settings`: that count from now on. `places`: what is other than before, such as `limits.rpm`, `upstreams.seoul`
    and `routes`. `later`: those of them that count after a new start.
    """

    settings: Settings
    places: tuple[str, ...]
    later: tuple[str, ...]


def weigh(now: Settings, before: Settings, new: Settings) -> Change:
    """What becomes of `now`, the settings that count, when the file that said `before` says `new`."""
    whole = new if now.simulated == new.simulated else now.model_copy(update={"prices": new.prices})
    days = now.budgets.day, new.budgets.day
    budgets = {
        "soft": new.budgets.soft,
        "cheaper": new.budgets.cheaper,
        "day": days[0] if None in days else days[1],
        "roles": {name: new.budgets.roles.get(name, amount) for name, amount in now.budgets.roles.items()},
        "keys": {name: new.budgets.keys.get(name, amount) for name, amount in now.budgets.keys.items()},
    }
    settings = now.model_copy(
        update={
            **{name: getattr(whole, name) for name in _WHOLE},
            "limits": now.limits.model_copy(update={name: getattr(new.limits, name) for name in _LIMITS}),
            "budgets": now.budgets.model_copy(update=budgets),
        }
    )
    places = _differing(before, new)
    waiting = _differing(settings, new)
    return Change(settings=settings, places=places, later=tuple(place for place in places if place in waiting))


def _differing(one: Settings, other: Settings) -> tuple[str, ...]:
    first, second = (dict(leaves(each.model_dump())) for each in (one, other))
    places = [place for place in first | second if first.get(place) != second.get(place)]
    tables = {place for place in places if {} in (first.get(place), second.get(place)) and len(place) == 1}
    return tuple(dict.fromkeys(".".join(place[:2]) for place in places if place not in tables))


def told(change: Change, file: str) -> str:
    """What to tell people of a change of `file`."""
    if not change.places:
        return f"{file} was read again: nothing is other than before"
    now = [_shown(change.settings, place) for place in change.places if place not in change.later]
    parts = [f"from now on {', '.join(now)}"] if now else []
    if change.later:
        parts.append(f"after a new start {', '.join(change.later)}")
    return f"{file} has changed: {'; '.join(parts)}"


def _shown(settings: Settings, place: str) -> str:
    section, _, name = place.partition(".")
    value = getattr(getattr(settings, section), name, None) if section in _SHOWN else None
    return place if value is None or isinstance(value, dict) else f"{place} = {value}"


class Following:
    """Lets `gateway` go by the settings as they are now. `first`: the ways with which it began. asked: set to have
    everything read again at once, changed or not.
    """

    def __init__(
        self,
        settings: Settings,
        gateway: Gateway,
        first: Sequence[Way],
        observer: Observer,
        asked: asyncio.Event | None = None,
    ) -> None:
        self._now = settings  # that count
        self._read = settings  # as the file has them
        self._gateway = gateway
        self._first = first[0].upstream
        self._observer = observer
        self._asked = asked or asyncio.Event()
        self._known: dict[Path, tuple[tuple[int, ...], str]] = {}
        origin = settings.origin
        self._begun = self._prints() if origin is None or file_mark(origin.file) == origin.mark else ()

    async def run(self, notice: Callable[[str], None]) -> None:
        """Follow until cancelled. When what is found cannot be used, people hear why, and all stays as it was until the
        next change.
        """
        done = seen = self._begun
        last = ""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY):
                    await self._asked.wait()
            asked, now = self._asked.is_set(), self._prints()
            settled, seen = now == seen, now
            if not asked and (now == done or not settled):
                continue
            self._asked.clear()
            keys_only = not asked and done != () and now[0] == done[0]
            done = now
            try:
                text = await self._renew(keys_only)
            except ConfigError as error:
                text = f"the settings stay as they were: {error.message}"
                self._observer(SettingsChanged(refused=error.message))
            if asked or text != last:
                notice(text)
            last = text

    async def _renew(self, keys_only: bool) -> str:
        """Take over what is there now, and say what it is. Raises: ConfigError when it cannot be used."""
        new = await asyncio.to_thread(self._load)
        change = weigh(self._now, self._read, new)
        settings = change.settings
        ways = await asyncio.to_thread(self._ways, settings)
        await self._gateway.change(ways, rules(settings), thrift(settings))
        own = settings.budgets
        roles, keys = ({name: parse_usd(each) for name, each in table.items()} for table in (own.roles, own.keys))
        self._gateway.accounts.change(day=None if own.day is None else parse_usd(own.day), roles=roles, keys=keys)
        self._now, self._read = settings, new
        self._observer(SettingsChanged(places=change.places, later=change.later))
        if keys_only or new.origin is None:
            return f"keys of upstreams in use now: {', '.join(way.name for way in ways) or 'none'}"
        return told(change, new.origin.file.name)

    def _load(self) -> Settings:
        if self._read.origin is None:
            return self._read
        new = load_again(self._read.origin)
        if wrong := faults(new):
            raise ConfigErrors(wrong)
        return new

    def _ways(self, settings: Settings) -> list[Way]:
        return [way_to(settings, self._first)] if settings.simulated else configured_ways(settings)

    def _prints(self) -> tuple[str, ...]:
        """What the files hold now, the settings' own first. A few small files: not worth a thread."""
        origin = self._read.origin
        paths = _named_files(self._now)
        try:
            paths += key_files(self._now)
            broken = ""
        except ConfigError as error:
            broken = error.message
        own = "" if origin is None else self._print(origin.file)
        return (own, broken, *(self._print(path) for path in paths))

    def _print(self, path: Path) -> str:
        """Changes with the content of the file. One that is no plain file could block: it is not read."""
        mark = file_mark(path)
        if mark is None:
            return "no file"
        if path not in self._known or self._known[path][0] != mark:
            try:
                with path.open("rb") as file:
                    self._known[path] = mark, hashlib.sha256(file.read(MOST_BYTES)).hexdigest()
            except OSError as error:
                return f"{path} {error.strerror}"
        return f"{path} {self._known[path][1]}"


def _named_files(settings: Settings) -> list[Path]:
    """The files that settings name as `file:/path`."""
    values = [value for _, value in leaves(settings.model_dump()) if isinstance(value, str | list)]
    texts = [text for value in values for text in ([value] if isinstance(value, str) else value)]
    return [Path(text[5:]).expanduser() for text in texts if isinstance(text, str) and text.startswith("file:")]


@contextlib.asynccontextmanager
async def following(follower: Following, notice: Callable[[str], None] | None = None) -> AsyncIterator[None]:
    """Let its gateway go by the settings and keys as they change while the block runs. notice: told what has changed,
    and why it did not count.
    """
    task = asyncio.create_task(follower.run(notice or _nobody), name="siafu settings")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def _nobody(text: str) -> None:
    """Nobody is told."""
