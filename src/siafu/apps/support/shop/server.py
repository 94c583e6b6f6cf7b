"""The shop as an MCP server: who asks, tool calls, resources. Transports are in over_stdio.py and over_http.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, TextIO

import mcp_types as types
import msgspec
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

from siafu import __version__
from siafu.apps.support.shop.calling import Caller, ToolSpec, answer_schema, schema, use
from siafu.apps.support.shop.database import Call, ShopDatabase, all_products, record
from siafu.apps.support.shop.money.records import RefundAsk
from siafu.apps.support.shop.money.refunds import Refunds
from siafu.apps.support.shop.policy import REFUND_POLICY
from siafu.apps.support.shop.reading import goods
from siafu.apps.support.shop.refusal import Refusal
from siafu.apps.support.shop.tools import TOOLS
from siafu.border.canonical import dumps, fingerprint
from siafu.border.identity import Identity, verify
from siafu.border.secrets import Secret
from siafu.border.text import preview
from siafu.errors import IdentityInvalid, InputError, StoreError
from siafu.pace.clock import Clock
from siafu.store.database import Transaction

AUDIENCE = "siafu-shop"
META_KEY = "siafu/identity"
BEARER = "siafu.identity"  # where over_http.py leaves the checked bearer token of a request
PROGRESS_SECONDS = 1.0  # between two messages to a client that waits for an effect
POLICY, CATALOGUE, ORDERS = "shop://policy/refund", "shop://catalogue", "shop://orders/"
INSTRUCTIONS = (
    "An online shop (온라인 상점): order status, stock, product search, refunds, reservations, hand-over to a person. "
    "Orders are shown only to the customer they belong to, who is known from the session. Prices are in won (KRW) and "
    "US cents."
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
        customer=found.subject,
        tenant=found.tenant,
        run=found.run,
        request=found.request,
        role=found.role,
        scopes=found.scopes,
        grants=found.grants,
    )


class Bound(msgspec.Struct, frozen=True):
    """Arguments that the caller's program adds to the model's. A wrong one can only bring about a refusal."""

    expected_refunded_minor: Annotated[int, msgspec.Meta(ge=0, le=10**12)] | None = None


class Beside(msgspec.Struct, frozen=True):
    """What of a call's `_meta` the tools use. The key is the customer's own: nobody reaches another's effect by it."""

    effect_key: Annotated[str, msgspec.Meta(max_length=200)] = msgspec.field(default="", name="siafu/effect-key")
    bound: Bound = msgspec.field(default=Bound(), name="siafu/bound")


