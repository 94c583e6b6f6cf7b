"""Everything that is wrong with settings, so that it can be mended at once."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from siafu.border.secrets import Secret
from siafu.border.urls import in_clear_text
from siafu.config.budgets import key_budgets, thrift
from siafu.config.lines import located
from siafu.config.mcp_servers import configured_server
from siafu.config.reuse import ReuseSettings
from siafu.config.sections import EndpointSettings, RouteSettings, UpstreamSettings
from siafu.config.settings import Settings, given, load, resolved, secret_key, settings_file, sifted
from siafu.config.upstreams import configured_ways, rule
from siafu.config.webhooks import webhook
from siafu.config.wording import Wrong
from siafu.errors import ConfigError, ConfigErrors
from siafu.store.redis import RedisDoor


def problems(config: Path | None) -> Sequence[str]:
    """What is wrong with a settings file, its form and what it says, with lines; None = the file that counts here."""
    try:
        wrong = sifted(given(config=config, environ={}))
        if isinstance(wrong, Settings):
            found = faults(load(config=config))
        else:
            found = [each.text for each in wrong]
            rest = sifted(each for each in given(config=config) if not (each.in_file and _touched(each.place, wrong)))
            if isinstance(rest, Settings):
                found += faults(rest)
    except ConfigErrors as errors:
        found = list(errors.all)
    except ConfigError as error:
        return [error.message]
    file = settings_file(config)
    return located(found, file.read_text(encoding="utf-8-sig"), str(file))


def _touched(place: Sequence[str], wrong: Sequence[Wrong]) -> bool:
    """Whether a setting is wrong, or leads to one that is."""
    bad = [each.place[:-1] if each.text.endswith(" is missing") else each.place for each in wrong]
    if place[0] == "routes" and any(each[0] == "upstreams" for each in bad):
        return True
    return any(all(one == other for one, other in zip(place, each, strict=False)) for each in bad)


def faults(settings: Settings) -> list[str]:
    """What is wrong with settings in which every value has the right form: keys that are not there, addresses that are
    unsafe, routes that lead nowhere. Reads the files and variables that they name, and nothing else.
    """
    found = []
    for step in _steps(settings):
        try:
            step()
        except ConfigError as error:
            found.append(error.message)
    return list(dict.fromkeys(found))


def risks(settings: Settings) -> list[str]:
    """What works and still is not safe: passwords and data that travel in clear text to another machine."""
    found = []
    for name, address in (("redis_url", settings.redis()), ("database_url", settings.database(""))):
        url = address.reveal() if isinstance(address, Secret) else str(address or "")
        if advice := in_clear_text(url):
            found.append(f"{name} leads to another machine, perhaps without TLS: all travels in clear text: {advice}")
    return found


def strange_roles(settings: Settings, roles: Collection[str]) -> list[str]:
    """Roles that settings name and no agent has, of those whose `roles` are known."""
    named = [(f"budgets.roles.{role}", role) for role in settings.budgets.roles]
    rules: dict[str, Sequence[RouteSettings | ReuseSettings]] = {"routes": settings.routes, "reuse": settings.reuse}
    for section, each in rules.items():
        named += [(f"{section}[{number}].role", role) for number, own in enumerate(each) for role in own.role or ()]
    found = []
    for place, role in named:
        if role and role not in roles:
            near = difflib.get_close_matches(role, roles, n=1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(roles)}"
            found.append(
                f"{place} holds for no agent of the support swarm, only for ones of your own programs: {advice}"
            )
    return found


def _redis(settings: Settings) -> None:
    if url := settings.redis():
        RedisDoor(url)


def _database(settings: Settings) -> None:
    if settings.database_url is not None:
        from siafu.store.address import database_place  # noqa: PLC0415 (SQLAlchemy, 140 ms)

        database_place(settings.database(""), "database_url")


def _steps(settings: Settings) -> Iterator[Callable[[], Any]]:
    yield partial(thrift, settings)
    yield partial(key_budgets, settings)
    yield partial(_redis, settings)
    yield partial(_database, settings)
    if not settings.upstreams and not settings.simulated:
        yield partial(configured_ways, settings)
    named: list[tuple[str, EndpointSettings]] = [(f"upstreams.{name}", own) for name, own in settings.upstreams.items()]
    for where, own in named or [("endpoint", settings.endpoint)]:
        yield partial(resolved, own.headers, f"{where}.headers")
        for key, place in _keys(where, own):
            yield partial(secret_key, key, place)
    for name, own in settings.upstreams.items():
        yield partial(configured_ways, settings.model_copy(update={"upstreams": {name: own}}))
    for number in range(len(settings.routes)):
        yield partial(rule, settings, number)
    for name, server in settings.mcp_servers.items():
        yield partial(configured_server, name, server)
    for name, receiver in settings.webhooks.items():
        yield partial(webhook, name, receiver)
    if settings.tools.effects:
        from siafu.config.effects import effect_rule  # noqa: PLC0415 (SQLAlchemy, 140 ms)

        for name, contract in settings.tools.effects.items():
            yield partial(effect_rule, name, contract)


def _keys(where: str, own: EndpointSettings) -> Iterator[tuple[str | Secret, str]]:
    """The keys that an endpoint's settings name, with their places."""
    if own.api_key is not None:
        yield own.api_key, f"{where}.api_key"
    for number, key in enumerate(own.api_keys or () if isinstance(own, UpstreamSettings) else ()):
        yield key, f"{where}.api_keys[{number}]"
