"""Pays once, in a siafu process: `pay_child.py FOLDER DATABASE RULE JOURNAL [WISH ...]`; prints the outcome as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

import siafu
from siafu.agents.task import TaskContext
from siafu.gateway.scripted import Scripted
from siafu.pace.clock import SystemClock
from siafu.store.database import Database
from siafu.store.effect_schema import MIGRATIONS
from siafu.store.effects import EffectStore
from siafu.tools.effect_rules import EffectRule
from siafu.tools.effects import Effects
from siafu.tools.mcp import McpTools
from siafu.tools.servers import McpServer

CASHIER = Path(__file__).parent / "servers" / "cashier.py"


async def work(item: dict[str, Any], ctx: TaskContext) -> str:
    return (await ctx.tool("pay", item)).text


async def main(folder: Path, effects: str, rule: EffectRule, journal: str, *wishes: str) -> None:
    database = Database(effects, MIGRATIONS, what="the test's effects", schema="effects")
    server = McpTools(McpServer(name="cash", command=sys.executable, args=(str(CASHIER), str(folder), *wishes)))
    tools = Effects(server, {"cash.pay": rule}, EffectStore(database), clock=SystemClock(), owner=f"test:{os.getpid()}")
    items = [{"order_id": "1001", "amount": 700}]
    run = siafu.map(
        work,
        items,
        key=lambda item: item["order_id"],
        run="pay",
        journal=folder / journal,
        tools=tools,
        endpoint=Scripted([]),
        user=lambda item: "kim",
        retry_failed=True,
    )
    async for result in run:
        code = result.error.code if result.error else ""
        print(json.dumps({"ok": result.ok, "value": result.value, "code": code}))
    await server.aclose()
    await database.aclose()


if __name__ == "__main__":
    where, url, given, *rest = sys.argv[1:]
    asyncio.run(main(Path(where), url, msgspec.json.decode(given, type=EffectRule), *rest))
