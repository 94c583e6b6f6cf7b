"""`siafu.map` with tools of the caller's own, under rules of siafu.toml."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import siafu
from siafu.config.effects import effect_people
from siafu.config.settings import load
from siafu.errors import ConfigError
from siafu.gateway.scripted import Scripted

CASHIER = Path(__file__).parents[1] / "tools" / "servers" / "cashier.py"
RULE = '[tools.effects."cash.pay"]\nkey = ["request", "order_id"]\n'
pytestmark = pytest.mark.usefixtures("plain")


async def session(folder: Path, rules: str, tools: Any = None, *, refused: str = "") -> list[str]:
    """One run without a journal, so nothing but the contract knows of an earlier one. Returns what the tool said."""
    (folder / "siafu.toml").write_text(rules, encoding="utf-8")
    server = siafu.McpTools(siafu.McpServer(name="cash", command=sys.executable, args=(str(CASHIER), str(folder))))

    async def work(item: dict[str, Any], ctx: siafu.TaskContext) -> str:
        return (await ctx.tool("pay", item)).text

    items = [{"order_id": "1001", "amount": 500}]
    run = siafu.map(
        work, items, key=lambda item: item["order_id"], run="refunds", tools=tools or server, endpoint=Scripted([])
    )
    try:
        return [str(result.value) async for result in run]
    finally:
        await server.aclose()


def paid(folder: Path) -> int:
    return len((folder / "paid").read_text().splitlines())


async def test_a_tool_under_a_rule_acts_once_in_all_runs(tmp_path: Path) -> None:
    first = await session(tmp_path, RULE)
    assert await session(tmp_path, RULE) == first and paid(tmp_path) == 1
    await session(tmp_path, "")
    assert paid(tmp_path) == 2  # without the rule it acts again: the check can fail


async def test_keys_from_names_need_a_name(tmp_path: Path) -> None:
    """Two scripts without one would both be called "map", and take each other's effects for their own."""
    (tmp_path / "siafu.toml").write_text('[tools.effects.pay]\nkey = ["request", "order_id"]\n', encoding="utf-8")
    calls: list[str] = []

    def pay(order_id: str) -> str:
        """Pay."""
        calls.append(order_id)
        return "paid"

    async def work(item: str, ctx: siafu.TaskContext) -> str:
        return (await ctx.tool("pay", {"order_id": item})).text

    async def script(rule: str = "", **options: Any) -> None:
        if rule:
            (tmp_path / "siafu.toml").write_text(f"[tools.effects.pay]\n{rule}\n", encoding="utf-8")
        async for result in siafu.map(work, ["1"], tools=[pay], endpoint=Scripted([]), **options):
            assert result.ok

    with pytest.raises(ConfigError, match="give the map a name of its own"):
        await script()
    assert calls == []
    for name in ("one", "another", "one"):
        await script(run=name)
    assert len(calls) == 2  # "one" again is the same effect
    for journal in ("a.db", "b.db"):  # keys of steps are drawn, so that they need no name
        await script('key = "step"', journal=tmp_path / journal)
    assert len(calls) == 4


async def test_the_switch_holds_for_it(tmp_path: Path) -> None:
    async with effect_people(load(environ={})) as people:
        await people.switch("cash.pay", "", on=False, by="lee", reason="")
    (told,) = await session(tmp_path, RULE)
    assert "switched off" in told and not (tmp_path / "paid").exists()


async def test_a_function_has_a_rule_by_its_name(tmp_path: Path) -> None:
    calls: list[str] = []

    def pay(order_id: str, amount: int) -> str:
        """Pay."""
        calls.append(order_id)
        return json.dumps({"paid": amount})

    for _ in range(2):
        await session(tmp_path, '[tools.effects.pay]\nkey = ["request", "order_id"]\n', [pay])
    assert calls == ["1001"]


async def test_rules_for_other_servers_are_left_aside_and_misspelled_ones_refused(tmp_path: Path) -> None:
    await session(tmp_path, '[tools.effects."shop.process_refund"]\nkey = "request"\n')
    assert paid(tmp_path) == 1
    with pytest.raises(ConfigError, match=r"cash.pya.*did you mean cash.pay"):
        await session(tmp_path, '[tools.effects."cash.pya"]\n')
    with pytest.raises(ConfigError, match="in quotes"):
        await session(tmp_path, '[tools.effects.cash.pay]\nkey = "step"\n')
