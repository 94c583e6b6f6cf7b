"""The door to the HTTP library (with `connections`): one request out, one reply in, every error of it mapped to ours.

A key belongs to one base URL: it is sent there and nowhere else, redirects are not followed, cookies not kept.
"""

from __future__ import annotations

import asyncio
import io
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator

import aiohttp
import msgspec

from siafu import __version__
from siafu.border.secrets import Secret, redact
from siafu.border.text import preview
from siafu.errors import (
    CallTimeout,
    DeadlineReached,
    MalformedReply,
    ModelError,
    RequestRefused,
    SiafuError,
    Unreachable,
    UpstreamFault,
)
from siafu.gateway.chat import ChatAnswer, ChatRequest
from siafu.gateway.classify import MAX_ERROR_BODY, classify, malformed
from siafu.gateway.connections import Connection, Connector, connection_in_use, was_closed
from siafu.gateway.endpoint import Delta, End, EndCallback, Outcome, PlainReply, Reply, ReplyHead
from siafu.gateway.probe import Offer, clock_ahead, parse_models
from siafu.gateway.stream import Assembler, SseDecoder
from siafu.gateway.upstream import Upstream
from siafu.gateway.wire import OWN_FIELDS, encode, parse_answer
from siafu.observe.calls import CallContext
from siafu.observe.spans import headers as trace_headers
from siafu.pace.clock import Clock

_LARGE = 2**20  # bytes; the library wants larger bodies as files
_AT_ONCE = 1.0  # seconds within which a connection fails that the server had closed before the request came
_LIST_SECONDS = 10.0  # for a list of models
_LINGER = 0.25  # seconds to wait for the end of a stream after its last event, so that its connection can be kept


