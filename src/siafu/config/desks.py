"""The desks where people decide: one for each database that holds decisions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import msgspec

from siafu.apps.support.shop.database import ShopDatabase
from siafu.apps.support.shop.money import rows
from siafu.apps.support.shop.money.answers import answer
from siafu.apps.support.shop.money.approvals import ShopApprovals
from siafu.apps.support.shop.money.keys import request_key
from siafu.apps.support.shop.money.records import TOOL
from siafu.border.canonical import dumps
from siafu.config.effects import effect_people
from siafu.config.settings import Settings
from siafu.store.approval import ApprovalDesk
from siafu.store.effect_people import EffectPeople
from siafu.tools.toolset import ToolResult


@contextlib.asynccontextmanager
async def approval_desks(settings: Settings, *, shop: str | None) -> AsyncIterator[Mapping[str, ApprovalDesk]]:
    """By name: `swarm` (tools under the effect contract) and `shop`. shop: the example shop's database; None = its
    default place, if there is one. What has become of effects that wait for the shop's people is brought up to date.

    Raises: ConfigError, StoreError.
    """
    async with contextlib.AsyncExitStack() as stack:
        people = await stack.enter_async_context(effect_people(settings))
        desks: dict[str, ApprovalDesk] = {"swarm": people}
        place = settings.home / "shop.db"
        if shop or place.exists():
            database = await asyncio.to_thread(ShopDatabase, shop or place)
            stack.push_async_callback(database.aclose)
            desks["shop"] = ShopApprovals(database)
            await _hear(people, database)
        yield desks


async def _hear(people: EffectPeople, shop: ShopDatabase) -> None:
    """A refund that was decided is carried out by the shop, whether or not anybody asks for it again."""
    for effect in await people.effects("waiting", limit=1_000_000):
        if not effect.tool.endswith(f".{TOOL}"):
            continue
        order_id = str(msgspec.json.decode(effect.arguments).get("order_id"))
        key = request_key(effect.run, effect.task, order_id)
        found = await shop.run(lambda tx, key=key: rows.by_key(tx, "", key))  # type: ignore[misc]
        if found and found[0].customer == effect.customer and found[0].response is not None:
            made = msgspec.to_builtins(answer(found[0]))
            result = dumps(ToolResult(text=dumps(made).decode(), structured=made)).decode()
            await people.heard(effect.id, by="the shop", result=result if found[0].state == "succeeded" else None)
