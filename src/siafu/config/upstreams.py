"""The ways to models that the settings name: upstreams, their keys, and the rules that choose among them."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from siafu.border.secrets import Secret
from siafu.border.urls import checked_base_url, is_loopback
from siafu.config.sections import EndpointSettings, UpstreamSettings
from siafu.config.settings import Settings, refers, resolve, resolved, secret_key
from siafu.config.simulated import simulated
from siafu.config.upstream_keys import NamedKey, named_keys
from siafu.errors import ConfigError
from siafu.gateway.client import Way
from siafu.gateway.limits import Limits
from siafu.gateway.pricing import Price, Prices
from siafu.gateway.routing import Rule, target
from siafu.gateway.upstream import Timeouts, Upstream

T = TypeVar("T")


def configured_ways(settings: Settings) -> list[Way]:
    """The upstreams and keys that the settings name. Raises: ConfigError when one of them cannot be used."""
    keys = named_keys(settings)
    if settings.upstreams:
        return [way for name, own in settings.upstreams.items() for way in _ways_of(settings, name, own, keys[name])]
    upstream = Upstream(
        name="default",
        base_url=settings.base_url(),
        headers=resolved(settings.endpoint.headers, "endpoint.headers"),
        timeouts=timeouts(settings.endpoint),
    )
    return _with_keys(settings, upstream, None, keys["default"])


def usable_ways(settings: Settings) -> list[Way]:
    """The same, at least one. Raises: ConfigError."""
    ways = configured_ways(settings)
    if not ways:
        raise ConfigError("every key is disabled: siafu upstream-keys list")
    return ways


@contextlib.asynccontextmanager
async def open_ways(settings: Settings) -> AsyncIterator[list[Way]]:
    """The same; when the settings name no endpoint, the way to a simulated one that is there while the block runs."""
    if not settings.simulated:
        yield usable_ways(settings)
        return
    async with simulated() as base_url:
        yield [way_to(settings, Upstream(name="simulated", base_url=base_url, timeouts=timeouts(settings.endpoint)))]


def _ways_of(settings: Settings, name: str, own: UpstreamSettings, keys: Sequence[NamedKey]) -> list[Way]:
    """One way for each key of an upstream."""
    where = f"upstreams.{name}"
    if not name or any(mark in name for mark in "@#") or not name.isprintable():
        raise ConfigError(f"{where[:80]!r}: the name of an upstream holds no @, no # and no line break")
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
    return _with_keys(settings, upstream, own, keys)


def _with_keys(
    settings: Settings, upstream: Upstream, own: UpstreamSettings | None, keys: Sequence[NamedKey]
) -> list[Way]:
    """One way for each key of an upstream that is in use."""
    where, ways = "endpoint" if own is None else f"upstreams.{upstream.name}", []
    for key in keys:
        if key.used:
            secret = None if key.given is None else secret_key(key.given, _place(where, own, key))
            if secret is None and not is_loopback(urlsplit(upstream.base_url).hostname or ""):
                first = "set OPENAI_API_KEY, or" if own is None else "set"
                raise ConfigError(f"no key for {upstream.base_url}: {first} {where}.api_key in siafu.toml")
            id = f"{upstream.name}#{key.number}" if len(keys) > 1 else "" if own is None else upstream.name
            ways.append(way_to(settings, msgspec.structs.replace(upstream, key=secret), own, id=id))
    return ways


def _place(where: str, own: UpstreamSettings | None, key: NamedKey) -> str:
    """Where a key was named, for messages."""
    several = own.api_keys if own is not None else None
    if key.number > len(several or ("one",)):
        return f"{where}, as added,"
    return f"{where}.api_keys[{key.number - 1}]" if several else f"{where}.api_key"


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
    """The way to `upstream` under the settings' limits and prices, and its own. Where nothing shares the limits among
    the processes that have them in common, this process's fair part of them.
    """
    shared, models = settings.limits, None if own is None else own.models
    alone = settings.redis_url is None and not settings.simulated
    parts = shared.processes if alone else 1
    rpm, tpm = (own and own.rpm) or shared.rpm, (own and own.tpm) or shared.tpm
    return Way(
        upstream=upstream,
        id=id,
        limits=Limits(
            concurrency=max(1, ((own and own.concurrency) or shared.concurrency) // parts),
            policy=shared.policy,
            ramp=shared.ramp_seconds,
            interactive=shared.interactive,
            rpm=None if rpm is None else rpm / parts,
            tpm=None if tpm is None else tpm / parts,
            max_wait=shared.max_wait_seconds,
            processes=shared.processes,
        ),
        prices=configured_prices(settings, upstream.base_url),
        models=dict(zip(models, models, strict=True)) if isinstance(models, list) else models,
        tier=1 if own is None else own.tier,
        weight=1.0 if own is None else own.weight,
        prompt_cache=(own or settings.endpoint).prompt_cache.wanted(),
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
    return [rule(settings, number) for number in range(len(settings.routes))]


def rule(settings: Settings, number: int) -> Rule:
    """One route. Raises: ConfigError when it is to an upstream that is not there."""
    route = settings.routes[number]
    use = tuple(target(text) for text in route.use)
    for each in use:
        if each.upstream and each.upstream not in settings.upstreams:
            near = difflib.get_close_matches(each.upstream, settings.upstreams, n=1)
            more = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"routes[{number}].use names the upstream {each.upstream!r}, which is not set{more}")
    return Rule(
        use=use,
        models=_set(route.model),
        roles=_set(route.role),
        categories=_set(route.category),
        tenants=_set(route.tenant),
        priorities=_set(route.priority),
        min_tokens=route.min_input_tokens,
        max_tokens=route.max_input_tokens,
    )


def _set(values: list[T] | None) -> frozenset[T] | None:
    return None if values is None else frozenset(values)