class Shop:
    """The request handlers. Database work is done by the database's own threads, off the event loop.

    key: checks identities; None = tokens are refused. customer: who asks when no token says so; None = nobody. delay:
    seconds before each tool answers. call_log: gets one JSON line a call, with the arguments.
    """

    def __init__(
        self,
        database: ShopDatabase,
        refunds: Refunds,
        *,
        clock: Clock,
        key: Secret | None = None,
        customer: str | None = None,
        delay: float = 0.0,
        call_log: TextIO | None = None,
    ) -> None:
        self._database, self._refunds, self._clock = database, refunds, clock
        self._key, self._customer = key, customer
        self._delay, self._call_log = delay, call_log
        self._effects: set[asyncio.Task[msgspec.Struct]] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Server[dict[str, Any]]]:
        """The protocol's server. Meanwhile refunds that were left open are completed. In the end, what is still under
        way is waited for, and the database is closed.
        """
        completing = asyncio.create_task(self._refunds.run_completer())
        try:
            yield self._server()
        finally:
            completing.cancel()
            await self._refunds.aclose()
            await asyncio.wait({completing, *self._effects})
            await self._database.aclose()

    def _server(self) -> Server[dict[str, Any]]:
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
        try:
            scopes = self._caller(ctx).scopes
        except (IdentityInvalid, InputError) as error:
            raise MCPError(code=types.INVALID_PARAMS, message=error.message) from None
        seen = [tool for tool in TOOLS.values() if scopes is None or tool.name in scopes]
        return types.ListToolsResult(tools=[_published(tool) for tool in seen])

    async def _call_tool(
        self, ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            raise MCPError(code=types.INVALID_PARAMS, message=f"unknown tool: {preview(params.name, 64)}")
        if self._delay:
            await asyncio.sleep(self._delay)
        work = self._answer(tool, ctx, params.arguments or {})
        answer = await (self._to_its_end(work, ctx) if tool.effect else work)
        content = msgspec.to_builtins(answer)
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=dumps(content).decode())],
            structured_content=content,
            is_error=isinstance(answer, Refusal),
        )

    async def _to_its_end(
        self, work: Coroutine[Any, Any, msgspec.Struct], ctx: ServerRequestContext[Any, Any]
    ) -> msgspec.Struct:
        """Wait for an effect, and tell a client that asked for it how it goes.

        The effect is a task of its own: a client that cancels, disappears or does not read stops the waiting, never
        the effect, whose outcome is recorded all the same.
        """
        effect = asyncio.create_task(work)
        self._effects.add(effect)
        effect.add_done_callback(self._effects.discard)
        waited = 0.0
        while not (await asyncio.wait({effect}, timeout=PROGRESS_SECONDS))[0]:
            waited += PROGRESS_SECONDS
            await ctx.session.report_progress(waited, message="it is being carried out")
        return effect.result()

    async def _answer(
        self, tool: ToolSpec, ctx: ServerRequestContext[Any, Any], arguments: Mapping[str, Any]
    ) -> msgspec.Struct:
        """One tool call and its record. What a tool changes in the shop is one transaction with the record."""
        who, now = Caller(), self._clock.wall()

        def step(tx: Transaction, answer: msgspec.Struct | None = None) -> msgspec.Struct:
            found = answer or use(tool, tx, who, arguments)
            if not isinstance(found, RefundAsk):
                record(tx, _call(tool, who, arguments, found, now), who.effect_key if tool.effect else None)
            return found

        try:
            try:
                who = self._caller(ctx)
                answer = await self._database.run(step)
            except (IdentityInvalid, InputError) as error:
                passes = isinstance(error, IdentityInvalid) and error.passes  # no customer's refund fails for a clock
                refusal = Refusal(code=error.code, message=error.message, retryable=passes)
                answer = await self._database.run(lambda tx: step(tx, refusal))
            if isinstance(answer, RefundAsk):
                paid = await self._refunds.refund(answer)
                answer = await self._database.run(lambda tx: step(tx, paid))
        except StoreError as error:
            log.error("%s", error.message)
            return Refusal(code="shop_unavailable", message="The shop cannot be reached right now.", retryable=True)
        if self._call_log:
            call = msgspec.structs.asdict(_call(tool, who, arguments, answer, now))
            self._call_log.write(dumps({**call, "arguments": arguments}).decode() + "\n")
            self._call_log.flush()
        return answer

    def _caller(self, ctx: ServerRequestContext[Any, Any]) -> Caller:
        """Raises: IdentityInvalid, InputError."""
        meta = ctx.meta or {}
        bearer = ctx.request.scope.get(BEARER) if ctx.request is not None else None
        who = caller(meta.get(META_KEY), bearer, key=self._key, customer=self._customer, now=self._clock.wall())
        try:
            beside = msgspec.convert(meta, Beside, strict=True)
        except msgspec.ValidationError as error:
            raise InputError(f"the call's _meta cannot be used: {error}") from None
        return msgspec.structs.replace(
            who, effect_key=beside.effect_key, expected_refunded_minor=beside.bound.expected_refunded_minor
        )

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
            text = dumps([goods(product) for product in await self._database.run(all_products)]).decode()
        elif uri.startswith(ORDERS):
            question = {"order_id": uri.removeprefix(ORDERS)}
            answer = await self._answer(TOOLS["get_order_status"], ctx, question)
            if isinstance(answer, Refusal):
                raise MCPError(code=types.INVALID_PARAMS, message=answer.message, data={"code": answer.code})
            text = dumps(answer).decode()
        else:
            raise MCPError(code=types.INVALID_PARAMS, message="the shop has no such resource; see resources/list")
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=kind, text=text)])


def _call(tool: ToolSpec, who: Caller, arguments: Mapping[str, Any], answer: msgspec.Struct, now: float) -> Call:
    return Call(
        at=now,
        tenant_id=who.tenant,
        customer=who.customer,
        run=who.run,
        request=who.request,
        tool=tool.name,
        arguments_sha256=fingerprint(arguments),
        outcome=answer.code if isinstance(answer, Refusal) else "ok",
    )


def _published(tool: ToolSpec) -> types.Tool:
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=schema(tool.takes),
        output_schema=answer_schema(tool.gives),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=tool.effect is None,
            destructive_hint=bool(tool.effect and tool.effect.destructive),
            idempotent_hint=True,
            open_world_hint=bool(tool.effect and tool.effect.outside),
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
