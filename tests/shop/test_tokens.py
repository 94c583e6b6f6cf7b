"""SEC4, SEC5: what a token is good for, at a real shop over HTTP with a payment provider that keeps all it is sent."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from siafu.apps.support.shop import stock
from siafu.apps.support.shop.database import ShopDatabase
from siafu.apps.support.shop.server import AUDIENCE, META_KEY
from siafu.border.identity import mint
from siafu.border.secrets import Secret

from .test_http import KEY, post, serving

ORDER, OWNER, THIEF = "1048", "choi", "lee"
LARGE = "1089"  # kim's, which a person has to approve
SCOPES = ("process_refund", "reserve_stock", "release_stock", "open_ticket", "get_order_status", "approve")


class Provider:
    """Pays everything, and keeps every request with its headers, as one text each."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        kept = self.seen

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer("", {"idempotency": True, "lookup": False})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                asked = json.loads(body)
                self.answer(body, {**asked, "id": f"re_{len(kept)}", "status": "succeeded"})

            def answer(self, body: str, value: dict[str, Any]) -> None:
                kept.append(f"{self.requestline}\n{self.headers}\n{body}")
                raw = json.dumps(value).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def providing() -> Iterator[Provider]:
    provider = Provider()
    thread = threading.Thread(target=provider.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield provider
    finally:
        provider.server.shutdown()
        provider.server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens")


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with providing() as found:
        yield found


@pytest.fixture(scope="module")
def url(folder: Path, provider: Provider) -> Iterator[str]:
    with serving(folder, "--payments", provider.url, key=KEY) as found:
        yield found


def token(customer: str = OWNER, *, audience: str = AUDIENCE, request: str = "q", run: str = "r") -> str:
    return mint(
        Secret(KEY), subject=customer, audience=audience, scopes=SCOPES, now=time.time(), run=run, request=request
    )


def call(url: str, name: str, arguments: Any, *, bearer: str = "", meta: Any = None, **headers: str) -> tuple[int, Any]:
    """The status, and the result or what else was said."""
    params = {"name": name, "arguments": arguments, **({} if meta is None else {"_meta": meta})}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    if bearer:
        headers["Authorization"] = f"Bearer {bearer}"
    status, raw = post(url, body, **headers)
    if status != 200:
        return status, raw
    said = json.loads(raw)
    return status, said["result"]["structuredContent"] if "result" in said else said


def made(folder: Path) -> list[tuple[str | None, str]]:
    """Every call that was answered, by whom; refused ones are kept too, and left out here."""
    with closing(ShopDatabase(folder / "shop.db")) as shop:
        return [(each.customer, each.tool) for each in shop.calls(1000) if each.outcome == "ok"]


@pytest.mark.parametrize("audience", ["another-server", "siafu", "siafu-shop-2", AUDIENCE.upper(), f"{AUDIENCE} "])
def test_sec5_a_token_for_another_audience_is_refused(url: str, folder: Path, audience: str) -> None:
    before = made(folder)
    wrong = token(audience=audience)
    status, said = call(url, "get_order_status", {"order_id": ORDER}, bearer=wrong)
    assert status == 401 and wrong.encode() not in said
    status, said = call(url, "get_order_status", {"order_id": ORDER}, meta={META_KEY: wrong})
    assert said["code"] == "identity_invalid" and wrong not in json.dumps(said)
    # Neither stands in for the other: with a good one beside it, the bad one still counts.
    status, said = call(url, "get_order_status", {"order_id": ORDER}, bearer=token(), meta={META_KEY: wrong})
    assert said["code"] == "identity_invalid"
    assert made(folder) == before
    assert call(url, "get_order_status", {"order_id": ORDER}, bearer=token())[1]["order_id"] == ORDER


@pytest.mark.parametrize(("way", "owner", "order_id"), [("bearer", "seo", "1145"), ("meta", "oh", "1188")])
def test_sec5_no_token_is_passed_on(url: str, provider: Provider, way: str, owner: str, order_id: str) -> None:
    """The provider is told what to pay, and nothing of who asked or how they proved it."""
    mine = token(owner)
    given: dict[str, Any] = {"bearer": mine} if way == "bearer" else {"meta": {META_KEY: mine}}
    status, said = call(url, "process_refund", {"order_id": order_id, "amount": 1000}, **given)
    assert (status, said["status"]) == (200, "refunded")
    sent = [each for each in provider.seen if order_id in each]
    assert sent
    for word in ("authorization", "siafu/identity", "eyJ", KEY, f'"{owner}"', *mine.split(".")):
        assert not any(word.lower() in each.lower() for each in sent), word


def test_sec5_a_session_id_proves_nobody(url: str) -> None:
    """What a server hands out to tell conversations apart is no proof of who speaks: only the token is."""
    for headers in ({"Mcp_Session_Id": "choi"}, {"Mcp_Session_Id": "0" * 32}):
        _, said = call(url, "get_order_status", {"order_id": ORDER}, **headers)
        assert said["code"] == "identity_required"
        _, said = call(url, "get_order_status", {"order_id": ORDER}, bearer=token(THIEF), **headers)
        assert said["code"] == "order_not_found"


def test_sec5_stolen_handles_open_nothing(url: str, folder: Path) -> None:
    """Handles cannot be guessed, and are good for the customer alone who got them."""
    wish = {"sku": "SKU-2001", "quantity": 1}
    handles = [
        call(url, "reserve_stock", wish, bearer=token(), meta={"siafu/effect-key": f"k{n}"})[1]["reservation_id"]
        for n in range(8)
    ]
    assert len({handle[:8] for handle in handles}) == 8 and all(len(handle) == 20 for handle in handles)
    for thief in (token(THIEF), ""):
        _, said = call(url, "release_stock", {"reservation_id": handles[0]}, bearer=thief)
        assert said["code"] in ("reservation_not_found", "identity_required")
    # A stolen key of an effect names an effect of the thief's own, and says nothing of the other one.
    _, said = call(url, "reserve_stock", wish, bearer=token(THIEF), meta={"siafu/effect-key": "k0"})
    assert said["reservation_id"] not in handles
    _, said = call(url, "process_refund", {"order_id": ORDER}, bearer=token(THIEF, request="bearer"))
    assert said["code"] == "order_not_found"
    with closing(ShopDatabase(folder / "shop.db")) as shop:
        held = {each.reservation_id for each in shop.transact(stock.reservations) if each.state == "held"}
    assert set(handles) <= held
    assert call(url, "release_stock", {"reservation_id": handles[0]}, bearer=token())[1]["state"] == "released"


@pytest.mark.parametrize("name", ["approve", "decide", "approvals", "resolve", "process_refund_approve"])
def test_sec4_no_token_of_a_run_can_approve(url: str, folder: Path, name: str) -> None:
    """Decisions are not among the tools, whatever a token claims to cover: people make them, at the database."""
    asking = token("kim")
    _, said = call(url, "process_refund", {"order_id": LARGE}, bearer=asking)
    assert said["code"] == "pending_approval"
    open_ = "SELECT id FROM approval WHERE state = 'pending'"
    with closing(ShopDatabase(folder / "shop.db")) as shop:
        pending = [row["id"] for row in shop.transact(lambda tx: tx.rows(open_))]
        assert pending
        for arguments in ({"id": pending[0]}, {"approval_id": pending[0], "approve": True}):
            _, said = call(url, name, arguments, bearer=asking)
            assert "error" in said or said["code"] == "unknown_tool"
        assert [row["id"] for row in shop.transact(lambda tx: tx.rows(open_))] == pending
