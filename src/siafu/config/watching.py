"""What the settings say about metrics: which models have a label of their own, and who may ask."""

from __future__ import annotations

import os

from siafu.border.secrets import Secret
from siafu.config.settings import Settings
from siafu.errors import ConfigError
from siafu.observe.counts import Counts
from siafu.observe.scrape import Scrape
from siafu.pace.clock import Clock

TOKEN = "SIAFU_METRICS_TOKEN"  # noqa: S105 - its name
LEAST_TOKEN = 16  # characters


def scrape_of(settings: Settings, clock: Clock) -> Scrape:
    """An empty one, for the models that the settings name."""
    return Scrape(Counts(known_models(settings)), clock)


def known_models(settings: Settings) -> set[str]:
    """Every model that the settings name, under all of its names."""
    models, cheaper = settings.models, settings.budgets.cheaper
    found = {models.default, models.strong, models.cheap, *settings.prices, *cheaper, *cheaper.values()}
    for upstream in settings.upstreams.values():
        names = upstream.models or ()
        found |= {*names, *(names.values() if isinstance(names, dict) else ())}
    for route in settings.routes:
        found |= {use.partition("@")[0] for use in route.use}
    return {name for name in found if name}


def scrape_token() -> Secret | None:
    """What who asks for metrics has to send; None = only this machine may ask. Raises: ConfigError."""
    given = os.environ.get(TOKEN, "").strip()
    if not given:
        return None
    if len(given) < LEAST_TOKEN or not given.isascii() or not given.isprintable():
        raise ConfigError(f"{TOKEN} needs {LEAST_TOKEN} ASCII characters or more: openssl rand -hex 32")
    return Secret(given)
