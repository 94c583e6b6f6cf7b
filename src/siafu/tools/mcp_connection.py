"""One connection to an MCP server: opened, owned and left by one task."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Literal

import mcp_types as types
from mcp import Client, ClientSession, MCPError
from mcp.client import IncomingMessage
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from siafu import __version__
from siafu.border.secrets import Secret, redact
from siafu.border.text import clean_bytes, preview
from siafu.errors import ToolUnavailable
from siafu.tools.child import Child, small_environment
from siafu.tools.content import asked_by, mended, text_of
from siafu.tools.mcp_http import MAX_BODY, CalmClient, Fate
from siafu.tools.servers import McpServer

_log = logging.getLogger("siafu.tools")

# The SDK logs what it also raises, a traceback for every odd line. Whoever set a level of their own keeps it.
for _noisy in ("mcp", "client", "httpx2", "httpcore2"):
    if logging.getLogger(_noisy).level == logging.NOTSET:
        logging.getLogger(_noisy).setLevel(logging.CRITICAL)


class Connection:
    """One connection to `server`, opened by a task of its own: what the SDK enters in a task it must leave in the same.

    Wait for `opened`; then it is `over` with a reason (`why`), or `ready`: `session` can be used by any task. It ends
    when the server does, or by `end`; wait for `owner` to see everything closed.
    """

    def __init__(self, server: McpServer) -> None:
        self.session: ClientSession  # once `ready`
        self.ready = False
        self.opened = asyncio.Event()
        self.over = False
        self.retired = False
        self.refused = False  # it answered the handshake with no: waiting does not help
        self.listed = False
        self.listing = asyncio.Lock()
        self._why = ""
        self._server = server
        self._http: CalmClient | None = None
        self._calls = 0
        self._leave = asyncio.Event()
        self.odd = ""  # the last that it sent which is no message and answers nothing
        self._died_early = False
        self.owner = asyncio.create_task(self._own(), name=f"siafu-mcp-{server.name}")

    @property
    def why(self) -> str:
        """Why it is over, to follow the name of the server."""
        return self._why or "closed the connection"

    def end(self, why: str) -> None:
        """Let the owner close the connection; the first reason given stands."""
        self.over = True
        self._why = self._why or why
        self.opened.set()
        self._leave.set()

    def retire(self) -> None:
        """Take no new calls, and close when the running ones have ended."""
        self.retired = True
        if not self._calls:
            self.end("was replaced by a new connection")

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Around each request, so that a retired connection knows its last one."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if self.retired:
                self.retire()

    def fate(self, error: MCPError) -> tuple[Fate, str] | None:
        """What is known of a request that ended with `error`, and why, to follow the name of the server; None when the
        server answered it.
        """
        known = self._http.fate(error.error.data) if self._http else None
        if known is not None:
            return known, error.message
        if error.code == types.CONNECTION_CLOSED and self.over:
            return "lost", self.why
        cut = self._http is not None and error.code == types.CONNECTION_CLOSED
        if cut or error.code == types.PARSE_ERROR:
            # the words for a stream that was cut or an answer that cannot be read; a server's own are taken for the
            # graver
            return "lost", f"gave no answer: {preview(error.message)}"
        return None

    async def _own(self) -> None:
        limit = self._server.timeout
        try:
            async with asyncio.timeout(limit) as timer:
                try:
                    await self._live(timer, "auto")
                except Exception:
                    if not self._died_early:
                        raise
                    await self._live(timer, "legacy")
        except TimeoutError:
            self.end(f"did not finish its handshake within {limit:g} s")
        except Exception as error:  # noqa: BLE001 - the SDK does not list what it raises; each ends the connection
            self.end(self._cause(error))
        finally:
            self.end("was closed")

    async def _live(self, timer: asyncio.Timeout, mode: Literal["auto", "legacy"]) -> None:
        me = types.Implementation(name="siafu", version=__version__)
        async with Client(self._streams(), mode=mode, cache=None, client_info=me, message_handler=self._hear) as client:
            timer.reschedule(None)
            self.session = client.session
            self.ready = True
            self.opened.set()
            try:
                await self._leave.wait()
            finally:
                self.over = True  # before the SDK tells the pending calls

    def _lost(self, why: str) -> None:
        """The server is gone. Some old ones end when they are asked for the newest protocol, so a process that ends
        before it is ready gets a second start, without that question.
        """
        if self.ready or self._died_early or self._server.command is None:
            self.end(why)
        self._died_early = True

    def _cause(self, error: BaseException) -> str:
        """The first real error in what the SDK raised, in words."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, OSError) and error.filename is not None:
            return f"cannot be started: {error.strerror}: {preview(str(error.filename), 200)}"
        if isinstance(error, MCPError):
            known = self.fate(error)
            self.refused = known is None or known[0] == "refused"
            return known[1] if known else f"refused the handshake: {preview(error.message)}"
        return f"cannot be reached: {preview(f'{type(error).__name__} {error}'.strip())}"

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.listed = False

    @contextlib.asynccontextmanager
    async def _streams(self) -> AsyncIterator[tuple[_Inbox, Any]]:
        server = self._server
        if server.command is not None:
            env = small_environment(server.env, os.environ)
            child = await Child.start([server.command, *server.args], env=env, cwd=server.cwd)
            try:
                receive = functools.partial(self._next_message, child)
                yield (
                    _Inbox(receive, _nothing, self._unread, lambda: self._lost(child.fate)),
                    _Outbox(child, server.name),
                )
            finally:
                await child.stop()
            return
        headers = {name: v.reveal() if isinstance(v, Secret) else v for name, v in server.headers.items()}
        async with contextlib.AsyncExitStack() as stack:
            if server.sse:
                opening = sse_client(str(server.url), headers=headers, httpx_client_factory=self._http_client)
            else:
                http = await stack.enter_async_context(self._http_client(headers))
                opening = streamable_http_client(str(server.url), http_client=http, max_sse_event_size=MAX_BODY)
            read, write = await stack.enter_async_context(opening)
            ended = functools.partial(self._lost, "closed the connection")
            yield _Inbox(read.__anext__, read.aclose, self._unread, ended), write

    def _http_client(self, headers: dict[str, str] | None = None, timeout: Any = None, auth: Any = None) -> CalmClient:
        """Also the SDK's factory for SSE; `timeout` and `auth` are its parameters, and not used."""
        self._http = CalmClient(headers, failed=self.end if self._server.sse else None)
        return self._http

    async def _next_message(self, child: Child) -> SessionMessage | ValidationError:
        while (line := await child.line()) is not None:
            if line.strip():
                try:
                    return SessionMessage(types.jsonrpc_message_adapter.validate_json(mended(line), by_name=False))
                except ValidationError as error:
                    return error
        raise StopAsyncIteration

    def _unread(self, error: ValidationError) -> SessionMessage | ValidationError:
        """In place of an answer that breaks the protocol, an error for whom it answers. What else is no message (some
        servers log to their stdout) is passed over, with one warning.
        """
        parts = [part["input"] for part in error.errors(include_url=False)]
        sent = next((part for part in parts if isinstance(part, dict)), parts[0])
        shown = preview(redact(clean_bytes(sent[:500]) if isinstance(sent, bytes) else str(sent)[:500]), 200)
        id = asked_by(sent)
        if id is not None:
            data = types.ErrorData(code=types.PARSE_ERROR, message=f"what it sent breaks the protocol: {shown}")
            return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=id, error=data))
        if not self.odd:
            where = " to its stdout" if self._server.command else ""
            _log.warning("MCP server %s writes more than messages%s; ignored: %s", self._server.name, where, shown)
        self.odd = shown
        return error


