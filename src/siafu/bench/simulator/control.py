"""What happened, and what shall go wrong next: the endpoint's own words, under `/_sim/`."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from siafu.bench.simulator.faults import KINDS, Faults, parse_script
from siafu.bench.simulator.limits import Settings
from siafu.bench.simulator.server import MOST_BODY_BYTES, Endpoint
from siafu.errors import ConfigError

PAGE = 10_000


def application(endpoint: Endpoint) -> web.Application:
    """The endpoint and its control routes."""
    app = web.Application(client_max_size=MOST_BODY_BYTES)
    control = _Control(endpoint)
    app.router.add_post("/v1/chat/completions", endpoint.completions)
    app.router.add_get("/v1/models", endpoint.models)
    app.router.add_get("/_sim/stats", control.stats)
    app.router.add_get("/_sim/requests", control.requests)
    app.router.add_get("/_sim/faults", control.faults)
    app.router.add_post("/_sim/faults", control.set_faults)
    app.router.add_post("/_sim/limits", control.set_limits)
    app.router.add_post("/_sim/reset", control.reset)
    app.router.add_route("*", "/{rest:.*}", endpoint.unknown)
    return app


class _Control:
    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def stats(self, request: web.Request) -> web.Response:
        return _json({"simulated": True, **self._endpoint.records.stats()})

    async def requests(self, request: web.Request) -> web.Response:
        """`since`: only later ones; `limit`: at most so many (10,000). `next` is the `since` of the next page."""
        try:
            since, limit = int(request.query.get("since", "0")), int(request.query.get("limit", str(PAGE)))
        except ValueError:
            return _wrong("since and limit must be integers")
        found = self._endpoint.records.since(max(0, since), max(1, min(limit, PAGE)))
        return _json({"requests": found, "next": found[-1].n if found else since})

    async def faults(self, request: web.Request) -> web.Response:
        faults = self._endpoint.faults
        return _json({"rates": faults.rates, "rules": faults.script.left(), "kinds": KINDS})

    async def set_faults(self, request: web.Request) -> web.Response:
        """Replace the script ({"rules": [...]} or a list), and the rates when {"rates": "429:5%"} is given."""
        body = await request.read()
        try:
            rates, rules = parse_script(body, "faults")
            self._endpoint.faults = Faults(self._endpoint.faults.rates if rates is None else rates, rules)
        except ConfigError as error:
            return _wrong(error.message)
        return _json({"rules": len(rules)})

    async def set_limits(self, request: web.Request) -> web.Response:
        """New limits, with full buckets: any of rpm, tpm, max_concurrency, slots, burst; what is left away stays."""
        current = msgspec.to_builtins(self._endpoint.limits.settings)
        try:
            given = msgspec.json.decode(await request.read(), type=dict[str, Any])
            settings = msgspec.convert({**current, **given}, Settings)
        except msgspec.MsgspecError as error:
            return _wrong(str(error))
        self._endpoint.hold(settings)
        return _json(settings)

    async def reset(self, request: web.Request) -> web.Response:
        self._endpoint.reset()
        return _json({"reset": True})


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def _wrong(message: str) -> web.Response:
    return _json({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}, 400)