class Transport:
    """The innermost Endpoint. One session per event loop, closed when its loop shuts down or by `aclose`.

    A server may close a kept connection just when a request leaves on it. Such a request reached nobody; it goes out
    again on another connection and is still one attempt (RFC 9112, 9.3.1). This cannot multiply requests: each time it
    uses up a connection that has carried an answer.
    """

    def __init__(self, upstream: Upstream, clock: Clock) -> None:
        self._upstream = upstream
        self._headers = _headers(upstream)
        self._clock = clock
        self._url = upstream.url("/chat/completions")
        self._proxy = upstream.proxy_for(self._url)
        self._trusted = upstream.trusted()
        self._timeout = aiohttp.ClientTimeout(None, upstream.timeouts.connect, upstream.timeouts.first_byte)  # plain
        self._sessions: dict[asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, AsyncGenerator[None]]] = {}

    def rekey(self, key: Secret | None) -> None:
        """Use another key from the next request on, also for calls that are under way and asked again."""
        self._upstream = msgspec.structs.replace(self._upstream, key=key)
        self._headers = _headers(self._upstream)

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        try:
            return await self._send(request, context)
        except SiafuError as error:
            raise _bare(error)  # noqa: B904 (it is the same error)

    async def _send(self, request: ChatRequest, context: CallContext) -> Reply:
        if request.extra and not OWN_FIELDS.isdisjoint(request.extra):
            twice = ", ".join(sorted(OWN_FIELDS & set(request.extra)))
            raise RequestRefused(f"extra must not hold {twice}: set it as a field of the request", attempts=0)
        loop = asyncio.get_running_loop()
        held = self._sessions.get(loop)
        session = held[0] if held is not None and not held[0].closed else await self._new_session()
        data = encode(request)
        began = self._clock.now()
        limit = self._upstream.timeouts.total
        left = limit if context.deadline is None else context.deadline - began
        if left <= 0:
            raise DeadlineReached("the time for this call was over before it was sent")
        left = min(left, limit)
        call = _Call(
            upstream=self._upstream,
            began=began,
            limit=left,
            end=None if request.stream else loop.time() + left,
            stream=request.stream,
            keep_raw=request.keep_raw,
            attempt=context.attempts + 1,
        )
        timer = asyncio.timeout_at(call.end)
        response: aiohttp.ClientResponse | None = None
        try:
            async with timer:
                response = await self._ask(session, data, call, timer)
                if self._upstream.timeouts.first_byte:
                    timer.reschedule(call.end)
                return await self._receive(response, call)
        except (aiohttp.ClientError, OSError) as error:
            if response is not None:
                response.close()
            silent = response is None and timer.expired() and timer.when() != call.end
            raise call.translate(
                aiohttp.SocketTimeoutError() if silent else error, began=response is not None
            ) from None
        except BaseException:
            if response is not None:
                response.close()
            raise

    async def _ask(
        self, session: aiohttp.ClientSession, data: bytes, call: _Call, timer: asyncio.Timeout
    ) -> aiohttp.ClientResponse:
        """The answer to `data`, as soon as its head is there; `timer` is set to when that has to be.

        Raises: the library's errors.
        """
        timeouts = self._upstream.timeouts
        timeout = self._timeout
        if call.stream:
            timeout = aiohttp.ClientTimeout(call.limit, timeouts.connect, timeouts.first_byte or timeouts.idle)
        headers = {"x-siafu-attempt": str(call.attempt), **self._headers, **trace_headers()}
        lost: Exception | None = None  # on a kept connection: nobody knows whether the request arrived
        while True:
            sent, connection = self._clock.now(), Connection()
            connection_in_use.set(connection)
            if timeouts.first_byte:
                # the library's own limit begins anew with each byte of a head, and with each 1xx before it
                head = asyncio.get_running_loop().time() + timeouts.connect + timeouts.first_byte
                timer.reschedule(head if call.end is None else min(head, call.end))
            try:
                return await session.post(
                    self._url,
                    data=data if len(data) <= _LARGE else io.BytesIO(data),
                    headers=headers,
                    allow_redirects=False,
                    proxy=self._proxy,
                    timeout=timeout,
                )
            except (aiohttp.ClientError, OSError) as error:
                soon = self._clock.now() - sent < _AT_ONCE
                if timer.expired() or not (connection.used and was_closed(error) and soon):
                    raise lost or error from None
                lost = error

    async def models(self) -> Offer:
        """Ask the upstream which models it offers (`GET /models`), once, within ten seconds.

        Raises: ModelError.
        """
        try:
            return await self._list()
        except SiafuError as error:
            raise _bare(error)  # noqa: B904

    async def _list(self) -> Offer:
        held = self._sessions.get(asyncio.get_running_loop())
        session = held[0] if held is not None else await self._new_session()
        limits = msgspec.structs.replace(self._upstream.timeouts, total=_LIST_SECONDS)
        upstream = msgspec.structs.replace(self._upstream, timeouts=limits)
        call = _Call(upstream=upstream, began=self._clock.now(), limit=limits.total)
        url = upstream.url("/models")
        timeout = aiohttp.ClientTimeout(total=limits.total, connect=limits.connect)
        try:
            async with session.get(
                url, headers=self._headers, allow_redirects=False, proxy=self._proxy, timeout=timeout
            ) as response:
                headers = {name.lower(): value for name, value in response.headers.items()}
                body = await _read(response, upstream.max_answer_bytes, cut=response.status != 200)
        except (aiohttp.ClientError, OSError) as error:
            raise call.translate(error, began=False) from None
        if response.status != 200:
            raise classify(response.status, headers, body, wall=self._clock.wall())
        return Offer(
            models=parse_models(body, headers.get("content-type", "")),
            seconds=self._clock.now() - call.began,
            ahead=clock_ahead(headers, self._clock.wall()),
        )

    async def aclose(self) -> None:
        """Close the connections of this event loop. Idempotent."""
        held = self._sessions.pop(asyncio.get_running_loop(), None)
        if held is not None:
            await held[1].aclose()

    async def _receive(self, response: aiohttp.ClientResponse, call: _Call) -> Reply:
        connection = response.connection
        if connection is not None and connection.protocol is not None:  # the body is not complete yet
            connection.protocol.read_timeout = self._upstream.timeouts.idle
            connection.protocol.start_timeout()
        headers = {name.lower(): value for name, value in response.headers.items()}
        head = ReplyHead(
            status=response.status,
            upstream=self._upstream.name,
            request_id=headers.get("x-request-id"),
            headers=headers,
            began=call.began,
            attempts=call.attempt,
        )
        content_type = headers.get("content-type", "")
        if response.status != 200:
            body = await _read(response, MAX_ERROR_BODY, cut=True)
            if 200 <= response.status < 300:
                raise malformed("200 was expected", status=response.status, content_type=content_type, body=body)
            raise classify(response.status, headers, body, wall=self._clock.wall())
        if call.stream and not content_type.startswith(("application/json", "text/html")):
            reply = StreamReply(response, head, call, self._clock)
            await reply.begin()
            return reply
        body = await _read(response, self._upstream.max_answer_bytes, cut=False)
        answer = parse_answer(body, content_type=content_type, max_bytes=self._upstream.max_answer_bytes)
        if call.keep_raw:
            answer = msgspec.structs.replace(answer, raw=body)
        return PlainReply(answer, head, self._clock.now() - call.began)

    async def _new_session(self) -> aiohttp.ClientSession:
        """A session for this loop. Its keeper is an asynchronous generator, as a loop that shuts down closes those in
        order: so the connections of `asyncio.run` end with it, and no one has to remember `aclose`.
        """
        for loop in [loop for loop in self._sessions if loop.is_closed()]:
            del self._sessions[loop]
        session = aiohttp.ClientSession(
            connector=Connector(limit=0, ttl_dns_cache=300, ssl=self._trusted),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"siafu/{__version__}", "Content-Type": "application/json"},
        )
        keeper = _keep(session)
        self._sessions[asyncio.get_running_loop()] = session, keeper
        await anext(keeper)
        return session


