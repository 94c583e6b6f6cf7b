"""The HTTP library's connections as the transport needs them: none that is stale or that a broken body keeps busy."""

from __future__ import annotations

import socket
from contextvars import ContextVar
from functools import partial
from typing import Any, cast

import aiohttp
import msgspec
from aiohttp.client_proto import ResponseHandler

# seconds until it is asked, between askings, askings; milliseconds until what was sent must have arrived
_PEER = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000))


class Connection(msgspec.Struct, eq=False):
    """The connection of one request. `used`: it has carried an answer before."""

    used: bool = True


connection_in_use: ContextVar[Connection | None] = ContextVar("siafu_connection", default=None)


class _Protocol(ResponseHandler):
    """Tells who reads a body that what came last is no HTTP; the library only closes the connection, and the reader
    would wait for more until its total limit.
    """

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        body = self._payload
        super().set_exception(exc, *cause)
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(exc if isinstance(exc, aiohttp.ClientError) else aiohttp.ClientPayloadError(str(exc)))


class Connector(aiohttp.TCPConnector):
    """Tells which requests get a new connection (the library's traces could, for a quarter of the price of a call), and
    keeps none on which something came that nobody had asked for: it would be taken for the next answer (RFC 9112, 9.2).
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = cast("partial[ResponseHandler]", partial(_Protocol, loop=self._loop))

    async def _create_connection(self, *args: Any, **options: Any) -> Any:
        if (connection := connection_in_use.get()) is not None:
            connection.used = False
        protocol: Any = await super()._create_connection(*args, **options)
        _watch_peer(protocol.transport.get_extra_info("socket"))
        return protocol

    async def _get(self, key: Any, traces: Any) -> Any:
        """The connection that was used last, so that those of a rush grow old and are closed. (The library takes the
        one used longest ago: a call a second keeps fifteen of them.)
        """
        while True:
            if conns := self._conns.get(key):
                conns.rotate()
            kept: Any = await super()._get(key, traces)
            if kept is None or not kept.protocol.should_close:
                return kept
            kept.close()


def _watch_peer(sock: Any) -> None:
    """Have the system notice within a minute that a peer has vanished without a word, and keep the way to it open: a
    router between us forgets connections on which nothing moves, also those that wait for a long answer.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PEER:
        if (option := getattr(socket, name, None)) is not None:  # not every system has all of them
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def was_closed(error: BaseException) -> bool:
    """Whether the connection failed before any of the answer came."""
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return isinstance(error.message, str)  # else it is the head of an answer that was cut
    return isinstance(error, ConnectionError) or (
        isinstance(error, aiohttp.ClientOSError) and not isinstance(error, aiohttp.ClientConnectorError)
    )
