"""MCP servers as tool sets: one shared connection a server, opened by the first call, opened again when it is lost.

Importing this module imports the MCP SDK, which takes about a second; nothing else in siafu does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import mcp_types as types
import msgspec
from mcp import ClientSession, MCPError

from siafu.border.text import clean, preview
from siafu.errors import OutcomeUnknown, ToolDenied, ToolFault, ToolTimeout, ToolUnavailable
from siafu.observe.calls import CallContext
from siafu.pace.clock import Clock, SystemClock
from siafu.tools.bounds import seconds_left
from siafu.tools.content import resource_text, result_of
from siafu.tools.mcp_connection import Connection
from siafu.tools.naming import distinct_names
from siafu.tools.servers import McpServer
from siafu.tools.toolset import Tool, ToolResult

IDENTITY_KEY, EFFECT_KEY, BOUND_KEY = "siafu/identity", "siafu/effect-key", "siafu/bound"
MAX_LISTED = 5000
MAX_DESCRIPTION = 8000
_RETRY_FIRST, _RETRY_LAST = 0.5, 30.0  # seconds until a server that could not be opened is tried again
T = TypeVar("T")


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource that a server offers to read."""

    uri: str
    name: str
    description: str = ""
    mime: str = ""


class McpTools:
    """The tools of one MCP server, over one connection that all callers share.

    The first caller opens it. When it is lost (the process died, the session is unknown), pending calls fail at once
    and the next caller opens it again, once for all who wait; a server that cannot be opened is left alone for 0.5 to
    30 s. A call whose answer was lost is sent again at most once, and only when its tool is marked read-only or
    idempotent. Faults of a server that has answered before and cannot be reached now say so (`ToolFault.away`); who may
    wait for it can `knock`. `aclose` ends the connection and the process.
    """

    def __init__(self, server: McpServer, clock: Clock | None = None) -> None:
        self.server = server
        self._clock = clock or SystemClock()
        self._connection: Connection | None = None
        self._owners: set[asyncio.Task[None]] = set()
        self._closed = False
        self._failures = 0
        self._not_before = 0.0
        self._last_failure = ""
        self._answered = False  # ever
        self._refused = False  # its last word was no
        self._tools: tuple[Tool, ...] | None = None
        self._wire_names: dict[str, str] = {}

    async def list(self) -> Sequence[Tool]:
        """All tools, from every page, by name, under valid names. Asked once a connection, and again when the server
        says that they changed; while the server is away, the last list stands.

        Raises: ToolUnavailable, ToolTimeout.
        """
        connection = self._connection
        if self._tools is not None and (connection is None or connection.over or connection.listed):
            return self._tools
        try:
            return await self._list_once(await self._connected())
        except ToolFault:
            if self._tools is None:
                raise
            return self._tools

    async def _list_once(self, connection: Connection) -> tuple[Tool, ...]:
        async with connection.listing:
            tools = self._tools
            if tools is None or not connection.listed:
                connection.listed = True  # before asking: the server may say meanwhile that they changed
                try:
                    tools = self._keep(await self._pages("tools/list", _list_tools, "tools"))
                except BaseException:
                    connection.listed = False
                    raise
            return tools

    async def call(self, name: str, arguments: Mapping[str, Any], context: CallContext) -> ToolResult:
        """Call one tool. The server's own errors are results with `is_error`; those of the protocol have their number
        as code.

        Raises: ToolDenied (no such tool), ToolTimeout, ToolUnavailable (it did not run, or it only reads),
        OutcomeUnknown (it may have run). A timeout and a cancellation send `notifications/cancelled`.
        """
        left = seconds_left(name, context, self._clock)
        try:
            async with asyncio.timeout(left):
                tool = await self._known(name)
                params = types.CallToolRequestParams(
                    name=self._wire_names[name], arguments=dict(arguments), _meta=self._meta(context)
                )
                request = types.CallToolRequest(params=params)
                result = await self._ask(
                    name,
                    lambda session: session.send_request(request, types.CallToolResult),
                    # under an effect key it is for the contract to say what may be sent again, whatever a hint claims
                    repeatable=(tool.read_only or tool.idempotent) and not context.effect_key,
                )
        except TimeoutError:
            raise ToolTimeout(f"{name} did not answer before the deadline", tool=name) from None
        except MCPError as error:
            return result_of(clean(error.message), {"code": error.code}, is_error=True)
        text = "\n".join(block.text for block in result.content if isinstance(block, types.TextContent))
        return result_of(text, result.structured_content, is_error=result.is_error)

    async def list_resources(self) -> Sequence[Resource]:
        """All resources, from every page.

        Raises: ToolUnavailable, ToolTimeout, ToolFault (the server offers none).
        """
        found = await self._pages("resources/list", _list_resources, "resources")
        return [
            Resource(
                uri=str(one.uri),
                name=clean(one.name),
                description=clean(one.description or "")[:MAX_DESCRIPTION],
                mime=one.mime_type or "",
            )
            for one in found
        ]

    async def read_resource(self, uri: str, context: CallContext | None = None) -> str:
        """The text of a resource, at most 256 KiB; parts that are no text become a note.

        Raises: ToolUnavailable, ToolTimeout, ToolFault (the server knows no such resource).
        """
        meta = self._meta(context) if context else None
        try:
            result = await self._ask(uri, lambda session: session.read_resource(uri, meta=meta), repeatable=True)
        except MCPError as error:
            raise ToolFault(f"{self._name} cannot read {preview(uri, 200)}: {preview(error.message)}") from None
        return resource_text([part.model_dump(mode="json", by_alias=True) for part in result.contents])

    async def aclose(self) -> None:
        """Close the connection and end the process. Pending calls fail. Idempotent."""
        self._closed = True
        if self._connection is not None:
            self._connection.end("was closed")
        if self._owners:
            await asyncio.wait(self._owners)

    @property
    def name(self) -> str:
        """As in `Tool.server`."""
        return self.server.name

    async def knock(self) -> bool:
        """Whether it answers now, also when it refuses. Its tools are listed anew, as it may have come back with
        others. Who asks minds the pace.
        """
        self._not_before = 0.0
        try:
            self._keep(await self._pages("tools/list", _list_tools, "tools"))
        except ToolFault:
            return self._refused
        return True

    @property
    def _name(self) -> str:
        return f"MCP server {self.server.name}"

    def _meta(self, context: CallContext) -> types.RequestParamsMeta | None:
        meta: dict[str, Any] = {EFFECT_KEY: context.effect_key} if context.effect_key else {}
        if self.server.identity == "siafu":
            meta |= {IDENTITY_KEY: context.identity} if context.identity else {}
            meta |= {BOUND_KEY: dict(context.bound)} if context.bound else {}
        return cast(types.RequestParamsMeta, meta) if meta else None

    async def _known(self, name: str) -> Tool:
        known = self._tools if self._tools is not None and name in self._wire_names else await self.list()
        for tool in known:
            if tool.name == name:
                return tool
        raise ToolDenied(f"{self._name} has no tool {preview(name, 64)!r}", tool=preview(name, 64))

    def _keep(self, found: Sequence[types.Tool]) -> tuple[Tool, ...]:
        by_name = {tool.name: tool for tool in reversed(found)}  # of two with one name the first counts
        wire = sorted(by_name)  # servers may list in another order each time, which no prompt cache would survive
        names = distinct_names([(self.server.name, name) for name in wire])
        tools = tuple(_tool(self.server.name, name, by_name[old]) for name, old in zip(names, wire, strict=True))
        self._wire_names = dict(zip(names, wire, strict=True))
        if self._tools is None or tools != self._tools:
            self._tools = tools
        return self._tools

    async def _pages(
        self, method: str, send: Callable[[ClientSession, types.PaginatedRequestParams], Awaitable[Any]], field: str
    ) -> Sequence[Any]:
        found: list[Any] = []
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            params = types.PaginatedRequestParams(cursor=cursor)
            try:
                page = await self._ask(method, lambda session, at=params: send(session, at), repeatable=True)  # type: ignore[misc]
            except MCPError as error:
                raise ToolFault(f"{self._name} refused {method}: {preview(error.message)}") from None
            found += getattr(page, field)
            cursor = page.next_cursor
            if not cursor:
                return found
            if cursor in seen or len(found) > MAX_LISTED:
                raise ToolFault(f"{self._name} does not come to an end of {method}")
            seen.add(cursor)

    async def _ask(self, what: str, send: Callable[[ClientSession], Awaitable[T]], *, repeatable: bool) -> T:
        """Send one request, and again only where that is safe.

        Raises: MCPError when the server answered with an error; ToolTimeout, ToolUnavailable, OutcomeUnknown.
        """
        lost = gone = False
        while True:
            connection = await self._connected()
            try:
                async with asyncio.timeout(self.server.timeout):
                    with connection.used():
                        return await send(connection.session)
            except TimeoutError:
                limit = f"{self.server.timeout:g} s"
                odd = f"; it has also sent what is no message: {connection.odd}" if connection.odd else ""
                raise ToolTimeout(f"{what} of {self._name} did not answer within {limit}{odd}", tool=what) from None
            except MCPError as error:
                known = connection.fate(error)
                if known is None:
                    raise
                fate, why = known
            except ValueError as error:  # pydantic's: an answer, but none of the protocol
                fate, why = "lost", f"sent an answer that breaks the protocol: {preview(str(error))}"
            if fate == "session":
                connection.retire()
            self._refused = fate == "refused"
            lose = fate in ("lost", "proxied")
            if lose and not repeatable:
                raise OutcomeUnknown(
                    f"{what} was sent to {self._name}, which {why}. Whether it took effect is unknown; it was not sent "
                    "again",
                    tool=what,
                )
            if fate in ("refused", "unsent") or (fate == "session" and gone) or (lose and lost):
                raise self._unavailable(why, tool=what, away=fate in ("unsent", "proxied"))
            lost, gone = lost or lose, gone or fate == "session"

    async def _connected(self) -> Connection:
        """The open connection; opened by the first who asks, waited for by the others.

        Raises: ToolUnavailable.
        """
        if self._closed:
            raise ToolUnavailable(f"{self._name} was closed")
        connection = self._connection
        if connection is None or connection.over or connection.retired:
            wait = self._not_before - self._clock.now()
            if wait > 0:
                raise self._unavailable(f"{self._last_failure}; it is tried again in {wait:.1f} s")
            connection = self._connection = Connection(self.server)
            self._owners.add(connection.owner)
            connection.owner.add_done_callback(self._owners.discard)
        await connection.opened.wait()
        if connection.over:
            if not connection.ready and connection is self._connection:
                self._connection = None
                self._not_before = self._clock.now() + min(_RETRY_LAST, _RETRY_FIRST * 2 ** min(self._failures, 10))
                self._failures += 1
                self._last_failure, self._refused = connection.why, connection.refused
            raise self._unavailable(connection.why)
        self._failures, self._answered, self._refused = 0, True, False
        return connection

    def _unavailable(self, why: str, *, tool: str = "", away: bool = True) -> ToolUnavailable:
        """Nothing was done, or it only reads. away: it was not reached."""
        error = ToolUnavailable(f"{self._name} {why}", tool=tool)
        if away and self._answered and not self._refused:
            error.away = self
        return error


async def _list_tools(session: ClientSession, params: types.PaginatedRequestParams) -> types.ListToolsResult:
    return await session.list_tools(params=params)


async def _list_resources(session: ClientSession, params: types.PaginatedRequestParams) -> types.ListResourcesResult:
    return await session.list_resources(params=params)


def _tool(server: str, name: str, tool: types.Tool) -> Tool:
    hints = tool.annotations
    return Tool(
        name=name,
        description=clean(tool.description or "")[:MAX_DESCRIPTION],
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        read_only=bool(hints and hints.read_only_hint),
        idempotent=bool(hints and hints.idempotent_hint),
        annotations=hints.model_dump(by_alias=True, exclude_none=True) if hints else {},
        server=server,
    )
