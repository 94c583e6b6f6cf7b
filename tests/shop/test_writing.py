"""What trusted values a writing tool acts on, and what clients are told of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import PaginatedRequestParams as _Listing

from paysim import running_payments
from siafu.apps.support.shop import calling, stock
from siafu.apps.support.shop.calling import Caller
from siafu.apps.support.shop.database import ShopDatabase
from siafu.apps.support.shop.money.records import RefundAsk
from siafu.apps.support.shop.refusal import Refusal
from siafu.apps.support.shop.server import AUDIENCE, META_KEY
from siafu.apps.support.shop.tools import TOOLS
from siafu.border.identity import Grants, mint
from siafu.border.secrets import Secret

from .test_http import KEY, serving
from .test_stdio import parameters


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShopDatabase]:
    with closing(ShopDatabase(tmp_path_factory.mktemp("shop") / "shop.db")) as database:
        yield database


def ask(shop: ShopDatabase, who: Caller, **arguments: Any) -> RefundAsk:
    given = {"order_id": "1001", **arguments}
    found = shop.transact(lambda tx: calling.use(TOOLS["process_refund"], tx, who, given))
    assert isinstance(found, RefundAsk), found
    return found


def test_a_refunds_key_is_its_request_and_order_and_nothing_a_model_says(shop: ShopDatabase) -> None:
    first = Caller(customer="kim", run="r1", request="q1", effect_key="step-1")
    key = ask(shop, first).key
    assert key.startswith("rr:")
    assert key == ask(shop, first, amount=5, reason="faulty").key
    assert key == ask(shop, Caller(customer="kim", run="r1", request="q1", effect_key="step-2")).key
    others = [Caller(customer="kim", run="r1", request="q2"), Caller(customer="kim", run="r2", request="q1")]
    keys = {key, *(ask(shop, other).key for other in others), ask(shop, first, order_id="1045").key}
    assert len(keys) == 4
    assert ask(shop, Caller(customer="kim")).key == "", "a bare client's is found by the money layer"


def test_what_the_token_says_travels_with_the_ask(shop: ShopDatabase) -> None:
    grants = Grants({"1001": (("KRW", 5000),)})
    who = Caller(customer="kim", run="r", request="q", grants=grants, expected_refunded_minor=7)
    found = ask(shop, who, amount=5000, reason="wrong_item")
    assert (found.customer, found.order.order_id, found.amount_minor, found.reason) == (
        *("kim", "1001"),
        *(5000, "wrong_item"),
    )
    assert (found.grants, found.expected_refunded_minor, found.actor, found.task) == (grants, 7, "agent:r", "q")
    assert ask(shop, Caller(customer="kim")).actor == "kim"


def test_somebody_elses_order_is_no_order(shop: ShopDatabase) -> None:
    def answer(order_id: str) -> object:
        tool, who = TOOLS["process_refund"], Caller(customer="kim")
        return shop.transact(lambda tx: calling.use(tool, tx, who, {"order_id": order_id}))

    assert answer("1002") == answer("999999")
    assert isinstance(found := answer("1002"), Refusal) and found.code == "order_not_found"


async def test_annotations_are_true(tmp_path: Path) -> None:
    async with Client(parameters(tmp_path / "shop.db")) as client:
        listed = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
    told = {
        name: (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint)
        for name, hints in listed.items()
        if hints is not None
    }
    reads = dict.fromkeys(("get_order_status", "check_inventory", "search_products"), (True, False, True, False))
    assert told == {
        **reads,
        "process_refund": (False, True, True, True),
        "reserve_stock": (False, False, True, False),
        "release_stock": (False, True, True, False),
        "open_ticket": (False, False, True, False),
    }


def meta(customer: str = "choi", scopes: Any = TOOLS, **more: Any) -> Any:
    beside = {name: more.pop(name) for name in ("siafu/bound", "siafu/effect-key") if name in more}
    token = mint(Secret(KEY), subject=customer, audience=AUDIENCE, scopes=scopes, now=time.time(), **more)
    return {META_KEY: token, **beside}


async def test_sec10_a_token_is_shown_and_given_its_tools_only(tmp_path: Path) -> None:
    forged: Any = {META_KEY: "forged"}
    narrow = meta(scopes=["search_products", "open_ticket"])
    with serving(tmp_path, key=KEY) as url:
        async with Client(url) as client:
            assert len((await client.list_tools()).tools) == len(TOOLS)
            listed = await client.session.list_tools(params=_Listing(_meta=narrow))
            assert [tool.name for tool in listed.tools] == ["search_products", "open_ticket"]
            with pytest.raises(MCPError, match="identity token"):
                await client.session.list_tools(params=_Listing(_meta=forged))
            refused = await client.call_tool("process_refund", {"order_id": "1048"}, meta=narrow)
            assert refused.structured_content["code"] == "not_in_scope"


async def test_one_request_is_one_refund_within_what_it_was_granted(tmp_path: Path) -> None:
    with (
        running_payments(tmp_path / "paid.jsonl") as payments,
        serving(tmp_path, "--payments", payments.url, key=KEY) as url,
    ):
        async with Client(url) as client:

            async def refund(given: Any, **arguments: Any) -> str:
                made = await client.call_tool("process_refund", {"order_id": "1048", **arguments}, meta=given)
                return str(made.structured_content.get("code", "ok"))

            def mine(request: str, bound: Any = None, grants: Grants | None = Grants({"1048": ()})) -> Any:
                bound = {} if bound is None else {"siafu/bound": bound}
                return meta(run="r", request=request, grants=grants, **bound)

            assert await refund(mine("q0", grants=Grants())) == "order_not_requested"
            assert await refund(mine("q0"), amount=123) == "amount_not_requested"
            assert await refund(mine("q1", {"expected_refunded_minor": 5})) == "stale_refund_total"
            wrongs: tuple[Any, ...] = ({"expected_refunded_minor": "0"}, {"expected_refunded_minor": -1}, [], 0)
            for wrong in wrongs:
                assert await refund(mine("q1", wrong)) == "input"
            assert payments.stats()["refund_requests"] == 0
            given = mine("q1", {"expected_refunded_minor": 0})
            assert await refund(given) == await refund(given) == "ok"
            assert (
                await refund(mine("q1", grants=Grants({"1048": (("KRW", 5),)})), amount=5) == "idempotency_key_reused"
            )
            assert await refund(mine("q2")) != "ok"
        assert payments.stats()["effects"] == 1
    with closing(ShopDatabase(tmp_path / "shop.db")) as database:
        kept = database.transact(lambda tx: tx.rows("SELECT outcome FROM effect_call ORDER BY id"))
    assert [row["outcome"] for row in kept].count("ok") == 2 and len(kept) == 11


async def test_an_effect_key_holds_over_connections(tmp_path: Path) -> None:
    wish = {"sku": "SKU-2001", "quantity": 1}
    made = set()
    for _ in range(2):
        async with Client(parameters(tmp_path / "shop.db", "--customer", "kim")) as client:
            given: Any = {"siafu/effect-key": "step-1"}
            made.add((await client.call_tool("reserve_stock", wish, meta=given)).structured_content["reservation_id"])
            wrong: Any = {"siafu/effect-key": 5}
            assert (await client.call_tool("reserve_stock", wish, meta=wrong)).structured_content["code"] == "input"
    with closing(ShopDatabase(tmp_path / "shop.db")) as database:
        assert [r.reservation_id for r in database.transact(stock.reservations)] == [*made]