class StreamReply:
    """A streamed answer as it arrives. It is its own iterator of deltas, not a generator that a `break` leaves open.

    Cancelling a read gives the reply up.
    """

    def __init__(self, response: aiohttp.ClientResponse, head: ReplyHead, call: _Call, clock: Clock) -> None:
        self.head = head
        self._response = response
        self._call = call
        self._clock = clock
        self._decoder = SseDecoder(max_bytes=call.upstream.max_answer_bytes)
        self._assembler = Assembler(max_chars=call.upstream.max_answer_bytes)
        self._ready: deque[Delta] = deque()
        self._first_token: float | None = None
        self._end: End | None = None
        self._callbacks: list[EndCallback] = []

    async def begin(self) -> None:
        """Read up to the first sign of an answer. Raises what ends the stream before it."""
        while not self._assembler.begun and self._end is None:
            await self._pump()
        if self._end is not None and self._end.error is not None:
            raise self._end.error

    def deltas(self) -> AsyncIterator[Delta]:
        return self

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        while not self._ready:
            if self._end is not None:
                if self._end.error is not None:
                    raise self._end.error
                raise StopAsyncIteration
            await self._pump()
        if self._call.keep_raw:  # what came together goes on together
            together = Delta(events=tuple(data for delta in self._ready for data in delta.events))
            self._ready.clear()
            return together
        return self._ready.popleft()

    async def message(self) -> ChatAnswer:
        while self._end is None:
            await self._pump()
        if self._end.answer is None:
            raise self._end.error or RequestRefused("this reply was closed before its end", attempts=0)
        return self._end.answer

    def on_end(self, callback: EndCallback) -> None:
        if self._end is not None:
            callback(self._end)
        else:
            self._callbacks.append(callback)

    async def aclose(self) -> None:
        self._finish("abandoned")

    async def _pump(self) -> None:
        """Read one piece and take it apart. A failure ends the reply and is told by whoever reads next."""
        try:
            chunk = await self._response.content.readany()
            for event in self._decoder.feed(chunk) if chunk else self._decoder.finish():
                delta = self._assembler.feed(event)
                if self._assembler.begun and self._first_token is None:
                    self._first_token = self._clock.now() - self._call.began
                if self._call.keep_raw:
                    delta = None if self._assembler.done else Delta(events=(event[1],))
                if delta is not None:
                    self._ready.append(delta)
            if self._assembler.done or not chunk:
                answer = self._assembler.answer()
                await self._linger()
                self._finish("completed", answer=answer)
        except (aiohttp.ClientError, OSError) as error:
            self._broke(error)
        except SiafuError as error:
            self._finish("failed", error=error)
        except BaseException:
            self._finish("abandoned")
            raise

    def _broke(self, error: BaseException) -> None:
        """The connection broke: a failure, unless the answer was whole and only its usage or `[DONE]` was to come."""
        if self._assembler.finished:
            try:
                return self._finish("completed", answer=self._assembler.answer())
            except ModelError as no_answer:
                return self._finish("failed", error=no_answer)
        return self._finish("failed", error=self._call.translate(error, began=True))

    async def _linger(self) -> None:
        """Wait a moment for the end of the body, so that the connection can be used again."""
        if not self._response.content.at_eof():
            try:
                async with asyncio.timeout(_LINGER):
                    await self._response.content.readany()
            except (TimeoutError, aiohttp.ClientError):
                pass  # the answer is whole; only the connection is lost

    def _finish(self, outcome: Outcome, *, answer: ChatAnswer | None = None, error: SiafuError | None = None) -> None:
        if self._end is not None:
            return
        if error is not None:
            _bare(error)
        if outcome == "completed" and self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()
        self._end = End(
            outcome=outcome,
            answer=answer,
            error=error,
            seconds=self._clock.now() - self._call.began,
            first_token=self._first_token,
        )
        callbacks, self._callbacks = self._callbacks, []
        for callback in reversed(callbacks):
            callback(self._end)


