"""Pays once, in a siafu process of the nursery: FOLDER DATABASE RULE JOURNAL OUTCOME [WISH ...]. The outcome goes, as
JSON, into the file OUTCOME.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
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


def run(folder: str, database: str, rule: str, journal: str, outcome: str, *wishes: str) -> None:
    told = asyncio.run(pay(Path(folder), database, msgspec.json.decode(rule, type=EffectRule), journal, wishes))
    (Path(folder) / outcome).write_text(json.dumps(told))


async def pay(folder: Path, effects: str, rule: EffectRule, journal: str, wishes: Sequence[str]) -> dict[str, Any]:
    database = Database(effects, MIGRATIONS, what="the test's effects", schema="effects")
    server = McpTools(McpServer(name="cash", command=sys.executable, args=(str(CASHIER), str(folder), *wishes)))
    tools = Effects(server, {"cash.pay": rule}, EffectStore(database), clock=SystemClock(), owner=f"test:{os.getpid()}")
    items = [{"order_id": "1001", "amount": 700}]
    paying = siafu.map(
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
    (result,) = [each async for each in paying]
    await server.aclose()
    await database.aclose()
    return {"ok": result.ok, "value": result.value, "code": result.error.code if result.error else ""}
