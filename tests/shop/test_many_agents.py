"""A hundred agents at one product, and a switch that is thrown meanwhile: through real servers, on both databases."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from siafu.apps.support.shop import brakes, stock
from siafu.apps.support.shop.database import ShopDatabase
from siafu.apps.support.shop.server import AUDIENCE, META_KEY
from siafu.apps.support.shop.tools import TOOLS
from siafu.border.identity import mint
from siafu.border.secrets import Secret

from .test_http import KEY, serving

SKU, PIECES, AGENTS = "SKU-2001", 150, 100


@pytest.fixture
def shop(sql_url: str) -> Iterator[ShopDatabase]:
    with closing(ShopDatabase(sql_url)) as database:
        database.transact(lambda tx: tx.change("UPDATE product SET stock = :n WHERE sku = :sku", n=PIECES, sku=SKU))
        yield database


@pytest.fixture
def urls(sql_url: str, shop: ShopDatabase, tmp_path: Path) -> Iterator[list[str]]:
    """Two servers of one shop."""
    with ExitStack() as stack:
        found = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            found.append(stack.enter_context(serving(tmp_path / name, "--database", sql_url, key=KEY)))
        yield found


def meta(agent: int, effect: str) -> Any:
    token = mint(Secret(KEY), subject=f"c{agent}", audience=AUDIENCE, scopes=TOOLS, now=time.time(), run="r")
    return {META_KEY: token, "siafu/effect-key": effect}


async def call(client: Client, tool: str, arguments: dict[str, Any], given: Any) -> dict[str, Any]:
    found = (await client.call_tool(tool, arguments, meta=given)).structured_content
    assert isinstance(found, dict)
    return found


async def told(client: Client, tool: str, arguments: dict[str, Any], given: Any) -> dict[str, Any]:
    """`call`, again while the shop says that it is away: on a slow machine a hundred wait for one row in vain."""
    async with asyncio.timeout(100):
        while (answer := await call(client, tool, arguments, given)).get("code") == "shop_unavailable":
            await asyncio.sleep(0.1)
    return answer


async def test_a_hundred_agents_share_150_pieces(urls: list[str], shop: ShopDatabase) -> None:
    async with Client(urls[0]) as one, Client(urls[1]) as other:

        async def agent(number: int) -> list[dict[str, Any]]:
            """Wants two pieces, and calls twice as after a lost answer. Every fifth gives them back and comes again."""
            wish, given = {"sku": SKU, "quantity": 2}, meta(number, f"step-{number}")
            both = [await told(client, "reserve_stock", wish, given) for client in (one, other)]
            if number % 5 == 0 and "code" not in both[0]:
                mine = {"reservation_id": both[0]["reservation_id"]}
                for client in (one, other):
                    assert (await told(client, "release_stock", mine, given))["state"] == "released"
                again = await told(other, "reserve_stock", wish, meta(number, f"again-{number}"))
                both = [again, await told(one, "reserve_stock", wish, meta(number, f"again-{number}"))]
            return both

        answers = await asyncio.gather(*(agent(number) for number in range(AGENTS)))
        # Whoever was refused while others held what they then gave back may ask again.
        answers += await asyncio.gather(*(agent(number) for number in range(AGENTS, AGENTS + 30)))

    (product,) = (product for product in shop.products() if product.sku == SKU)
    kept = shop.transact(lambda tx: stock.reservations(tx, "held"))
    assert product.stock == 0 and sum(r.quantity for r in kept) == PIECES
    known = {answer["reservation_id"] for both in answers for answer in both if answer.get("state") == "held"}
    assert known == {r.reservation_id for r in kept}, "every reservation was told to its agent, and no other"
    refused = {answer["code"] for both in answers for answer in both if "code" in answer}
    assert refused == {"insufficient_stock"}
    assert all(first == second for first, second in answers if "code" not in first)


async def test_sec19_the_kill_switch_stops_a_running_server_at_once(urls: list[str], shop: ShopDatabase) -> None:
    seen: list[tuple[float, float, str]] = []  # begun, answered, how
    stop = asyncio.Event()

    async def agent(client: Client, number: int) -> None:
        for step in range(10_000):
            if stop.is_set():
                return
            begun = time.monotonic()
            wish = {"sku": SKU, "quantity": 1}
            made = await call(client, "reserve_stock", wish, meta(number, f"{step}"))
            seen.append((begun, time.monotonic(), made.get("code", "ok")))
            if made.get("state") == "held":
                await call(client, "release_stock", {"reservation_id": made["reservation_id"]}, meta(number, ""))

    async def until(code: str, since: float, times: int = 1) -> None:
        async with asyncio.timeout(60):
            while sum(begun > since and what == code for begun, _, what in seen) < times:
                await asyncio.sleep(0.01)

    async with Client(urls[0]) as one, Client(urls[1]) as other, asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(agent(one if number % 2 else other, number))
        await until("ok", 0.0)
        await asyncio.to_thread(
            shop.transact, lambda tx: brakes.switch(tx, "off", "reserve_stock", "*", by="min", reason="test")
        )
        off = time.monotonic()
        await until("tool_disabled", off, 10)
        searched = await call(one, "search_products", {"query": "이어폰"}, meta(1, ""))
        on = time.monotonic()
        await asyncio.to_thread(
            shop.transact, lambda tx: brakes.switch(tx, "on", "reserve_stock", "*", by="min", reason="")
        )
        await until("ok", on)
        stop.set()
    assert searched["products"]
    during = [code for begun, answered, code in seen if off < begun and answered < on]
    assert len(during) >= 10 and set(during) == {"tool_disabled"}, "none that began later had an effect"
