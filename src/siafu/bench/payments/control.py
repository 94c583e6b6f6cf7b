"""What happened, and what shall go wrong next: the simulator's own words, under `/_payments/`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from aiohttp import web

from siafu.bench.payments.bank import MARK, Bank
from siafu.bench.payments.faults import KINDS, parse_script
from siafu.bench.payments.lines import MOST_BODY_BYTES, Line
from siafu.errors import ConfigError, StoreError

PAGE = 10_000


def application(bank: Bank) -> web.Application:
    """The provider's API and the control routes. It closes the bank at its end."""
    app = web.Application(client_max_size=MOST_BODY_BYTES, middlewares=[_unwritable])
    control = _Control(bank)
    app.router.add_post("/v1/refunds", bank.refund)
    app.router.add_get("/v1/refunds", bank.lookup)
    app.router.add_get("/v1/capabilities", bank.capabilities)
    app.router.add_get("/_payments/stats", control.stats)
    app.router.add_get("/_payments/ledger", control.ledger)
    app.router.add_get("/_payments/requests", control.requests)
    app.router.add_get("/_payments/faults", control.faults)
    app.router.add_post("/_payments/faults", control.set_faults)
    app.router.add_route("*", "/{rest:.*}", bank.unknown)

    async def close(_: web.Application) -> None:
        await bank.close()

    app.on_cleanup.append(close)
    return app


@web.middleware
async def _unwritable(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except StoreError as error:
        return _wrong(500, "ledger", error.message)


class _Control:
    def __init__(self, bank: Bank) -> None:
        self._bank = bank

    async def stats(self, request: web.Request) -> web.Response:
        mode = self._bank.options.mode
        return _json({"simulated": True, "mode": mode, "checks_sums": False, **self._bank.ledger.book.stats()})

    async def ledger(self, request: web.Request) -> web.Response:
        """Every effect, see `_page`."""
        return _page(request, "effects", self._bank.ledger.book.effects)

    async def requests(self, request: web.Request) -> web.Response:
        """Every request, with what was answered, see `_page`."""
        return _page(request, "requests", self._bank.ledger.book.requests)

    async def faults(self, request: web.Request) -> web.Response:
        faults = self._bank.faults
        return _json({"rates": faults.rates, "rules": faults.script.left(), "kinds": KINDS})

    async def set_faults(self, request: web.Request) -> web.Response:
        """Replace the script by {"rules": [...]}, and the rates when {"rates": "lost:5%"} is given."""
        try:
            self._bank.faults = parse_script(await request.read(), "faults", self._bank.faults.rates)
        except ConfigError as error:
            return _wrong(400, "invalid_request", error.message)
        return _json({"rules": len(self._bank.faults.script.lines)})


def _page(request: web.Request, name: str, lines: Sequence[Line]) -> web.Response:
    """`since`: only those with a greater n; `limit`: at most so many (10,000). `next`: the `since` of the next page."""
    try:
        since, limit = int(request.query.get("since", "0")), int(request.query.get("limit", str(PAGE)))
    except ValueError:
        return _wrong(400, "invalid_request", "since and limit must be integers")
    since = max(0, since)
    found = lines[since : since + max(1, min(limit, PAGE))]
    return _json({name: found, "next": since + len(found)})


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json", headers=MARK)


def _wrong(status: int, code: str, message: str) -> web.Response:
    return _json({"error": {"code": code, "message": message}}, status)
