"""The ways to models that the settings name: upstreams, their keys, and the rules that choose among them."""

from __future__ import annotations

import difflib
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from siafu.border.secrets import Secret
from siafu.border.urls import checked_base_url, is_loopback
from siafu.config.settings import EndpointSettings, Settings, UpstreamSettings, refers, resolve, resolved, secret_key
from siafu.errors import ConfigError
from siafu.gateway.client import Way
from siafu.gateway.limits import Limits
from siafu.gateway.pricing import Price, Prices
from siafu.gateway.routing import Rule, target
from siafu.gateway.upstream import Timeouts, Upstream

T = TypeVar("T")


def configured_ways(settings: Settings) -> list[Way]:
    """The upstreams and keys that the settings name. Raises: ConfigError when one of them cannot be used."""
    if settings.upstreams:
        return [way for name, own in settings.upstreams.items() for way in _ways_of(settings, name, own)]
    upstream = Upstream(
        name="default",
        base_url=settings.base_url(),
        key=settings.key(),
        headers=resolved(settings.endpoint.headers, "endpoint.headers"),
        timeouts=timeouts(settings.endpoint),
    )
    return [way_to(settings, upstream)]


def _ways_of(settings: Settings, name: str, own: UpstreamSettings) -> list[Way]:
    """One way for each key of an upstream."""
    where = f"upstreams.{name}"
    if not name or any(mark in name for mark in "@#") or not name.isprintable():
        raise ConfigError(f"{where[:80]!r}: the name of an upstream holds no @, no # and no line break")
    if own.api_keys is not None:
        keys: list[Secret | None] = [
            secret_key(each, f"{where}.api_keys[{number}]") for number, each in enumerate(own.api_keys)
        ]
    else:
        keys = [None if own.api_key is None else secret_key(own.api_key, f"{where}.api_key")]
    if None in keys and not is_loopback(urlsplit(own.base_url).hostname or ""):
        raise ConfigError(f"no key for {own.base_url}: set {where}.api_key in siafu.toml")
    upstream = Upstream(
        name=name,
        base_url=checked_base_url(own.base_url, f"{where}.base_url"),
        headers=resolved(own.headers, f"{where}.headers"),
        timeouts=timeouts(own, own.first_byte_seconds),
        key_header=own.key_header,
        query=own.query,
        proxy=_proxy(own.proxy, f"{where}.proxy"),
        ca_file=own.ca_file,
    )
    return [
        way_to(
            settings, msgspec.structs.replace(upstream, key=key), own, id=name if len(keys) == 1 else f"{name}#{number}"
        )
        for number, key in enumerate(keys, 1)
    ]


def _proxy(given: str | None, where: str) -> str | Secret | None:
    """The address of a proxy; one that may hold a password is kept secret."""
    if given is None:
        return None
    text = resolve(given, where)
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{where} must look like http://host:3128; one with a password is set as env:NAME")
    return Secret(text) if refers(given) else text


def way_to(settings: Settings, upstream: Upstream, own: UpstreamSettings | None = None, *, id: str = "") -> Way:
    """The way to `upstream` under the settings' limits and prices, and its own."""
    shared, models = settings.limits, None if own is None else own.models
    return Way(
        upstream=upstream,
        id=id,
        limits=Limits(
            concurrency=(own and own.concurrency) or shared.concurrency,
            rpm=(own and own.rpm) or shared.rpm,
            max_wait=shared.max_wait_seconds,
        ),
        prices=configured_prices(settings, upstream.base_url),
        models=dict(zip(models, models, strict=True)) if isinstance(models, list) else models,
        tier=1 if own is None else own.tier,
        weight=1.0 if own is None else own.weight,
    )


def timeouts(own: EndpointSettings, first_byte: float | None = None) -> Timeouts:
    """The time limits of calls to an endpoint."""
    return Timeouts(connect=own.connect_seconds, first_byte=first_byte, idle=own.idle_seconds, total=own.total_seconds)


def configured_prices(settings: Settings, base_url: str | None = None) -> Prices:
    """The settings' prices, then list prices at `base_url`; None = where the settings call models first."""
    if base_url is None:
        first = next(iter(settings.upstreams.values()), None)
        base_url = first.base_url if first else "" if settings.simulated else settings.base_url()
    overrides = [
        Price(
            model=model,
            input=price.input,
            output=price.output,
            cached=price.cached,
            cache_write=price.cache_write,
            date=price.date.isoformat(),
            source="siafu.toml",
        )
        for model, price in settings.prices.items()
    ]
    return Prices(overrides, base_url=base_url)


def rules(settings: Settings) -> list[Rule]:
    """The routes. Raises: ConfigError for one to an upstream that is not there."""
    found = []
    for number, route in enumerate(settings.routes):
        use = tuple(target(text) for text in route.use)
        for each in use:
            if each.upstream and each.upstream not in settings.upstreams:
                near = difflib.get_close_matches(each.upstream, settings.upstreams, n=1)
                more = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(f"routes[{number}].use names the upstream {each.upstream!r}, which is not set{more}")
        found.append(
            Rule(
                use=use,
                models=_set(route.model),
                roles=_set(route.role),
                categories=_set(route.category),
                tenants=_set(route.tenant),
                priorities=_set(route.priority),
                min_tokens=route.min_input_tokens,
                max_tokens=route.max_input_tokens,
            )
        )
    return found


def _set(values: list[T] | None) -> frozenset[T] | None:
    return None if values is None else frozenset(values)
