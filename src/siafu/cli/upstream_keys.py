"""`siafu upstream-keys`: the keys siafu uses at its upstreams, changed while it runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from siafu.border.text import preview
from siafu.cli.showing import AsJson, Config, print_json, print_table
from siafu.errors import ConfigError, InputError

if TYPE_CHECKING:
    from siafu.config.settings import Settings
    from siafu.config.upstream_keys import NamedKey

app = typer.Typer(
    help="Keys that siafu uses at upstreams: add one, take one out. Whatever runs from the same home folder follows "
    "within a second or two. A key itself is never an argument: it is named, as env:NAME or file:/path.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    epilog="""\b
Examples:
  siafu upstream-keys list
  siafu upstream-keys add seoul file:/run/secrets/seoul-2
  siafu upstream-keys disable "seoul#1"
  siafu upstream-keys enable "seoul#1"
\b
The endpoint of OPENAI_BASE_URL or [endpoint] is the upstream "default". A new
key in a file that is named already is used at once, too.
""",
)
NO_UPSTREAM = "no upstream is set: [upstreams.NAME] in siafu.toml sets one, see docs/upstreams.md and: siafu init"
Id = typer.Argument(metavar="ID", help="As siafu upstream-keys list shows it.")


@app.command(
    "list",
    epilog="""\b
Examples:
  siafu upstream-keys list
  siafu upstream-keys list --json
""",
)
def list_keys(config: Path | None = Config, json: bool = AsJson) -> None:
    """List the keys of all upstreams, with today's budgets (UTC). Whether they work: siafu doctor"""
    from siafu.border.money import json_usd, show_usd
    from siafu.config.budgets import keys_today

    settings = _settings(config)
    keys, budgets = _keys(settings), keys_today(settings, time.time())
    if json:
        found = []
        for id, (_, key) in keys.items():
            spent, budget = budgets.get(id, (None, None))
            told = {"budget_day_usd": json_usd(budget), "spent_today_usd": json_usd(spent)}
            found.append({"id": id, "state": _state(key), "key": key.name, **told})
        return print_json(found)
    rows = [[id, _state(key), key.name] for id, (_, key) in keys.items()]
    columns = ["id", "state", "key"]
    if budgets:
        columns[2:2] = ["today", "budget"]
        for row in rows:
            row[2:2] = [show_usd(amount) for amount in budgets.get(row[0], ())] or ["-", "-"]
    return print_table(columns, rows, nothing=NO_UPSTREAM)


@app.command(
    epilog="""\b
Examples:
  siafu upstream-keys add seoul file:/run/secrets/seoul-2
  siafu upstream-keys add default env:OPENAI_API_KEY_2
"""
)
def add(
    upstream: str = typer.Argument(metavar="UPSTREAM", help="Its name in siafu.toml, or default."),
    key: str = typer.Argument(metavar="KEY", help="env:NAME or file:/path."),
    config: Path | None = Config,
    json: bool = AsJson,
) -> None:
    """Use one more key at an upstream. Processes that run follow, if they can read it."""
    from siafu.border.urls import origin
    from siafu.config.settings import refers, secret_key
    from siafu.config.upstream_keys import Added, changing

    settings = _settings(config)
    if upstream not in _names(settings):
        raise InputError(
            f"there is no upstream {preview(upstream, 60)!r}; there are: {', '.join(_names(settings)) or 'none'}"
        )
    if not refers(key):
        raise ConfigError("name the key as env:NAME or file:/path; a key itself would be kept by the shell's history")
    if key.startswith("file:"):
        key = f"file:{Path(key[5:]).expanduser().absolute()}"
    secret_key(key, key)
    base_url = settings.upstreams[upstream].base_url if settings.upstreams else settings.base_url()
    known = [each.name for name, each in _keys(settings).values() if name == upstream and each.here]
    if key in known:
        raise InputError(f"{upstream} has the key {key} already: siafu upstream-keys list")
    with changing(settings.home, upstream) as own:
        own.added.append(Added(key, origin(base_url)))
    if key.startswith("env:"):
        typer.echo("siafu: only processes that are started with this variable can use it", err=True)
    list_keys(config, json)


@app.command(
    epilog="""\b
Examples:
  siafu upstream-keys disable "seoul#1"
"""
)
def disable(id: str = Id, config: Path | None = Config, json: bool = AsJson) -> None:
    """Stop using a key. Calls under way end with it, others go elsewhere."""
    _switch(id, config, off=True)
    list_keys(config, json)


@app.command(
    epilog="""\b
Examples:
  siafu upstream-keys enable "seoul#1"
"""
)
def enable(id: str = Id, config: Path | None = Config, json: bool = AsJson) -> None:
    """Use a key again."""
    _switch(id, config, off=False)
    list_keys(config, json)


def _switch(id: str, config: Path | None, *, off: bool) -> None:
    from siafu.config.upstream_keys import changing

    settings = _settings(config)
    found = _keys(settings).get(id if "#" in id else f"{id}#1")
    if found is None:
        raise InputError(f"there is no key {preview(id, 60)!r}; see: siafu upstream-keys list")
    upstream, key = found
    with changing(settings.home, upstream) as own:
        own.disabled = [name for name in own.disabled if name != key.name] + [key.name] * off


def _settings(config: Path | None) -> Settings:
    from siafu.config.settings import load

    return load(config=config)


def _names(settings: Settings) -> list[str]:
    return [] if settings.simulated else list(settings.upstreams) or ["default"]


def _keys(settings: Settings) -> dict[str, tuple[str, NamedKey]]:
    """Every key by its id, with its upstream."""
    from siafu.config.upstream_keys import named_keys

    keys = {} if settings.simulated else named_keys(settings)
    return {f"{name}#{key.number}": (name, key) for name in keys for key in keys[name]}


def _state(key: Any) -> str:
    if not key.here:
        return "for another address"
    return "disabled" if key.disabled else "in use"
