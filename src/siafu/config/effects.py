"""The effect contract from the settings: its rules, its database, and the desks where people decide."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from siafu.config.settings import Settings
from siafu.errors import ConfigError
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock
from siafu.store.database import Database
from siafu.store.effect_people import EffectPeople
from siafu.store.effect_schema import MIGRATIONS
from siafu.store.effects import EffectStore
from siafu.tools.effect_rules import REQUEST, EffectRule
from siafu.tools.effects import Effects
from siafu.tools.toolset import ToolSet

# The example shop honours keys: of its own for refunds, ours for the rest. A refund takes as long as its payment does.
SHOP_RULES: Mapping[str, EffectRule] = {
    "shop.process_refund": EffectRule(
        key=("request", "order_id"),
        ignore=("reason",),
        unclear=("shop_unavailable",),
        honours_key=True,
        lease_seconds=30.0,
    ),
    "shop.reserve_stock": EffectRule(key="step", honours_key=True),
    "shop.release_stock": EffectRule(key="step", honours_key=True),
    "shop.open_ticket": EffectRule(key="step", honours_key=True),
}


def effect_rules(settings: Settings, servers: Sequence[str]) -> dict[str, dict[str, EffectRule]]:
    """The rules of each server, by `server.tool`. servers: the configured ones; none = the example shop with its own
    rules, each of which one in the settings replaces.

    Raises: ConfigError for a rule that cannot be read, contradicts itself or is for no server.
    """
    rules = {} if servers else {"shop": dict(SHOP_RULES)}
    for name, given in settings.tools.effects.items():
        there = [server for server in servers or ("shop",) if name.startswith(f"{server}.")]
        if not there:
            raise _unplaced(name, servers or ("shop",))
        rules.setdefault(max(there, key=len), {})[name] = effect_rule(name, given)
    return rules


def tools_with_rules(settings: Settings) -> set[str]:
    """The tools that have a rule, by `server.tool` or the names of functions, whatever it says."""
    return set(settings.tools.effects) | (set() if settings.mcp_servers else set(SHOP_RULES))


def _unplaced(name: str, servers: Sequence[str]) -> ConfigError:
    known = ", ".join(servers)
    return ConfigError(f'tools.effects."{name}": write "SERVER.TOOL" in quotes, with one of the servers {known}')


def effect_rule(name: str, given: Mapping[str, Any]) -> EffectRule:
    """One rule. Raises: ConfigError when it cannot be read or contradicts itself."""
    where = f'tools.effects."{name}"'
    try:
        return msgspec.convert(given, EffectRule)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        raise ConfigError(f"{where}: {cause.message if isinstance(cause, ConfigError) else error}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}") from None


@contextlib.asynccontextmanager
async def effect_store(settings: Settings) -> AsyncIterator[EffectStore]:
    """The database of effects, opened, and closed with the block. Raises: ConfigError, StoreError."""
    database = await asyncio.to_thread(open_effects, settings)
    try:
        yield EffectStore(database)
    finally:
        await database.aclose()


def open_effects(settings: Settings) -> Database:
    """The database of effects. Blocks. Raises: ConfigError, StoreError."""
    return Database(settings.database("effects.db"), MIGRATIONS, what="the database of effects", schema="effects")


@contextlib.asynccontextmanager
async def guarded_tools(settings: Settings, tools: ToolSet, *, named: bool) -> AsyncIterator[ToolSet]:
    """`tools`, those under their contract that the settings have a rule for: by `server.tool`, and Python functions by
    their names. Rules for servers that `tools` has nothing from are left aside. named: the run has a name of its own.

    Raises: ConfigError for a rule that names no tool, or takes its keys from the name of a run that has none;
    StoreError; ToolFault when the tools cannot be listed.
    """
    listed = await tools.list()
    servers = sorted({tool.server for tool in listed if tool.server})
    functions = {tool.name for tool in listed if not tool.server}
    rules = {}
    for name, given in settings.tools.effects.items():
        if name in servers:
            raise _unplaced(name, servers)
        if name in functions or any(name.startswith(f"{server}.") for server in servers):
            rules[name] = effect_rule(name, given)
            if REQUEST in rules[name].parts and not named:
                raise ConfigError(
                    f'tools.effects."{name}" knows an effect by the names of run and item: give the map a name of its '
                    'own, such as run="payroll-2026-11", or two scripts would take each other\'s effects for their own'
                )
    if not rules:
        yield tools
        return
    async with effect_store(settings) as store:
        guarded = Effects(tools, rules, store, clock=SystemClock(), owner=process_name())
        await guarded.list()
        yield guarded


@contextlib.asynccontextmanager
async def effect_people(settings: Settings) -> AsyncIterator[EffectPeople]:
    """The people's side of the database of effects. Raises: ConfigError, StoreError."""
    async with effect_store(settings) as store:
        yield EffectPeople(store.database)


async def record_denial(store: EffectStore, call: CallContext, tool: str) -> None:
    """Keep in the audit that a call asked for a tool it may not use."""
    await store.denied(tool[:200], run=call.run, task=call.task, role=call.role, customer=call.user, tenant=call.tenant)


def process_name() -> str:
    """`host:pid`, for leases and the audit."""
    return f"{socket.gethostname()}:{os.getpid()}"