class _Call(msgspec.Struct, eq=False, kw_only=True):
    """What is known of a request while its answer is on the way. `limit`: seconds for all of it; less than the total
    limit of the upstream when the deadline comes before. `end`: when they are over, by the event loop's clock; None for
    a stream, which goes on when it is handed over, so the library times it, read by read.
    """

    upstream: Upstream
    began: float
    limit: float
    end: float | None = None
    stream: bool = False
    keep_raw: bool = False
    attempt: int = 1

    def translate(self, error: BaseException, *, began: bool) -> ModelError | DeadlineReached:
        """Our error for one of the HTTP library's. `began`: the answer had begun."""
        where = f"{self.upstream.name} ({self.upstream.base_url})"
        limits = self.upstream.timeouts
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return CallTimeout(f"no connection to {where} within {limits.connect:g} s", phase="connect")
        if isinstance(error, aiohttp.SocketTimeoutError):
            if began:
                return CallTimeout(f"{where} fell silent for {limits.idle:g} s within its answer", phase="idle")
            limit = limits.first_byte or limits.idle
            return CallTimeout(f"{where} began no answer within {limit:g} s", phase="first_byte")
        if isinstance(error, TimeoutError):
            if self.limit < limits.total:
                return DeadlineReached(f"{where} had not answered in full when the time for this call was over")
            return CallTimeout(f"{where} took longer than {limits.total:g} s", phase="total")
        text = f"{type(error).__name__}: {preview(redact(str(error)[:4000]), 200)}"
        for kinds, ours, what in _MEANINGS:
            if isinstance(error, kinds):
                status = getattr(error, "status", None) if isinstance(error, aiohttp.ClientHttpProxyError) else None
                return ours(f"{what.format(where)} ({text})", status=status)
        return UpstreamFault(f"the connection to {where} broke ({text})")


# The first row that fits counts, so a row stands above those of its base classes.
_MEANINGS: tuple[tuple[tuple[type[BaseException], ...], type[ModelError], str], ...] = (
    (
        (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError, aiohttp.ServerFingerprintMismatch),
        Unreachable,
        "no secure connection to {}; its certificate has to be for that name, and from an authority that is trusted "
        "here: for a private one set ca_file of the upstream, or SSL_CERT_FILE",
    ),
    (
        (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError),
        Unreachable,
        "{} cannot be reached; check the address, the network and the proxy",
    ),
    ((aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError), RequestRefused, "the address of {} cannot be used"),
    ((aiohttp.RedirectClientError,), RequestRefused, "{} answered with a redirect"),
    ((aiohttp.ClientResponseError,), MalformedReply, "{} did not answer in valid HTTP"),
    ((aiohttp.ClientPayloadError,), UpstreamFault, "the answer of {} was cut"),
    ((aiohttp.ClientError, OSError), UpstreamFault, "the connection to {} broke"),
)


def _headers(upstream: Upstream) -> dict[str, str]:
    """What is for the upstream alone. Not for a session: the library tells a session's headers to a proxy too."""
    headers = {name: value.reveal() if isinstance(value, Secret) else value for name, value in upstream.headers.items()}
    return headers | upstream.authorization()


def _bare(error: SiafuError) -> SiafuError:
    """`error` without the library's own error behind it, which holds the request's headers, and without the frames in
    which it was made, which hold the answer: an upstream may repeat the key, and loggers may write locals down.
    """
    error.__context__, error.__suppress_context__ = None, True
    return error.with_traceback(None)


async def _keep(session: aiohttp.ClientSession) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        await session.close()
        await asyncio.sleep(0)  # the sockets close in the loop's next step


async def _read(response: aiohttp.ClientResponse, limit: int, *, cut: bool) -> bytes:
    """The (decompressed) body. More than `limit` bytes: the beginning if `cut`, else MalformedReply."""
    content, size = response.content, 0
    pieces: list[bytes] = []
    while not content.at_eof():
        pieces.append(chunk := await content.readany())
        size += len(chunk)
        if size > limit:
            response.close()
            if not cut:
                raise malformed(f"it is larger than {limit:,} bytes", status=response.status)
            break
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)[: limit + 1]
