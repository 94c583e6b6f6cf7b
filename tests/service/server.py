"""A server in the test's own event loop, on a real socket, over a scripted endpoint; and plain clients for it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from siafu.apps.batches.desk import BatchDesk
from siafu.border.listening import bind, bound_url
from siafu.border.secrets import Secret
from siafu.border.stopping import Stops
from siafu.config.serving import Departures, Serving
from siafu.config.swarms import SupportSwarm
from siafu.config.task_house import TaskHouse
from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import Endpoint, PlainReply, Reply, ReplyHead
from siafu.gateway.meter import MemoryLedger
from siafu.gateway.scripted import say
from siafu.observe.calls import CallContext
from siafu.observe.counts import Counts
from siafu.observe.scrape import Scrape
from siafu.pace.clock import SystemClock
from siafu.service.access import KeyRing
from siafu.service.app import App, Bounds
from siafu.service.server import serve
from siafu.store.client_keys import MIGRATIONS, ClientKeys
from siafu.store.database import Database

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "안녕"}]}


class Slow:
    """An endpoint that answers when `go` is set; `began` counts what came in, `cancelled` what was given up."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.came = asyncio.Event()
        self.contexts: list[CallContext] = []
        self.requests: list[ChatRequest] = []
        self.cancelled = 0

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        self.contexts.append(context)
        self.requests.append(request)
        self.came.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        answer = msgspec.structs.replace(say("네", finish="stop"), raw=b'{"whole":"answer"}', usd_pico=1_500_000)
        return PlainReply(answer, ReplyHead(upstream="behind", request_id="up-1"))


class Served:
    """url: without a path. stop: as a signal would."""

    def __init__(self, url: str, app: App, parts: Serving, ring: KeyRing, stops: Stops) -> None:
        self.url = url
        self.app = app
        self.parts = parts
        self.ring = ring
        self.stops = stops
        self.ended: asyncio.Task[bool] | None = None

    async def ask(
        self, path: str = "/v1/chat/completions", body: Any = None, *, method: str = "", **headers: Any
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON of one request; a POST of HELLO unless `body` is something else."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes) else json.dumps(HELLO if body is None else body).encode()
        method = method or ("POST" if path.endswith("completions") or body is not None else "GET")
        sent.setdefault("Content-Type", "application/json")
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, self.url + path, data=io.BytesIO(data) if method == "POST" else None, headers=sent
            ) as reply,
        ):
            text = await reply.read()
            found = {name.lower(): value for name, value in reply.headers.items()}
            return reply.status, found, json.loads(text) if text.startswith(b"{") else text.decode()


async def _listed() -> list[str]:
    return ["m", "other"]


@contextlib.asynccontextmanager
async def server(
    folder: Path,
    endpoint: Endpoint | None = None,
    *,
    bounds: Bounds | None = None,
    support: SupportSwarm | str = "not in this test",
    models: Callable[[], Awaitable[list[str]]] | None = None,
    grace: float = 5.0,
    spent: tuple[int, int] = (0, 0),
    identity_key: Secret | None = None,
    scrape_token: Secret | None = None,
    loopback: bool = True,
    batches: BatchDesk | None = None,
    tasks: TaskHouse | str = "not in this test",
) -> AsyncIterator[Served]:
    """Serve `endpoint`, ended with the block."""
    clock, accounts = SystemClock(), Accounts()
    database = await asyncio.to_thread(Database, folder / "keys.db", MIGRATIONS, what="keys", schema="client_keys")

    async def charged(key: str, since: float) -> tuple[int, int]:
        return spent

    parts = Serving(
        clock=clock,
        endpoint=endpoint or Slow(),
        accounts=accounts,
        departures=Departures(MemoryLedger()),
        keys=ClientKeys(database),
        spent=charged,
        models=models or _listed,
        support=support,
        identity_key=identity_key,
        tasks=tasks,
        simulated=False,
        scrape=Scrape(Counts(), clock),
        scrape_token=scrape_token,
        batches=batches,
    )
    ring = KeyRing(parts.keys, clock, open_until_first=loopback)
    await ring.refresh()
    app = App(parts, ring, bounds or Bounds(at_once=10), loopback=loopback)
    listening, stops, ready = bind("127.0.0.1", 0), Stops(asyncio.Event(), asyncio.Event()), asyncio.Event()
    served = Served(bound_url(listening), app, parts, ring, stops)

    async def run() -> bool:
        async with app.working():
            return await serve(app, listening, stops, grace=grace, on_ready=ready.set)

    served.ended = asyncio.create_task(run())
    try:
        await ready.wait()
        yield served
    finally:
        stops.asked.set()
        stops.hurry.set()
        async with asyncio.timeout(20):
            await served.ended
        await database.aclose()


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
