"""Everything that is wrong with settings, so that it can be mended at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from siafu.border.secrets import Secret
from siafu.border.urls import in_clear_text
from siafu.config.budgets import thrift
from siafu.config.mcp_servers import configured_server
from siafu.config.settings import Settings, given, load, settled
from siafu.config.upstreams import configured_ways, rule
from siafu.config.webhooks import webhook
from siafu.errors import ConfigError, ConfigErrors


def problems(config: Path | None) -> Sequence[str]:
    """What is wrong with a settings file, first its form, then what it says; None = the file that counts here."""
    try:
        settled(given(config=config, environ={}))
        return faults(load(config=config))
    except ConfigErrors as errors:
        return errors.all
    except ConfigError as error:
        return [error.message]


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
    return found


def risks(settings: Settings) -> list[str]:
    """What works and still is not safe: passwords and data that travel in clear text to another machine."""
    found = []
    for name, address in (("redis_url", settings.redis()), ("database_url", settings.database(""))):
        url = address.reveal() if isinstance(address, Secret) else str(address or "")
        if advice := in_clear_text(url):
            found.append(f"{name} leads to another machine, perhaps without TLS: all travels in clear text: {advice}")
    return found


def _steps(settings: Settings) -> Iterator[Callable[[], Any]]:
    yield partial(thrift, settings)
    yield settings.redis
    yield partial(settings.database, "")
    if not settings.upstreams and not settings.simulated:
        yield partial(configured_ways, settings)
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