async def _nothing() -> None:
    """A child's pipes are closed by its own `stop`."""


class _Inbox:
    """What the SDK reads from. Content blocks become text here, before the SDK refuses a kind it does not know."""

    def __init__(
        self,
        receive: Callable[[], Awaitable[Any]],
        close: Callable[[], Awaitable[None]],
        unread: Callable[[ValidationError], SessionMessage | ValidationError],
        ended: Callable[[], None],
    ) -> None:
        self._receive = receive
        self._close = close
        self._unread = unread
        self._ended = ended

    def __aiter__(self) -> _Inbox:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            item: SessionMessage | Exception = await self._receive()
        except Exception:  # StopAsyncIteration: there is no more
            self._ended()
            raise
        if isinstance(item, ValidationError):
            return self._unread(item)
        if isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse):
            content = item.message.result.get("content")
            if isinstance(content, list):
                item.message.result["content"] = [{"type": "text", "text": text_of(content)}]
        return item

    receive = __anext__

    async def aclose(self) -> None:
        await self._close()

    async def __aenter__(self) -> _Inbox:
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        await self.aclose()


class _Outbox:
    """What the SDK writes a child's messages to."""

    def __init__(self, child: Child, name: str) -> None:
        self._child = child
        self._name = name

    async def send(self, item: SessionMessage, /) -> None:
        data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        if not self._child.send(data) and isinstance(item.message, types.JSONRPCRequest):
            raise ToolUnavailable(f"MCP server {self._name} does not read what it is sent; the call was not sent")

    async def aclose(self) -> None:
        await _nothing()

    async def __aenter__(self) -> _Outbox:
        return self

    async def __aexit__(self, kind: Any, error: Any, traceback: Any) -> None:
        await self.aclose()
