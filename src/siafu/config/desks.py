"""The desks where people decide: one for each database that holds decisions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from siafu.apps.support.shop.database import ShopDatabase
from siafu.apps.support.shop.money.approvals import ShopApprovals
from siafu.config.effects import effect_people
from siafu.config.settings import Settings
from siafu.store.approval import ApprovalDesk


@contextlib.asynccontextmanager
async def approval_desks(settings: Settings, *, shop: str | None) -> AsyncIterator[Mapping[str, ApprovalDesk]]:
    """By name: `swarm` (tools under the effect contract) and `shop`. shop: the example shop's database; None = its
    default place, if there is one.

    Raises: ConfigError, StoreError.
    """
    async with contextlib.AsyncExitStack() as stack:
        desks: dict[str, ApprovalDesk] = {"swarm": await stack.enter_async_context(effect_people(settings))}
        place = settings.home / "shop.db"
        if shop or place.exists():
            database = await asyncio.to_thread(ShopDatabase, shop or place)
            stack.push_async_callback(database.aclose)
            desks["shop"] = ShopApprovals(database)
        yield desks
