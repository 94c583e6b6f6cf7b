"""Keys of upstreams that were added or disabled beside the settings, so that they can be rotated while siafu runs.

Kept in a file in `home`: names of keys (`env:NAME`, `file:/path`) only, never keys. A key is bound to the origin it was
added for: when the upstream's address changes, it is not sent there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from siafu.border.secrets import Secret
from siafu.border.text import preview
from siafu.border.urls import checked_base_url, origin
from siafu.config.sections import EndpointSettings
from siafu.config.settings import Settings
from siafu.errors import ConfigError

FILE = "upstream-keys.json"
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


def key_files(settings: Settings) -> list[Path]:
    """Where the keys of upstreams stand: the file of changes, and every file that is named. Raises: ConfigError."""
    names = [key.given for keys in named_keys(settings).values() for key in keys]
    named = [Path(name[5:]).expanduser() for name in names if isinstance(name, str) and name.startswith("file:")]
    return [settings.home / FILE, *named]
