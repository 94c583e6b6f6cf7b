"""`GET /metrics`: who may read them, and the page; in `siafu serve`, and by itself beside a worker.

What is told names models, upstreams, tools and money, so it is for this machine alone, while nobody needs a key there,
or for who sends a token. A proxy on this machine would make everybody look local: its requests say that they were
passed on, and are refused.
"""

from __future__ import annotations

import hmac
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from functools import partial

from siafu.border.secrets import Secret
from siafu.border.urls import is_loopback
from siafu.observe.counts import CALL_SECONDS
from siafu.observe.figures import Family, Histogram, Labels
from siafu.observe.scrape import Scrape
from siafu.pace.bucket import Bucket
from siafu.pace.clock import Clock
from siafu.service.access import host_of
from siafu.service.exchange import Exchange, Receive, Scope, Send
from siafu.service.refusals import Refused
from siafu.service.route import Route, find, pattern

METRICS = "/metrics"
SCRAPED = Route(
    method="GET", path=METRICS, name="readMetrics", says={200: str},
    summary="Metrics for Prometheus: for this machine, or with SIAFU_METRICS_TOKEN as the bearer",
)  # fmt: skip
WRONG_A_SECOND, WRONG_AT_ONCE = 5.0, 20
_PASSED_ON = (b"x-forwarded-for", b"forwarded", b"via", b"x-real-ip")


class Metrics:
    """The page. token: what who asks has to send; None = this machine may ask, if `open` says so, and nobody else."""

    def __init__(self, scrape: Scrape, token: Secret | None, clock: Clock, open: Callable[[], bool]) -> None:
        self._scrape = scrape
        self._token = token
        self._clock = clock
        self._open = open
        self._wrong = Bucket(WRONG_A_SECOND, WRONG_AT_ONCE)

    async def answer(self, x: Exchange) -> None:
        """Raises: Refused."""
        self._admit(x)
        content_type, text = await self._scrape.render(x.header(b"accept"))
        headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(text)).encode())]
        await x.begin(200, headers)
        await x.write(text, more=False)

    def _admit(self, x: Exchange) -> None:
        passed_on = any(x.headers(name) for name in _PASSED_ON)
        local = is_loopback(x.address) and is_loopback(host_of(x.header(b"host"))) and not passed_on
        if self._token is None and local and self._open():
            return
        if self._token is None and not local:
            message = "metrics are for this machine only; with SIAFU_METRICS_TOKEN set, for who sends it as a bearer"
            raise Refused(403, message, code="metrics_refused", again=False)
        if self._token is not None and _bearer(x, self._token):
            return
        now = self._clock.now()
        if wait := self._wrong.ready(now):
            raise Refused(429, "too many requests with a wrong token", code="rate_limit_exceeded", wait=wait)
        self._wrong.take(now)
        message = "metrics need the token: send `Authorization: Bearer ...` with what SIAFU_METRICS_TOKEN holds"
        raise Refused(401, message, code="invalid_api_key", again=False)


def _bearer(x: Exchange, token: Secret) -> bool:
    scheme, _, given = x.header(b"authorization").partition(" ")
    right = hmac.compare_digest(given.strip().encode(), token.reveal().encode())
    return scheme.lower() == "bearer" and right


class MetricsApp:
    """A server of that page alone, as an ASGI application."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        x = Exchange(scope, receive, send, self._clock.now())
        try:
            x.check_headers()
            find([SCRAPED], scope["method"], scope["path"])  # nothing else is here
            await self._metrics.answer(x)
        except Refused as refused:
            await x.refuse(refused)
        finally:
            x.end()


class Requests:
    """What a server was asked, by route and status. routes: their paths, as `Route` has them; the rest is `other`."""

    def __init__(self, routes: Collection[str]) -> None:
        self._routes = routes
        self._counts = Counter[Labels]()
        self._seconds: dict[Labels, Histogram] = defaultdict(partial(Histogram, CALL_SECONDS))

    def ended(self, path: str, status: int, seconds: float) -> None:
        """status: 0 = the client had gone before there was one."""
        route = next((each for each in self._routes if pattern(each).fullmatch(path)), "other")
        self._counts[route, str(status)] += 1
        if 200 <= status < 300:
            self._seconds[route,].add(seconds)

    def families(self) -> list[Family]:
        counts, seconds = list(self._counts.items()), list(self._seconds.items())
        text = "Requests of clients by status; 0: gone before there was one"
        return [
            Family("siafu_http_requests", "counter", text, ("route", "status"), counts),
            Family(
                "siafu_http_request_seconds", "histogram", "Of those that went well, to their end", ("route",), seconds
            ),
        ]
