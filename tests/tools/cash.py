"""A cashier (servers/cashier.py) under the effect contract, and what it has done."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock
from siafu.store.database import Database
from siafu.store.effect_people import EffectPeople
from siafu.store.effect_schema import MIGRATIONS
from siafu.store.effects import EffectStore
from siafu.tools.effect_rules import EffectRule
from siafu.tools.effects import Effects
from siafu.tools.mcp import McpTools
from siafu.tools.servers import McpServer
from siafu.tools.toolset import ToolResult

from .raw import SERVERS

LOOKUP = {"tool": "find", "arguments": {"key": "$key"}, "found": "refunds"}


class Desk:
    """One process with a cashier of its own; several may share the folder. `rule` of None = no contract."""

    def __init__(self, folder: Path, rule: EffectRule | None, *wishes: str, owner: str = "me:1") -> None:
        self.folder = folder
        self.database = Database(folder / "effects.db", MIGRATIONS, what="the test's effects", schema="effects")
        self.store, self.people = EffectStore(self.database), EffectPeople(self.database)
        args = (str(SERVERS / "cashier.py"), str(folder), *wishes)
        self.server = McpTools(McpServer(name="cash", command=sys.executable, args=args))
        rules = {} if rule is None else {"cash.pay": rule}
        self.tools = Effects(self.server, rules, self.store, clock=SystemClock(), owner=owner)

    async def pay(self, step: str = "#0", *, name: str = "pay", user: str = "kim", **arguments: Any) -> ToolResult:
        context = CallContext(run="r", task="t", step=step, user=user, role="refund")
        return await self.tools.call(name, {"order_id": "1001", **arguments}, context)

    def wish(self, word: str) -> None:
        (self.folder / word).touch()

    @property
    def paid(self) -> list[dict[str, Any]]:
        return _lines(self.folder / "paid")

    @property
    def calls(self) -> list[Any]:
        return _lines(self.folder / "calls")

    async def state(self) -> str:
        (effect,) = await self.people.effects()
        return effect.state

    async def aclose(self) -> None:
        await self.server.aclose()
        await self.database.aclose()


def _lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
