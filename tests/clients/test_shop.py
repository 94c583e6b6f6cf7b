"""The shop as MCP clients find it: the official one, FastMCP's and npm's, over stdio and HTTP, each its own process.

What was paid is judged from the payment provider's ledger, and what is kept from the shop's database.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from paysim import Payments, running_payments
from shop.test_http import KEY, serving
from siafu.apps.support.shop import stock, tickets
from siafu.apps.support.shop.database import ShopDatabase
from siafu.apps.support.shop.server import AUDIENCE
from siafu.apps.support.shop.tools import TOOLS
from siafu.border.identity import mint
from siafu.border.secrets import Secret

from .asking import Asked, asking, command

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]  # with the time to fetch them
CLIENTS = ("sdk", "fastmcp", "npm-sdk", "npm-client")
PLACES = [(client, over) for client in CLIENTS for over in ("stdio", "http")]
CUSTOMER, SMALL, LARGE = "seo", "1057", "1145"  # 55,000 and 116,000 won, neither sent yet
FOREIGN = "1014"  # shin's, as refundable as SMALL
SLOW = 1.6  # seconds: long enough to be told of it once


@dataclass(frozen=True)
class Place:
    """One customer's client at the shop. over: the transport."""

    which: str
    over: str
    client: Asked
    payments: Payments
    database: Path

    def gets(self, tool: str, **args: Any) -> dict[str, Any]:
        """The answer of a call that succeeds, the same as text and as structure."""
        return self._answered(self.client.call(tool, **args), error=False)

    def is_refused(self, tool: str, **args: Any) -> dict[str, Any]:
        """What a call is told that fails."""
        return self._answered(self.client.call(tool, **args), error=True)

    def _answered(self, answer: dict[str, Any], *, error: bool) -> dict[str, Any]:
        assert answer.get("error") is error, answer
        found: dict[str, Any] = answer["structured"]
        assert json.loads(answer["text"]) == found
        if self.which == "fastmcp" and not error:  # makes an object of it, as the tool's output schema says
            assert found.items() <= answer["data"].items()
        return found


@pytest.fixture(scope="module")
def payments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Payments]:
    with running_payments(tmp_path_factory.mktemp("payments") / "paid.jsonl") as found:
        yield found


