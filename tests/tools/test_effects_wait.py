"""An item that waits for a person: it holds no place, and goes on after the decision, in another session too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import siafu
from siafu.agents.task import TaskContext
from siafu.gateway.scripted import Scripted, say
from siafu.swarm.results import MapSummary
from siafu.tools.effect_rules import Above, EffectRule

from .cash import Desk

WAITS = EffectRule(approval=Above("amount", 1000), pending="wait")


async def work(item: dict[str, Any], ctx: TaskContext) -> str:
    asked = (await ctx.model(f"pay {item['amount']}?")).text
    return f"{asked} {(await ctx.tool('pay', item)).text}"


async def session(folder: Path, endpoint: Scripted, *amounts: int) -> tuple[dict[str, str], MapSummary]:
    """One process's life over the same items: what was finished, by key."""
    desk = Desk(folder, WAITS)
    run = siafu.map(
        work,
        [{"order_id": str(amount), "amount": amount} for amount in amounts],
        key=lambda item: item["order_id"],
        concurrency=1,
        journal=folder / "run.db",
        tools=desk.tools,
        endpoint=endpoint,
        user=lambda item: "kim",
    )
    found = {result.key: str(result.value) async for result in run if result.ok}
    await desk.aclose()
    return found, run.summary


async def test_an_item_waits_without_a_place_and_goes_on_after_the_decision(tmp_path: Path) -> None:
    endpoint = Scripted([say("yes")] * 3)
    found, summary = await session(tmp_path, endpoint, 5000, 10, 20)  # one at a time, and the first one waits
    assert set(found) == {"10", "20"}
    assert (summary.waiting, summary.left, summary.failed, summary.stopped) == (1, 0, 0, "")
    again, _ = await session(tmp_path, endpoint, 5000, 10, 20)
    assert set(again) == {"10", "20"}  # undecided: it still waits
    desk = Desk(tmp_path, WAITS)
    (approval,) = await desk.people.approvals("pending")
    await desk.people.decide(approval.id, approve=True, by="lee")
    assert len(desk.paid) == 2
    last, summary = await session(tmp_path, endpoint, 5000, 10, 20)
    assert last["5000"].startswith("yes ") and summary.waiting == 0
    assert sorted(each["amount"] for each in desk.paid) == [10, 20, 5000]
    await desk.aclose()


async def test_a_denied_item_ends(tmp_path: Path) -> None:
    endpoint = Scripted([say("yes")])
    await session(tmp_path, endpoint, 5000)
    desk = Desk(tmp_path, WAITS)
    (approval,) = await desk.people.approvals("pending")
    await desk.people.decide(approval.id, approve=False, by="lee")
    found, summary = await session(tmp_path, endpoint, 5000)
    assert "decided against" in found["5000"] and summary.waiting == 0
    assert desk.paid == []
    await desk.aclose()
