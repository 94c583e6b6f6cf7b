"""MCP servers from the settings, and the shop that stands in when there is none. Apart from the rest of the assembly,
because the MCP SDK takes a second to import.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec

from siafu.border.identity import IDENTITY_KEY, needed_identity_key
from siafu.border.secrets import Secret
from siafu.config.advice import Row
from siafu.config.doctor import tools_row
from siafu.config.effects import effect_rules, effect_store, process_name, record_denial
from siafu.config.mcp_servers import servers
from siafu.config.settings import Settings
from siafu.errors import ConfigError
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock
from siafu.store.database import Database
from siafu.tools.effects import Effects
from siafu.tools.joined import Joined
from siafu.tools.mcp import McpTools
from siafu.tools.servers import McpServer
from siafu.tools.toolset import ToolSet
from siafu.tools.validated import Validated

IDENTIFIES = "an MCP server is configured to be told who the customer is, and it signs that"


class Desk(msgspec.Struct, frozen=True, kw_only=True):
    """The support swarm's tools, and the key that proves customers to them (None = no server asks for one). denied:
    keeps in the audit which tools were asked for and may not be used. effects: their database.
    """

    tools: ToolSet
    identity_key: Secret | None
    denied: Callable[[CallContext, str], Awaitable[None]]
    effects: Database


@contextlib.asynccontextmanager
async def support_desk(settings: Settings, *, database: str | Path | None = None) -> AsyncIterator[Desk]:
    """The configured MCP servers as one tool set, or the example shop over stdio when none is configured. Servers are
    started by the first call and ended with the block.

    database: of the example shop, a path or an address; None = its default place.

    Raises: ConfigError, also when a server wants identities and SIAFU_IDENTITY_KEY is not set; StoreError when the
    database of effects cannot be opened.
    """
    configured = servers(settings)
    rules = effect_rules(settings, [server.name for server in configured])
    key: Secret | None = None
    ours = not configured
    if ours:
        key = Secret(secrets.token_hex(32))
        configured = [example_shop(settings, key, database)]
    elif any(server.identity for server in configured):
        key = needed_identity_key(IDENTIFIES)
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(effect_store(settings))
        sets: list[ToolSet] = []
        for server in configured:
            own, clock = rules.get(server.name), SystemClock()
            tools = McpTools(server, clock)
            stack.push_async_callback(tools.aclose)
            sets.append(Effects(tools, own, store, clock=clock, owner=process_name(), ours=ours) if own else tools)
        yield Desk(
            tools=Validated(Joined(sets)),
            identity_key=key,
            denied=partial(record_denial, store),
            effects=store.database,
        )


async def tool_rows(settings: Settings) -> list[Row]:
    """A doctor's row for each configured server; all are started, asked for their tools, and ended."""
    try:
        configured = servers(settings)
        rules = effect_rules(settings, [server.name for server in configured])
        if any(server.identity for server in configured):
            needed_identity_key(IDENTIFIES)
    except ConfigError as error:
        return [Row(check="tools", state="fail", found=error.message)]
    return list(await asyncio.gather(*(_tool_row(server, rules.get(server.name, {})) for server in configured)))


async def _tool_row(server: McpServer, rules: Iterable[str]) -> Row:
    async with contextlib.aclosing(McpTools(server, SystemClock())) as tools:
        return await tools_row(server.name, tools, rules)


def example_shop(settings: Settings, key: Secret, database: str | Path | None) -> McpServer:
    """`siafu shop serve` over stdio, which believes only identities signed with `key`. database: an address may hold a
    password, so it is no argument of the process, which everybody on the machine can read.
    """
    env: dict[str, str | Secret] = {IDENTITY_KEY: key, "SIAFU_HOME": str(settings.home)}
    # siafu itself may be found through the first; the others say where the shop pays money back.
    passed_on = ("PYTHONPATH", "SIAFU_PAYMENTS_URL", "SIAFU_PAYMENTS_NAME")
    env |= {name: os.environ[name] for name in passed_on if name in os.environ}
    place = ("--database", str(database)) if database else ()
    if database and "://" in str(database):
        env["SIAFU_SHOP_DATABASE_URL"], place = Secret(str(database)), ()
    return McpServer(
        name="shop",
        command=sys.executable,
        args=("-P", "-m", "siafu", "shop", "serve", "--transport", "stdio", *place),
        env=env,
        identity="siafu",
    )