@pytest.fixture(scope="module", params=PLACES, ids="-".join)
def place(
    request: pytest.FixtureRequest, payments: Payments, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    which, over = request.param
    start, folder = command(which), tmp_path_factory.mktemp("상점")
    with ExitStack() as stack:
        if over == "stdio":
            serve = ["-m", "siafu", "shop", "serve", "--customer", CUSTOMER, "--payments", payments.url]
            serve += ["--database", str(folder / "shop.db")]
            server: dict[str, Any] = {"command": sys.executable, "args": serve, "env": dict(os.environ)}
        else:
            url = stack.enter_context(serving(folder, "--payments", payments.url, key=KEY))
            token = mint(Secret(KEY), subject=CUSTOMER, audience=AUDIENCE, scopes=TOOLS, now=time.time())
            server = {"url": url, "headers": {"Authorization": f"Bearer {token}"}}
        client = stack.enter_context(asking(start, server))
        yield Place(which, over, client, payments, folder / "shop.db")


def test_what_a_client_learns_of_the_shop(place: Place) -> None:
    about = place.client.about
    assert about["server"]["name"] == "siafu-shop" and "온라인 상점" in about["instructions"]
    # the 1.x line of npm's knows only the handshake of before 2026, and does not say so
    assert about.get("protocol") == (None if place.which == "npm-sdk" else "2026-07-28")
    tools = {tool["name"]: tool for tool in place.client.ask("tools")["tools"]}
    assert list(tools) == list(TOOLS)
    for tool in tools.values():
        jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
        jsonschema.Draft202012Validator.check_schema(tool["outputSchema"])
    hints = tools["process_refund"]["annotations"]
    assert hints["destructiveHint"] and hints["idempotentHint"] and not hints["readOnlyHint"]
    assert "환불" in tools["process_refund"]["description"]


def test_reading(place: Place) -> None:
    order = place.gets("get_order_status", order_id=LARGE)
    assert (order["total_text"], order["status_ko"], order["refunded_minor"]) == ("116,000원", "결제완료", 0)
    found = place.gets("search_products", query="무선 이어폰")["products"]
    assert found[0]["name_ko"] == "무선 이어폰 프로"
    listed = place.client.ask("resources")
    assert [resource["uri"] for resource in listed["resources"]] == ["shop://policy/refund", "shop://catalogue"]
    (shape,) = [template["uriTemplate"] for template in listed["templates"]]
    (policy,) = place.client.ask("read", uri="shop://policy/refund")["contents"]
    assert policy["text"].startswith("# 환불 정책")
    (read,) = place.client.ask("read", uri=shape.replace("{order_id}", LARGE))["contents"]
    assert json.loads(read["text"]) == order
    missing = place.client.ask("read", uri=shape.replace("{order_id}", FOREIGN))
    assert "no order with that number" in missing["failed"]


def test_a_slow_refund_is_told_of_and_made_once(place: Place) -> None:
    place.client.ask("tools")  # from now on answers are held against the tools' output schemas
    before = len(place.payments.effects())
    place.payments.set_faults({"kind": "slow", "wait": SLOW})
    answer = place.client.call("process_refund", order_id=SMALL, reason="change_of_mind")
    steps = [told["progress"] for told in answer["progress"]]
    assert steps and steps == sorted(set(steps))
    done = answer["structured"]
    assert (done["status"], done["amount_text"], done["replayed"]) == ("refunded", "55,000원", False)
    again = place.gets("process_refund", order_id=SMALL, reason="change_of_mind")
    assert again == {**done, "replayed": True}
    order = place.gets("get_order_status", order_id=SMALL)
    assert (order["refunded_minor"], order["refund_pending_minor"], order["refundable_minor"]) == (55_000, 0, 0)
    waits = place.is_refused("process_refund", order_id=LARGE)
    assert waits["code"] == "pending_approval" and "116,000원" in waits["message"] and not waits["retryable"]
    pending = place.gets("get_order_status", order_id=LARGE)
    assert pending["refund_pending_minor"] == pending["refunded_minor"] == 116_000
    (paid,) = place.payments.effects()[before:]
    assert (paid["amount"], paid["currency"]) == (55_000, "KRW")
    assert place.payments.stats()["refund_requests"] == before + 1


def test_refusals_reach_the_client_and_say_what_to_do(place: Place) -> None:
    place.client.ask("tools")
    before = place.payments.stats()["refund_requests"]
    foreign = place.is_refused("process_refund", order_id=FOREIGN)
    assert foreign == place.is_refused("process_refund", order_id="999999")
    assert foreign["code"] == "order_not_found" and "check the order number" in foreign["message"]
    for wrong in ({"order_id": "#1057"}, {"order_id": SMALL, "amount": "55000"}, {"order_id": SMALL, "note": "빨리"}):
        told = place.is_refused("process_refund", **wrong)
        assert told["code"] == "invalid_arguments" and list(wrong)[-1] in told["message"], told
    unknown = place.client.call("refund_everything")
    assert "refund_everything" in unknown["failed"] and unknown["code"] == -32602
    assert place.payments.stats()["refund_requests"] == before


def test_stock_is_reserved_and_given_back(place: Place) -> None:
    place.client.ask("tools")
    left = place.gets("check_inventory", sku="SKU-2004")["stock"]
    held = place.gets("reserve_stock", sku="SKU-2004", quantity=left)
    assert place.gets("reserve_stock", sku="SKU-2004", quantity=left) == held
    assert place.is_refused("reserve_stock", sku="SKU-2004", quantity=left - 1)["code"] == "insufficient_stock"
    assert not place.gets("check_inventory", sku="SKU-2004")["in_stock"]
    for _ in range(2):
        freed = place.gets("release_stock", reservation_id=held["reservation_id"])
        assert freed == {**held, "state": "released"}
    with closing(ShopDatabase(place.database)) as shop:
        (kept,) = shop.transact(stock.reservations)
        assert (kept.customer, kept.quantity, kept.state) == (CUSTOMER, left, "released")
    assert place.gets("check_inventory", sku="SKU-2004")["stock"] == left


def test_a_matter_is_handed_over_once(place: Place) -> None:
    matter = {"subject": "배송 불만 📦", "summary": "상자가 젖어서 왔습니다.\n사진을 보내고 싶어요."}
    opened = place.gets("open_ticket", **matter)
    assert place.gets("open_ticket", **matter) == opened
    with closing(ShopDatabase(place.database)) as shop:
        (kept,) = shop.transact(tickets.tickets)
    assert (kept.ticket_id, kept.customer, kept.subject) == (opened["ticket_id"], CUSTOMER, matter["subject"])
    assert kept.summary.splitlines() == matter["summary"].splitlines()
