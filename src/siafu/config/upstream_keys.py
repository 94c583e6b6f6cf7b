"""Keys of upstreams that were added or disabled beside the settings, so that they can be rotated while siafu runs.

Kept in a file in `home`: names of keys (`env:NAME`, `file:/path`) only, never keys. A key is bound to the origin it was
added for: when the upstream's address changes, it is not sent there.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import msgspec

from siafu.border.secrets import Secret
from siafu.border.text import preview
from siafu.border.urls import checked_base_url, origin
from siafu.config.settings import EndpointSettings, Settings
from siafu.errors import ConfigError

FILE = "upstream-keys.json"
EVERY = 1.0  # seconds between two looks at the file and the keys' own files
MOST = 100  # keys added to one upstream


class Added(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`key`: env:NAME or file:/path. `origin`: what it was added for."""

    key: str
    origin: str


class Changes(msgspec.Struct, forbid_unknown_fields=True):
    """What one upstream's keys are beside the settings. `disabled`: as they are named, those of the settings too."""

    added: list[Added] = []
    disabled: list[str] = []


class NamedKey(msgspec.Struct, frozen=True):
    """One key of an upstream. number: from 1; it stays when others are disabled. given: its name; a Secret when it was
    given itself; None = no key. here: it belongs to the upstream's present address.
    """

    number: int
    given: str | Secret | None
    disabled: bool = False
    here: bool = True

    @property
    def name(self) -> str:
        if self.given is None:
            return "no key"
        return "as given" if isinstance(self.given, Secret) else self.given

    @property
    def used(self) -> bool:
        return self.here and not self.disabled


def changes(home: Path) -> dict[str, Changes]:
    """By upstream. Raises: ConfigError when the file cannot be read."""
    path = home / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Changes])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {preview(str(error), 200)}") from None


def named_keys(settings: Settings) -> dict[str, list[NamedKey]]:
    """Every key of each upstream of the settings (`default` = the endpoint): the settings' own first, then the added.

    Raises: ConfigError.
    """
    beside = changes(settings.home)
    if not settings.upstreams:
        return {"default": _keys_of(settings.endpoint, settings.base_url(), beside.get("default", Changes()))}
    return {
        name: _keys_of(own, checked_base_url(own.base_url, f"upstreams.{name}.base_url"), beside.get(name, Changes()))
        for name, own in settings.upstreams.items()
    }


def _keys_of(own: EndpointSettings, url: str, beside: Changes) -> list[NamedKey]:
    given: list[str | Secret | None] = [*(getattr(own, "api_keys", None) or [own.api_key])]
    if beside.added and given == [None]:
        given = []
    places = [(key, True) for key in given] + [(each.key, each.origin == origin(url)) for each in beside.added]
    keys = [NamedKey(number, key, here=here) for number, (key, here) in enumerate(places, 1)]
    return [msgspec.structs.replace(key, disabled=key.name in beside.disabled) for key in keys]


@contextlib.contextmanager
def changing(home: Path, upstream: str) -> Iterator[Changes]:
    """What is beside the settings for `upstream`, to be changed in the block and kept after it, all or nothing. One
    process at a time.

    Raises: ConfigError.
    """
    path = home / FILE
    try:
        home.mkdir(parents=True, exist_ok=True)
        with (home / f"{FILE}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            every = changes(home)
            own = every.setdefault(upstream, Changes())
            yield own
            if len(own.added) > MOST:
                raise ConfigError(f"{upstream} has {MOST} added keys; take some out of {path}")
            new = path.with_name(f"{FILE}.new")
            with new.open("wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(every)))
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def _print(settings: Settings) -> tuple[object, ...]:
    """Changes when the file or one of the files with keys does. A small file and a few `stat`s: not worth a thread."""
    names = [key.given for keys in named_keys(settings).values() for key in keys]
    paths = [Path(name[5:]).expanduser() for name in names if isinstance(name, str) and name.startswith("file:")]
    return tuple(_stat(path) for path in (settings.home / FILE, *paths))


def _stat(path: Path) -> tuple[str, int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return str(path), found.st_ino, found.st_size, found.st_mtime_ns


@contextlib.asynccontextmanager
async def watched(
    settings: Settings, renew: Callable[[], Awaitable[str]], notice: Callable[[str], None] | None
) -> AsyncIterator[None]:
    """Call `renew` within a moment after keys have changed, while the block runs. It returns what to tell people. When
    it cannot use what it finds (ConfigError), people hear why, and all stays as it was until the next change.
    """

    async def look() -> None:
        last, told = begun, ""
        while True:
            await asyncio.sleep(EVERY)
            try:
                now = _print(settings)
                if now == last:
                    continue
                last, text = now, await renew()
            except ConfigError as error:
                text = f"keys of upstreams stay as they were: {error.message}"
            if notice is not None and text != told:
                notice(text)
            told = text

    begun = _print(settings)
    task = asyncio.create_task(look(), name="siafu upstream keys")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
