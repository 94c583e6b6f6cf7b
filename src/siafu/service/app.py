"""The API as an ASGI application: what is checked for every request, the routes, and how errors are told.

A plain ASGI callable: a handful of routes needs no framework, and whatever stands between the socket and the gateway
is paid for by each request.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext

import msgspec

from siafu.config.serving import Serving
from siafu.config.swarms import NAMESPACE
from siafu.errors import DeadlineReached, SiafuError
from siafu.observe import spans
from siafu.observe.calls import CallContext
from siafu.service import stored
from siafu.service.access import Holder, KeyRing, check_browser, priority_of
from siafu.service.budgets import Budgets, task_name
from siafu.service.completions import complete, event
from siafu.service.exchange import Exchange, Receive, Scope, Send
from siafu.service.metrics import METRICS, Metrics, Requests
from siafu.service.models import Models
from siafu.service.openapi import document
from siafu.service.patience import Patience
from siafu.service.reading import Asked, read_request
from siafu.service.refusals import INTERNAL, Refused, refusal
from siafu.service.route import Route, find
from siafu.service.routes import ALIVE, CHAT, MODELS, READY, ROUTES
from siafu.service.swarms import SUPPORT, customer_of, customer_request, request_name, send_result
from siafu.service.tasks.api import MAX_BODY as MAX_TASKS
from siafu.service.tasks.api import TaskApi
from siafu.store.client_keys import ClientKey

COMING_BACK = 5.0  # seconds until another process may have taken over
BODY_SECONDS = 60.0  # for a request's body to arrive
log = logging.getLogger("siafu")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """at_once: requests that are worked on or wait. queue_seconds: after which one that still waits to be sent is
    refused. seconds: for a whole request. held_bytes: of all bodies at once.
    """

    at_once: int
    queue_seconds: float = 30.0
    seconds: float = 600.0
    held_bytes: int = 512 * 2**20


class App:
    """hosts: names besides loopback by which clients reach the server. loopback: it listens there only."""

    def __init__(
        self, parts: Serving, ring: KeyRing, bounds: Bounds, *, hosts: Collection[str] = (), loopback: bool = True
    ) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._ring = ring
        self._bounds = bounds
        self._hosts = frozenset(name.lower() for name in hosts)
        self._loopback = loopback
        self._budgets = Budgets(parts.accounts, parts.spent, parts.clock)
        self._models = Models(parts.models, () if isinstance(parts.support, str) else (SUPPORT,), parts.clock)
        self._tasks = (
            parts.tasks if isinstance(parts.tasks, str) else TaskApi(parts.tasks, parts.identity_key, parts.clock)
        )
        self._running: dict[str, Exchange] = {}  # by task name
        self._queued = Patience(bounds.queue_seconds, "queue")
        self._arriving = Patience(BODY_SECONDS, "body")
        self._known_caller = ("", "")
        self._held = 0  # bytes
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False
        parts.departures.left = self._queued.end
        self._requests = Requests(list(dict.fromkeys(route.path for route in ROUTES)))
        self._metrics = Metrics(parts.scrape, parts.scrape_token, parts.clock, lambda: ring.open)
        parts.scrape.add(self._requests.families)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Batches are worked on while the block runs, those that an earlier process left too. Raises: StoreError."""
        if self._parts.batches is None:
            yield
            return
        async with self._parts.batches.open(stored.Keys(self._ring, self._budgets)):
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        x = Exchange(scope, receive, send, self._clock.now())
        try:
            await self._serve(x)
        except Refused as refused:
            await self._tell(x, refused)
        except SiafuError as error:
            await self._tell(x, refusal(error))
        except asyncio.CancelledError:
            if not x.why:
                raise
            await self._tell(x, self._cut(x))
        except Exception:
            log.exception("%s failed", x.id)
            await self._tell(x, Refused(500, INTERNAL, code="internal_error"))
        finally:
            x.end()
            self._requests.ended(scope["path"], x.status, self._clock.now() - x.arrived)

    async def _serve(self, x: Exchange) -> None:
        path, method = x.scope["path"], x.scope["method"]
        x.check_headers()
        self._check_browser(x.header(b"host"), x.header(b"origin"))
        if path == CHAT and method == "POST":
            await self._chat(x)
        elif path in (ALIVE, READY) and method == "GET":
            await self._health(x, ready=path == READY)
        elif path == METRICS and method == "GET":
            await self._metrics.answer(x)
        else:
            holder = self._ring.admit(x.headers(b"authorization"), x.address)
            key = None if holder is None else holder.key
            route, name = find(ROUTES, method, path)
            if holder is not None:
                holder.check(route.scope)
            if route.path == MODELS:
                await x.answer(msgspec.json.encode({"object": "list", "data": await self._models.all(key)}))
            elif route.name == "getModel":
                await x.answer(msgspec.json.encode(await self._models.one(name, key)))
            elif route.name == "describe":
                await x.answer(msgspec.json.encode(document()))
            elif route.name in stored.HANDLES:
                await self._ask_stored(x, route, name, holder)
            else:
                await self._ask_tasks(x, route, name, holder)

    async def _ask_stored(self, x: Exchange, route: Route, id: str, holder: Holder | None) -> None:
        """What is about files and batches. Changes count for the key's limits, as asking does."""
        desk = self._parts.batches
        if desk is None:
            raise Refused(503, "files and batches are not set up here", code="not_set_up", again=False)
        if route.body is not None:
            _check_json(x)
        counted = None if route.method != "POST" else holder
        priority = priority_of(x.header(b"x-siafu-priority"), None if holder is None else holder.key)
        with (
            self._place(x, x.id, priority, stored.HELD),
            nullcontext() if counted is None else counted.request(x.arrived),
        ):
            if counted is not None:
                await counted.join(x.arrived)
            await stored.HANDLES[route.name](x, desk, "" if holder is None else holder.key.id, id)

    def _check_browser(self, host: str, origin: str) -> None:
        if (host, origin) != self._known_caller:  # mostly the same as before
            check_browser(host, origin, self._hosts, loopback=self._loopback)
            self._known_caller = host, origin

    async def _health(self, x: Exchange, *, ready: bool) -> None:
        if ready and self.draining:
            raise self._stopping()
        await x.answer(b'{"status":"ok"}')

    async def _chat(self, x: Exchange) -> None:
        """One completion, from admission to its end."""
        holder = self._ring.admit(x.headers(b"authorization"), x.address)
        if holder is not None:
            holder.check("submit")
        _check_json(x)
        key = None if holder is None else holder.key
        priority = priority_of(x.header(b"x-siafu-priority"), key)
        task = task_name(key, x.id)
        with self._place(x, task, priority), nullcontext() if holder is None else holder.request(x.arrived):
            if holder is not None:
                await holder.join(x.arrived)
            self._arriving.begin(x.id, x)
            asked = read_request(await x.body())
            self._arriving.end(x.id)
            model = asked.request.model
            if key is not None and not key.terms.allows(model):
                message = f"this client key may not use the model {model[:100]!r}; see GET {MODELS}"
                raise Refused(403, message, code="model_not_allowed", param="model", again=False)
            account = await self._budgets.account(key)
            self._queued.begin(task, x, priority)
            if model.startswith(NAMESPACE):
                await self._ask_swarm(x, asked, key, account)
                return
            context = CallContext(
                run=account,
                task=task,
                agent="" if key is None else key.id,
                tenant="" if key is None else key.terms.tenant,
                user="" if key is None else key.terms.customer,
                deadline=x.arrived + self._bounds.seconds,
                priority=priority,
            )
            with spans.under(x.header(b"traceparent")):
                await complete(x, self._parts.endpoint, asked, context)

    async def _ask_swarm(self, x: Exchange, asked: Asked, key: ClientKey | None, account: str) -> None:
        if asked.request.model != SUPPORT:
            message = f"there is no swarm {asked.request.model[:100]!r}; there is {SUPPORT}"
            raise Refused(404, message, code="model_not_found", param="model", again=False)
        support = self._parts.support
        if isinstance(support, str):
            raise Refused(503, f"{SUPPORT} is not set up: {support}", code="not_set_up", again=False)
        now = self._clock.wall()
        customer = customer_of(x, key, self._parts.identity_key, now)
        once = x.header(b"idempotency-key")
        id = task_name(key, request_name(key, customer, once) if once else x.id)
        request = customer_request(asked.request, customer, id)
        self._queued.end(task_name(key, x.id))  # the swarm's own calls have their places in the queue
        try:
            with spans.under(x.header(b"traceparent")):
                async with asyncio.timeout(self._bounds.seconds):
                    result = await support.ask(request, run=account, tenant="" if key is None else key.terms.tenant)
        except TimeoutError:
            raise DeadlineReached(f"{SUPPORT} had not answered after {self._bounds.seconds:g} s") from None
        await send_result(x, result, asked, now)

    async def _ask_tasks(self, x: Exchange, route: Route, id: str, holder: Holder | None) -> None:
        """What is about tasks. A stream that is answered has no place among the requests that are worked on."""
        if isinstance(self._tasks, str):
            raise Refused(503, "tasks are not set up here", code="not_set_up", again=False, log=self._tasks)
        if route.body is not None:
            _check_json(x)
        size = x.size(MAX_TASKS)
        priority = priority_of(x.header(b"x-siafu-priority"), None if holder is None else holder.key)
        with self._place(x, x.id, priority, size), nullcontext() if holder is None else holder.request(x.arrived):
            if holder is not None:
                await holder.join(x.arrived)
            self._arriving.begin(x.id, x)
            body = await x.body(MAX_TASKS)
            self._arriving.end(x.id)
            stream = await self._tasks.answer(x, route, id, holder, body)
        if stream is not None:
            await stream.run()

    @contextmanager
    def _place(self, x: Exchange, task: str, priority: int, size: int | None = None) -> Iterator[None]:
        """A place among the requests that are worked on or wait; when all are taken, that of one of a lower priority
        which was not sent yet. size: bytes of memory that it may take, None = as its body. Raises: Refused when there
        is none.
        """
        if self.draining:
            raise self._stopping()
        bounds = self._bounds
        size = x.size() if size is None else size
        full = len(self._running) >= bounds.at_once and not self._queued.make_room(priority)
        if full or (self._held + size > bounds.held_bytes and self._running):
            raise self._full()
        self._running[task] = x
        self._held += size
        self._idle.clear()
        try:
            yield
        finally:
            self._arriving.end(x.id)
            self._queued.end(task)
            self._held -= size
            del self._running[task]
            if not self._running:
                self._idle.set()

    def _full(self, why: str = "") -> Refused:
        waiting = len(self._queued)
        message = (
            f"{why}{len(self._running)} requests are being worked on or wait ({waiting}), as many as may; try again"
        )
        return Refused(429, message, code="queue_full", wait=1.0 + math.log2(1 + waiting))

    def _stopping(self, what: str = "takes no new requests") -> Refused:
        message = f"this server is stopping and {what}; try again, another may have taken over"
        return Refused(503, message, code="stopping", wait=COMING_BACK)

    def _cut(self, x: Exchange) -> Refused:
        if x.why == "queue":
            message = f"the request waited {self._bounds.queue_seconds:g} s and could not be sent; try again"
            return Refused(429, message, code="queue_timeout", wait=COMING_BACK)
        if x.why == "room":
            return self._full("this request made room for one of a higher priority; ")
        if x.why == "body":
            return Refused(408, f"the body did not arrive within {self._arriving.seconds:g} s", code="timeout")
        return self._stopping("ended this request before its time")

    async def _tell(self, x: Exchange, refused: Refused) -> None:
        """Say it to the client as far as that is possible; one that has gone is told nothing."""
        x.end()
        if refused.log:
            log.error("%s: %s", x.id, refused.log)
        if x.why == "gone" or (x.started and not x.events):  # half of a file: the connection is closed
            return
        if x.started:
            await x.write(event(refused.body()), more=False)
        else:
            await x.refuse(refused, [(b"connection", b"close")] if self.draining else [])

    async def drain(self, seconds: float, hurry: asyncio.Event) -> bool:
        """Take nothing new, and wait until everything has ended; after `seconds`, or once `hurry` is set, what still
        runs is ended. True when nothing had to be.
        """
        self.draining = True
        if not isinstance(self._tasks, str):
            self._tasks.listeners.close()
        halting = (
            None if self._parts.batches is None else asyncio.create_task(self._parts.batches.drain(seconds, hurry))
        )
        ends = [asyncio.ensure_future(each.wait()) for each in (self._idle, hurry)]
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for each in ends:
            each.cancel()
        left = list(self._running.values())
        for x in left:
            x.cancel("stop")
        if left:
            await asyncio.wait([asyncio.ensure_future(self._idle.wait())], timeout=5.0)
        if halting is not None:
            await halting
        return not left


def _check_json(x: Exchange) -> None:
    """Raises: Refused. A page of another site cannot send JSON without asking first."""
    if x.header(b"content-type").partition(";")[0].strip().lower() != "application/json":
        message = "send the body as JSON, with the header Content-Type: application/json"
        raise Refused(415, message, code="unsupported_media_type", again=False)
