"""The shop as an MCP server: who asks, tool calls, resources. Transports are in over_stdio.py and over_http.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TextIO

import mcp_types as types
import msgspec
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

from siafu import __version__
from siafu.apps.support.shop.database import Call, Database
from siafu.apps.support.shop.policy import REFUND_POLICY
from siafu.apps.support.shop.tools import TOOLS, Caller, Refusal, ToolSpec, goods, schema, use
from siafu.border.canonical import dumps, fingerprint
from siafu.border.identity import Identity, verify
from siafu.border.secrets import Secret
from siafu.border.text import preview
from siafu.errors import IdentityInvalid, StoreError
from siafu.pace.clock import Clock

AUDIENCE = "siafu-shop"
META_KEY = "siafu/identity"
BEARER = "siafu.identity"  # where over_http.py leaves the checked bearer token of a request
POLICY, CATALOGUE, ORDERS = "shop://policy/refund", "shop://catalogue", "shop://orders/"
INSTRUCTIONS = (
    "An online shop (온라인 상점): order status, stock and product search. Orders are shown only to the customer they "
    "belong to, who is known from the session. Prices are in won (KRW) and US cents."
)
log = logging.getLogger(__name__)


def caller(token: object, bearer: Identity | None, *, key: Secret | None, customer: str | None, now: float) -> Caller:
    """Who calls: the token of the request's `_meta`, else the bearer token, else the server's own `customer`.

    A token that is there must be valid: a bad one is never passed over in favour of another identity.

    Raises: IdentityInvalid.
    """
    found = bearer
    if token is not None:
        if key is None:
            raise IdentityInvalid("the shop has no SIAFU_IDENTITY_KEY and cannot check identities", reason="no_key")
        if not isinstance(token, str):
            raise IdentityInvalid("the identity token is no string", reason="malformed")
        found = verify(token, key, AUDIENCE, now)
        if bearer is not None and (bearer.subject, bearer.tenant) != (found.subject, found.tenant):
            raise IdentityInvalid("the request carries two different identities", reason="contradiction")
    if found is None:
        return Caller(customer=customer)
    return Caller(
        customer=found.subject, tenant=found.tenant, run=found.run, request=found.request, scopes=found.scopes
    )


class Shop:
    """The request handlers. All database work is done by one thread, off the event loop.

    key: checks identities; None = tokens are refused. customer: who asks when no token says so; None = nobody.
    delay: seconds before each tool answers. call_log: gets one JSON line a call, with the arguments.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        key: Secret | None = None,
        customer: str | None = None,
        delay: float = 0.0,
        call_log: TextIO | None = None,
    ) -> None:
        self._database, self._clock = database, clock
        self._key, self._customer = key, customer
        self._delay, self._call_log = delay, call_log
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shop-database")

    def close(self) -> None:
        """Finish what the database thread is doing, then close the database."""
        self._thread.shutdown(wait=True)
        self._database.close()

    def server(self) -> Server[dict[str, Any]]:
        return Server(
            "siafu-shop",
            version=__version__,
            title="siafu example shop",
            instructions=INSTRUCTIONS,
            get_tool_input_schema=lambda name: schema(TOOLS[name].takes) if name in TOOLS else None,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
        )

    async def _list_tools(
        self, ctx: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_published(tool) for tool in TOOLS.values()])

    async def _call_tool(
        self, ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            raise MCPError(code=types.INVALID_PARAMS, message=f"unknown tool: {preview(params.name, 64)}")
        if self._delay:
            await asyncio.sleep(self._delay)
        answer = await self._off_loop(self._use, tool, ctx, params.arguments or {})
        content = msgspec.to_builtins(answer)
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=dumps(content).decode())],
            structured_content=content,
            is_error=isinstance(answer, Refusal),
        )

    def _use(self, tool: ToolSpec, ctx: ServerRequestContext[Any, Any], arguments: Mapping[str, Any]) -> msgspec.Struct:
        """One tool call and its record, on the database thread."""
        who, now = Caller(), self._clock.wall()
        try:
            who = self._caller(ctx)
            answer = use(tool, self._database, who, arguments)
            self._record(tool.name, who, arguments, answer, now)
        except IdentityInvalid as error:
            answer = Refusal(code=error.code, message=error.message)
            self._record(tool.name, who, arguments, answer, now)
        except StoreError as error:
            log.error("%s", error.message)
            answer = Refusal(code="shop_unavailable", message="The shop cannot be reached right now.", retryable=True)
        return answer

    def _caller(self, ctx: ServerRequestContext[Any, Any]) -> Caller:
        token = (ctx.meta or {}).get(META_KEY)
        bearer = ctx.request.scope.get(BEARER) if ctx.request is not None else None
        return caller(token, bearer, key=self._key, customer=self._customer, now=self._clock.wall())

    def _record(self, tool: str, who: Caller, arguments: Mapping[str, Any], answer: msgspec.Struct, now: float) -> None:
        call = Call(
            at=now,
            tenant_id=who.tenant,
            customer=who.customer,
            run=who.run,
            request=who.request,
            tool=tool,
            arguments_sha256=fingerprint(arguments),
            outcome=answer.code if isinstance(answer, Refusal) else "ok",
        )
        self._database.record(call)
        if self._call_log:
            line = dumps({**msgspec.structs.asdict(call), "arguments": arguments}).decode()
            self._call_log.write(line + "\n")
            self._call_log.flush()

    async def _list_resources(
        self, ctx: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=list(RESOURCES))

    async def _list_templates(
        self, ctx: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=[ORDER_TEMPLATE])

    async def _read_resource(
        self, ctx: ServerRequestContext[Any, Any], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri, kind = params.uri, "application/json"
        if uri == POLICY:
            text, kind = REFUND_POLICY, "text/markdown"
        elif uri == CATALOGUE:
            text = dumps([goods(product) for product in await self._off_loop(self._database.products)]).decode()
        elif uri.startswith(ORDERS):
            question = {"order_id": uri.removeprefix(ORDERS)}
            answer = await self._off_loop(self._use, TOOLS["get_order_status"], ctx, question)
            if isinstance(answer, Refusal):
                raise MCPError(code=types.INVALID_PARAMS, message=answer.message, data={"code": answer.code})
            text = dumps(answer).decode()
        else:
            raise MCPError(code=types.INVALID_PARAMS, message="the shop has no such resource; see resources/list")
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=kind, text=text)])

    async def _off_loop(self, work: Callable[..., Any], *values: object) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *values)


def _published(tool: ToolSpec) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=schema(tool.takes),
        output_schema=schema(tool.gives),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=True,
            destructive_hint=False,
            idempotent_hint=True,
            open_world_hint=False,
        ),
    )


RESOURCES = (
    types.Resource(
        uri=POLICY,
        name="refund-policy",
        title="Refund policy",
        description="When and how the shop refunds, in Korean and English. 환불 정책.",
        mime_type="text/markdown",
    ),
    types.Resource(
        uri=CATALOGUE,
        name="catalogue",
        title="Catalogue",
        description="All products with SKU, price and stock. 상품 목록.",
        mime_type="application/json",
    ),
)
ORDER_TEMPLATE = types.ResourceTemplate(
    uri_template=ORDERS + "{order_id}",
    name="order",
    title="Order",
    description="One order of the current customer, the same as get_order_status. 주문.",
    mime_type="application/json",
)
