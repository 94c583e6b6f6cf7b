"""Settings as people may see them: every value that counts, where it came from, and nothing that could be a secret."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from siafu.border.secrets import MASK, Secret, redact
from siafu.config.settings import Given, Settings, leaves, refers

_GUARDED = {"api_key", "api_keys", "database_url", "redis_url", "env", "headers"}
_PLAIN = (bool, int, float, type(None))


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """`value`: None = not set. `source`: a file, a variable, "the command" or "default"."""

    name: str
    value: Any
    source: str


def shown(each: Given) -> Any:
    """The value, or `***`; names of secrets are none themselves."""
    guarded = not _GUARDED.isdisjoint(each.place)
    return _bare(each.value, guarded)


def _bare(value: Any, guarded: bool) -> Any:
    if isinstance(value, list):
        return [_bare(item, guarded) for item in value]
    if isinstance(value, dict):
        return {name: _bare(item, guarded) for name, item in value.items()}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Secret) or (guarded and not refers(str(value))):
        return MASK
    return redact(str(value))


def effective(settings: Settings, values: Sequence[Given]) -> list[Shown]:
    """Every setting, also those that nobody gave. values: those that somebody gave."""
    winners = {each.place: each for each in values}
    places = {place: Given(place, value, "default") for place, value in leaves(settings.model_dump()) if value != {}}
    found = {**places, **{place: each for place, each in winners.items() if each.value != {}}}
    return [Shown(name=each.name, value=shown(each), source=each.source) for _, each in sorted(found.items())]
