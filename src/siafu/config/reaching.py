"""Whether endpoints can be reached, take their keys and offer the models; and when not, why and what to do. For the
doctor, and for a run in which nothing was answered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from siafu.border.secrets import redact
from siafu.border.text import preview
from siafu.config.advice import Row, advice, clock_row, model_row, path_of, wrong_maker
from siafu.config.settings import Settings
from siafu.config.upstreams import rules, usable_ways
from siafu.errors import (
    CallTimeout,
    ConfigError,
    MalformedReply,
    ModelError,
    RequestRefused,
    SiafuError,
    UpstreamFault,
)
from siafu.gateway.client import Way
from siafu.gateway.probe import Offer, obstacle
from siafu.gateway.transport import Transport
from siafu.gateway.upstream import Upstream
from siafu.pace.clock import Clock, SystemClock

SIMULATED = "none is configured, so a SIMULATED one answers: no model runs, nothing is billed"
_ROLES: tuple[Literal["default", "strong", "cheap"], ...] = ("default", "strong", "cheap")


async def explained(settings: Settings, models: Collection[str] = ()) -> list[str]:
    """What keeps endpoints from answering, and what to do; empty when nothing is seen. models: that were asked; none =
    those of the settings.
    """
    rows = await endpoint_rows(settings, models=models)
    return [f"{row.found}{' -> ' if row.advice else ''}{row.advice}" for row in rows if row.state != "ok"]


async def endpoint_rows(settings: Settings, clock: Clock | None = None, *, models: Collection[str] = ()) -> list[Row]:
    """Whether endpoints can be reached, take their keys and offer the models (as in `explained`). Costs nothing."""
    if settings.simulated:
        real = "for a real one set OPENAI_API_KEY, or SIAFU_BASE_URL and SIAFU_MODEL"
        return [Row(check="endpoint", state="ok", found=SIMULATED, advice=real)]
    try:
        ways = usable_ways(settings)
        rules(settings)
    except ConfigError as error:
        return [Row(check="endpoint", state="fail", found=error.message)]
    rows: list[Row] = []
    offered: list[str] | None = None
    for way in ways:
        found, offer = await _way_rows(way, clock or SystemClock())
        rows += found
        if offer is not None:
            offered = [*(offered or ()), *(offer.models if way.models is None else way.models)]
            rows += _unknown_names(way, offer.models)
    return rows if offered is None else [*rows, *_model_rows(settings, models, list(dict.fromkeys(offered)))]


async def _way_rows(way: Way, clock: Clock) -> tuple[list[Row], Offer | None]:
    """What one upstream says to one key, and its models; None when it could not be asked."""
    upstream, check = way.upstream, f"endpoint {way.id}".rstrip()
    base_url = upstream.base_url
    if stranger := wrong_maker(base_url, upstream.key):
        return [Row(check=check, state="fail", found=f"{base_url}: nothing was sent", advice=stranger)], None
    rows = _proxy_rows(upstream, way.id)
    try:
        offer = await _asked(upstream, clock)
    except (ConfigError, ModelError) as error:
        return [*rows, await _failed(check, upstream, error, clock)], None
    found = f"{base_url} lists its models in {offer.seconds * 1000:,.0f} ms, perhaps without looking at the key"
    if upstream.key is None:
        found = found.replace("looking at the key", "asking for a key")
    rows += [
        Row(check=check, state="ok", found=f"{found}; it offers {len(offer.models):,} models"),
        clock_row(offer.ahead),
    ]
    return rows, offer


async def _asked(upstream: Upstream, clock: Clock) -> Offer:
    """The models of an upstream. Raises: ConfigError, ModelError."""
    transport = Transport(upstream, clock)
    try:
        return await transport.models()
    finally:
        await transport.aclose()


def _proxy_rows(upstream: Upstream, id: str) -> list[Row]:
    proxy = upstream.proxy_for(upstream.base_url)
    if proxy is None:
        return []
    told = f"calls go through {preview(redact(proxy), 100)}  (from {upstream.proxy_from()})"
    return [Row(check=f"proxy {id}".rstrip(), state="ok", found=told)]


async def _failed(check: str, upstream: Upstream, error: SiafuError, clock: Clock) -> Row:
    """Why an upstream does not list its models, and what to do."""
    base_url, more, found = upstream.base_url, "", error.message
    if isinstance(error, ModelError):
        more = advice(error, base_url, upstream.key)
        if _no_answer(error) and (blocked := await obstacle(upstream)):
            found, more = blocked, ""
        elif _elsewhere(error) and (place := await _api_nearby(upstream, clock)):
            more = path_of(place)
    return Row(check=check, state="fail", found=f"{base_url}: {found}", advice=more)


def _no_answer(error: ModelError) -> bool:
    """Whether the other side may not speak HTTP with us at all."""
    if isinstance(error, CallTimeout):
        return error.phase == "connect"
    return error.status == 400 or (error.status is None and isinstance(error, UpstreamFault))


def _elsewhere(error: ModelError) -> bool:
    """Whether the API may be at another path of the same host."""
    if isinstance(error, MalformedReply):
        return error.web_page
    return isinstance(error, RequestRefused) and error.status in (404, 405)


async def _api_nearby(upstream: Upstream, clock: Clock) -> str:
    """The base URL at the same origin, where the key may go, that does list models; empty when none of a few does."""
    base = upstream.base_url
    root = f"{urlsplit(base).scheme}://{urlsplit(base).netloc}"
    for place in dict.fromkeys((base.removesuffix("/v1"), f"{base}/v1", f"{root}/v1", f"{root}/api/v1")):
        if place != base:
            with contextlib.suppress(ModelError):
                await _asked(msgspec.structs.replace(upstream, base_url=place), clock)
                return place
    return ""


def _unknown_names(way: Way, offered: Sequence[str]) -> list[Row]:
    """A row for each name that the settings give an upstream's model and the upstream does not list."""
    names = [] if way.models is None else [name for name in way.models.values() if name not in offered]
    return [model_row(name, [f"upstreams.{way.upstream.name}"], offered) for name in names]


def _model_rows(settings: Settings, models: Collection[str], offered: Sequence[str]) -> list[Row]:
    try:
        wanted = {model: ["this"] for model in sorted(models)} or wanted_models(settings)
    except ConfigError as error:
        some = f"it offers {', '.join(preview(name, 60) for name in offered[:5])}" if offered else ""
        return [Row(check="model", state="fail", found=error.message, advice=some)]
    return [model_row(model, roles, offered) for model, roles in wanted.items()]


def wanted_models(settings: Settings) -> dict[str, list[str]]:
    """The models that would be asked, with their roles. Raises: ConfigError."""
    found: dict[str, list[str]] = {}
    for role in _ROLES:
        found.setdefault(settings.model(role), []).append(role)
    return found
