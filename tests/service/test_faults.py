"""What a client of `siafu serve` sees when something behind it, or within it, goes wrong."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from bad_network import Weather, bad_network
from gateway.conftest import KEY, Bench
from gateway.fake_upstream import Answer, error, http, http_chunk, reset_after, upstream
from gateway.faulty import HEAD_BYTES, PAGE, SAID, SAYS, flood, good, held, later, until_held
from siafu.errors import StoreError
from siafu.gateway.chat import ChatRequest
from siafu.gateway.client import Gateway
from siafu.gateway.endpoint import Reply
from siafu.gateway.upstream import Timeouts
from siafu.observe.calls import CallContext
from siafu.service.app import Bounds
from siafu.service.refusals import INTERNAL

from .server import HELLO, Served, server

CHAT = "/v1/chat/completions"


class Row(NamedTuple):
    """status, code: what a call is answered; with 200, the code is that of a stream's last event."""

    name: str
    answer: Answer
    status: int
    code: str
    weather: Weather | None = None


ROWS = [
    Row("hang before the headers", good, 504, "call_timeout", Weather(passes=0)),
    Row("hang within the body", good, 504, "call_timeout", Weather(passes=HEAD_BYTES + 5)),
    Row("reset before the headers", good, 502, "upstream_fault", Weather(passes=0, then="reset")),
    Row("reset within the body", good, 502, "upstream_fault", Weather(passes=HEAD_BYTES + 5, then="reset")),
    Row("page with 200", http(PAGE, content_type="text/html"), 502, "malformed_reply"),
    Row("redirect", http(b"", 307, location="http://127.0.0.1:1/"), 502, "request_refused"),
    Row("siafu's key", error(401, f"no key {KEY}", code="invalid_api_key"), 502, "access_refused"),
    Row("another's words", error(500, "engine died"), 502, "upstream_fault"),
    Row("hang of a stream", later(SAYS), 200, "call_timeout"),
    Row("reset of a stream", reset_after(SAID), 200, "upstream_fault"),
    Row("garbage in a stream", later(b"zz\r\n"), 200, "upstream_fault"),
    Row("junk in a stream", later(http_chunk(b"data: {\n\n")), 200, "malformed_reply"),
    Row("a stream without an end", flood(SAID, SAYS), 200, "call_timeout"),
]


class Switch:
    """An endpoint that asks the gateway of the row that a request's model names."""

    def __init__(self) -> None:
        self.gateways: dict[str, Gateway] = {}

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        return await self.gateways[request.model].open(request, context)


async def wrong(row: Row, served: Served, switch: Switch, *, stream: bool) -> list[object]:
    """What is not as the row says in the answer to one call."""
    model = f"{row.name}, stream={stream}"
    async with upstream([row.answer]) as gw, bad_network(gw.port, row.weather) as way:
        bench = Bench(way.base_url, timeouts=Timeouts(idle=0.3, total=0.8))
        switch.gateways[model] = bench.gateway
        async with aiohttp.ClientSession() as session:
            body = {**HELLO, "model": model, "stream": stream}
            async with session.post(served.url + CHAT, json=body) as reply:
                text = (await reply.read()).decode()
        await bench.gateway.aclose()
        assert await gw.all_closed()
    last = text
    if row.status == 200:
        first, *_, last, end = text.split("\n\n")
        assert "Par" in first and end == "" and "[DONE]" not in text
    found = json.loads(last.removeprefix("data: "))["error"]
    assert set(found) == {"message", "type", "param", "code"}
    seen: list[object] = [word for word in ("127.0.0.1", KEY, "Traceback", "Client", "/work") if word in text]
    return [model, *seen, found] if seen or (reply.status, found["code"]) != (row.status, row.code) else []


async def test_sec37_a_client_sees_every_fault_behind_as_an_error_and_nothing_of_where_it_was(tmp_path: Path) -> None:
    switch = Switch()
    async with server(tmp_path, switch, bounds=Bounds(at_once=100)) as served:
        assert (await served.ask("/health/liveness"))[0] == 200
        before = held()
        plain = [wrong(row, served, switch, stream=False) for row in ROWS if row.status != 200]
        calls = [*plain, *(wrong(row, served, switch, stream=True) for row in ROWS)]
        assert [found for found in await asyncio.gather(*calls) if found] == []
        await until_held(before)
        gateway = Bench("http://127.0.0.1:1/v1").gateway
        switch.gateways["m"] = gateway
        status, _, body = await served.ask()
        assert (status, body["error"]["code"]) == (502, "unreachable") and "127.0.0.1" not in str(body)
        await gateway.aclose()


SECRETS = ("/srv/siafu", "SELECT hash", "sk-provider", "line 42")
FAILURES: list[Exception] = [
    StoreError("/srv/siafu/serve.db: SELECT hash FROM client_key: disk I/O error"),
    sqlite3.OperationalError("no such table: SELECT hash FROM /srv/siafu"),
    RuntimeError("File /srv/siafu/app.py, line 42: SELECT hash; sk-provider-0123456789abcdef"),
    PermissionError(13, "Permission denied", "/srv/siafu/serve.db"),
    KeyError("/srv/siafu"),
    RecursionError("/srv/siafu"),
]


@pytest.mark.parametrize(
    "place", ["_ring.admit", "_budgets.account", "_models.all", "_models.one", "_parts.endpoint.open"]
)
async def test_sec37_whatever_fails_within_tells_a_client_a_code_and_a_request_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    failing = iter(FAILURES)

    def fail(*args: object, **options: object) -> None:
        raise next(failing)

    routes = {"_models.all": "/v1/models", "_models.one": "/v1/models/m"}
    async with server(tmp_path) as served:
        *way, name = place.split(".")
        monkeypatch.setattr(attrgetter(".".join(way))(served.app), name, fail)
        for failure in FAILURES:
            caplog.clear()
            status, headers, body = await served.ask(routes.get(place, CHAT))
            assert (status, body["error"]["code"], body["error"]["message"]) == (500, "internal_error", INTERNAL)
            assert not [secret for secret in SECRETS if secret in str(body) + str(headers)]
            assert headers["x-request-id"] in caplog.text and "/srv/siafu" in caplog.text, failure
        assert next(failing, None) is None
