"""The HTTP client under an MCP connection. It never raises for one request what would end all others.

The SDK's transport lets a network error of one POST end the whole connection, with every call on it. Here such an
error becomes a JSON-RPC error of that request, which says what is known of its fate.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal, cast

import httpx2

from siafu.border.secrets import redact
from siafu.border.text import preview
from siafu.tools.content import mended

MAX_BODY = 32 * 1024 * 1024
CONNECT_SECONDS = 10.0
NOTIFICATION_SECONDS = 2.0
SESSION = "mcp-session-id"
_NOT_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)

_ANSWERS = ("application/json", "text/event-stream")

# What is known of a request that got no answer: `refused` = the server did not act on it, `unsent` = it was not
# reached, `session` = refused as the session is unknown, `lost` = it may have acted, `proxied` = the same, told as a
# proxy does that does not reach the server.
Fate = Literal["refused", "unsent", "session", "lost", "proxied"]
_PROXIED = (502, 503, 504)


class CalmClient(httpx2.AsyncClient):
    """An AsyncClient whose `send` answers a failed request with a JSON-RPC error that `fate` can read.

    `failed`: None = each answer comes on its own request (Streamable HTTP). Else it comes on another stream (the old
    SSE), whose transport sends nothing more after a request that failed; `failed` is told why.
    """

    def __init__(self, headers: Mapping[str, str] | None, *, failed: Callable[[str], None] | None) -> None:
        super().__init__(headers=headers, timeout=httpx2.Timeout(None, connect=CONNECT_SECONDS))
        self._failed = failed
        self._mark = secrets.token_hex(16)  # so that no server can pretend that a request had no answer

    def fate(self, data: Any) -> Fate | None:
        """The fate written in the `data` of an error; None when the error is the server's own answer."""
        if isinstance(data, dict) and data.get("mark") == self._mark:
            found: Fate = data["fate"]
            return found
        return None

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send `request`. A notification gets 2 s, as the SDK sends nothing else meanwhile."""
        limit = None if request.method != "POST" or _is_request(request) else NOTIFICATION_SECONDS
        try:
            async with asyncio.timeout(limit):
                response = await super().send(request, **options)
                return await self._whole(request, response)
        except _NOT_SENT as error:
            return self._instead(request, "unsent", f"cannot be reached: {_named(error)}")
        except (httpx2.HTTPError, TimeoutError) as error:
            return self._instead(request, "lost", f"gave no answer: {_named(error)}")

    async def _whole(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """`response` with its body read and mended, or mending as it streams when it is an event stream."""
        status = response.status_code
        if status == 404 and SESSION in request.headers:
            await response.aclose()
            return self._instead(request, "session", "does not know the session any more")
        kind = response.headers.get("content-type", "").lower()
        answers = status == 200 and kind.startswith(_ANSWERS)
        if self._failed is None and status < 300 and not answers and _is_request(request):
            await response.aclose()
            return self._instead(request, "lost", f"answered HTTP {status} with {preview(kind, 60) or 'nothing'}")
        if kind.startswith("text/event-stream") and status < 400:
            if not response.headers.get("content-encoding"):
                response.stream = _Mending(response)
            return response
        body = bytearray()
        async with contextlib.aclosing(response):
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_BODY:
                    return self._instead(request, "lost", f"answered with more than {MAX_BODY:,} bytes")
        if status >= 400 and not _is_rpc_error(body):
            detail = f"answered HTTP {status} {preview(bytes(body[:400]).decode('utf-8', 'replace'), 200)}"
            fate: Fate = "refused" if status < 500 else "proxied" if status in _PROXIED else "lost"
            return self._instead(request, fate, detail.rstrip())
        headers = [(k, v) for k, v in response.headers.multi_items() if k not in ("content-encoding", "content-length")]
        read = httpx2.Response(status, headers=headers, content=mended(bytes(body)), request=request)
        read.next_request = response.next_request
        return read

    def _instead(self, request: httpx2.Request, fate: Fate, message: str) -> httpx2.Response:
        if self._failed is not None:
            self._failed(redact(message))
        error = {"code": -32603, "message": redact(message), "data": {"mark": self._mark, "fate": fate}}
        return httpx2.Response(503, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)


class _Mending(httpx2.AsyncByteStream):
    """An event stream, line by line, so that no JSON text is mended in halves."""

    def __init__(self, response: httpx2.Response) -> None:
        self._inner = cast(httpx2.AsyncByteStream, response.stream)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = bytearray()
        async for chunk in self._inner:
            head, newline, tail = chunk.rpartition(b"\n")
            if newline:
                yield mended(bytes(rest) + head + newline)
                rest.clear()
            rest += tail
            if len(rest) > MAX_BODY:
                raise httpx2.ReadError("a line of the event stream is too long")
        if rest:
            yield mended(bytes(rest))

    async def aclose(self) -> None:
        await self._inner.aclose()


def _is_request(request: httpx2.Request) -> bool:
    """Whether it carries a JSON-RPC request, which must get an answer; notifications get none."""
    return request.method == "POST" and "method" in (message := json.loads(request.content)) and "id" in message


def _is_rpc_error(body: bytearray) -> bool:
    try:
        return isinstance(json.loads(body)["error"]["code"], int)
    except (ValueError, TypeError, LookupError):
        return False


def _named(error: Exception) -> str:
    return preview(f"{type(error).__name__} {error}".strip(), 200)
