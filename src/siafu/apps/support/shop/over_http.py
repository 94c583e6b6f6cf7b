"""MCP over Streamable HTTP at /mcp: stateless. A request is answered with one JSON body, or, when it asks for progress,
with a stream of events.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import msgspec
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from siafu.apps.support.shop.server import AUDIENCE, BEARER
from siafu.apps.support.shop.wire import INVALID_REQUEST, MAX_MESSAGE, PARSE_ERROR, Unusable, checked
from siafu.border.identity import verify
from siafu.border.listening import bound_host, bound_url
from siafu.border.secrets import Secret
from siafu.border.urls import is_loopback
from siafu.border.web import serve_until
from siafu.errors import ConfigError, IdentityInvalid
from siafu.pace.clock import Clock

PATH = "/mcp"
BODY_SECONDS = 30.0  # for a request's body to arrive
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_UNAUTHORIZED = -32001


def address(listening: socket.socket) -> str:
    """The URL that clients use."""
    return bound_url(listening) + PATH


def check_exposure(host: str, allowed_hosts: Sequence[str], *, key: Secret | None, customer: str | None) -> None:
    """Beyond loopback the shop must check identities and must not take everybody for one customer.

    Raises: ConfigError, also for an allowed host that is no plain host name.
    """
    for name in allowed_hosts:
        if not re.fullmatch(r"[A-Za-z0-9.-]+", name):
            raise ConfigError(f"--allow-host takes a host name such as shop.example.com, not {name[:80]!r}")
    if is_loopback(host):
        return
    if key is None:
        raise ConfigError(
            f"{host} can be reached from other machines, so the shop must be able to check who asks: set "
            "SIAFU_IDENTITY_KEY, or listen on 127.0.0.1"
        )
    if customer is not None:
        raise ConfigError(f"--customer would make everybody who reaches {host} that customer; leave it away")


async def serve_http(
    server: Server[Any],
    listening: socket.socket,
    stop: asyncio.Event,
    *,
    key: Secret | None,
    clock: Clock,
    allowed_hosts: Sequence[str] = (),
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until `stop` is set; requests that are running then get 5 seconds to end.

    key: checks bearer tokens; None = requests with one are refused. allowed_hosts: names besides loopback by which
    clients may reach the shop (the Host and Origin headers are checked). on_ready: called once requests are served.
    """
    security = _security((*LOOPBACK, bound_host(listening), *allowed_hosts))
    plain, streamed = (
        StreamableHTTPSessionManager(server, json_response=json, stateless=True, security_settings=security)
        for json in (True, False)
    )
    config = uvicorn.Config(
        _Gate(plain.handle_request, streamed.handle_request, key, clock),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=16 * 1024,
        timeout_graceful_shutdown=5,
    )
    async with plain.run(), streamed.run():
        await serve_until(stop.wait, config, listening, on_ready)


def _security(hosts: Sequence[str]) -> TransportSecuritySettings:
    origins = [f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[name for host in hosts for name in (host, f"{host}:*")],
        allowed_origins=[name for origin in origins for name in (origin, f"{origin}:*")],
    )


_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]


class _Gate:
    """ASGI: what is checked before the protocol library sees a request, its bearer token and the JSON of its body.

    plain: answers with one body; streamed: as events, for clients that ask for progress and take events.
    """

    def __init__(self, plain: _App, streamed: _App, key: Secret | None, clock: Clock) -> None:
        self._plain, self._streamed, self._key, self._clock = plain, streamed, key, clock

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":  # no WebSocket here
            return None
        hint = Unusable(INVALID_REQUEST, f"POST JSON-RPC messages to {PATH}", None).reply
        if scope["path"] != PATH:
            return await _answer(send, 404, hint)
        if scope["method"] != "POST":  # no session to end, no stream of its own to open
            return await _answer(send, 405, hint, (b"allow", b"POST"))
        try:
            scope[BEARER] = self._bearer(scope)
            if not _values(scope, b"accept"):  # RFC 9110, 12.5.1: then any kind of answer will do
                scope["headers"] = [*scope["headers"], (b"accept", b"application/json")]
            body = await _checked_body(receive)
        except IdentityInvalid as error:
            told = (b"www-authenticate", b'Bearer error="invalid_token"')
            return await _answer(send, 401, Unusable(_UNAUTHORIZED, error.message, None).reply, told)
        except Unusable as unusable:
            return await _answer(send, 413 if unusable.too_large else 400, unusable.reply)
        except TimeoutError:
            return await _answer(send, 408, Unusable(PARSE_ERROR, "the body did not arrive in time", None).reply)
        except ConnectionError:  # gone before its request was complete
            return None
        messages: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> MutableMapping[str, Any]:
            return messages.pop() if messages else await receive()

        app = self._streamed if _takes_events(scope) and _asks_for_progress(body) else self._plain
        return await app(scope, replay, send)

    def _bearer(self, scope: _Scope) -> Any:
        """The Identity of the Authorization header; None when there is no such header."""
        found = _values(scope, b"authorization")
        if not found:
            return None
        scheme, _, token = found[0].decode("latin-1").partition(" ")
        if len(found) > 1 or scheme.lower() != "bearer":
            raise IdentityInvalid("one Authorization header with a bearer token is expected", reason="malformed")
        if self._key is None:
            raise IdentityInvalid("the shop has no SIAFU_IDENTITY_KEY and cannot check identities", reason="no_key")
        return verify(token.strip(), self._key, AUDIENCE, self._clock.wall())


def _values(scope: _Scope, header: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == header]


async def _checked_body(receive: _Receive) -> bytes:
    """The request's body, its JSON checked.

    Raises: Unusable, TimeoutError, ConnectionError.
    """
    body, more = bytearray(), True
    async with asyncio.timeout(BODY_SECONDS):
        while more:
            message = await receive()
            if message["type"] != "http.request":
                raise ConnectionError
            body += message.get("body", b"")
            more = message.get("more_body", False) and len(body) <= MAX_MESSAGE
    return checked(bytes(body)).encode()


def _takes_events(scope: _Scope) -> bool:
    return any(b"text/event-stream" in value.lower() for value in _values(scope, b"accept"))


class _Meta(msgspec.Struct):
    progress: Any = msgspec.field(default=None, name="progressToken")


class _Params(msgspec.Struct):
    meta: _Meta | None = msgspec.field(default=None, name="_meta")


class _Request(msgspec.Struct):
    params: _Params | None = None


def _asks_for_progress(body: bytes) -> bool:
    try:
        params = msgspec.json.decode(body, type=_Request).params
    except msgspec.ValidationError:  # the library answers what is no request
        return False
    return bool(params and params.meta and params.meta.progress is not None)


async def _answer(send: _Send, status: int, reply: dict[str, Any], *headers: tuple[bytes, bytes]) -> None:
    body = json.dumps(reply).encode()
    kind = (b"content-type", b"application/json")
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [kind, length, *headers]})
    await send({"type": "http.response.body", "body": body})
