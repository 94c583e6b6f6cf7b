"""The shop over stdin and stdout, as a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters

from siafu.apps.support.shop.database import ShopDatabase
from siafu.apps.support.shop.server import AUDIENCE, META_KEY
from siafu.border.identity import mint
from siafu.border.secrets import Secret

KEY = "k3y" * 20
HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


def call(number: int, arguments: dict[str, Any], name: str = "get_order_status") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": name, "arguments": arguments}}


def parameters(database: Path, *options: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "siafu", "shop", "serve", "--database", str(database), *options],
        env={**os.environ, "SIAFU_IDENTITY_KEY": KEY},
    )


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shop") / "상점.db"


def talk(database: Path, *lines: bytes, options: tuple[str, ...] = ("--customer", "kim")) -> list[dict[str, Any]]:
    """Send lines, close stdin, and return what the shop wrote until it ended by itself."""
    command = [sys.executable, "-m", "siafu", "shop", "serve", "--database", str(database), *options]
    done = subprocess.run(command, input=b"\n".join(lines), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_uses_the_shop(database: Path, mode: Any) -> None:
    async with Client(parameters(database, "--customer", "kim"), mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == [
            *("get_order_status", "check_inventory", "search_products"),
            *("process_refund", "reserve_stock", "release_stock", "open_ticket"),
        ]
        hints = tools["get_order_status"].annotations
        assert hints and hints.read_only_hint and hints.idempotent_hint and hints.open_world_hint is False
        good = await client.call_tool("get_order_status", {"order_id": "1001"})
        assert not good.is_error and good.structured_content["status_ko"] == "배송중"
        assert json.loads(good.content[0].text) == good.structured_content  # type: ignore[union-attr]
        bad = await client.call_tool("get_order_status", {"order_id": "999999"})
        assert bad.is_error and bad.structured_content["code"] == "order_not_found"
        assert json.loads(bad.content[0].text) == bad.structured_content  # type: ignore[union-attr]
        assert (await client.call_tool("get_order_status", {"order_id": 1001})).structured_content["code"] == (
            "invalid_arguments"
        )
        assert {str(r.uri) for r in (await client.list_resources()).resources} == {
            "shop://policy/refund",
            "shop://catalogue",
        }
        policy = (await client.read_resource("shop://policy/refund")).contents[0]
        assert "환불" in policy.text and "Refund" in policy.text  # type: ignore[union-attr]
        catalogue = (await client.read_resource("shop://catalogue")).contents[0]
        assert len(json.loads(catalogue.text)) >= 60  # type: ignore[union-attr]
        order = (await client.read_resource("shop://orders/1001")).contents[0]
        assert json.loads(order.text) == good.structured_content  # type: ignore[union-attr]
        for uri in ("shop://orders/1002", "shop://orders/999999", "shop://orders/", "shop://else"):
            with pytest.raises(MCPError):
                await client.read_resource(uri)
        with pytest.raises(MCPError, match="unknown tool"):
            await client.call_tool("process_refunds", {})


def token(customer: str, *, audience: str = AUDIENCE, scope: str = "get_order_status", age: float = 0) -> str:
    return mint(Secret(KEY), subject=customer, audience=audience, scopes=[scope], now=time.time() - age)


async def test_each_request_carries_its_own_identity(database: Path) -> None:
    async with Client(parameters(database)) as client:

        async def code(order_id: str, identity: object = None) -> str:
            meta: Any = None if identity is None else {META_KEY: identity}
            result = await client.call_tool("get_order_status", {"order_id": order_id}, meta=meta)
            said = result.structured_content
            return f"{said.get('code', 'ok')}{' now' if said.get('retryable') else ''}"

        assert await code("1001") == "identity_required"
        assert await code("1001", token("kim")) == "ok"
        assert await code("1001", token("lee")) == "order_not_found"
        assert await code("1002", token("lee")) == "ok"
        assert await code("1001", token("kim", scope="check_inventory")) == "not_in_scope"
        for unlike in (token("kim", age=3600), token("kim", age=-600), token("kim", audience="other")):
            assert await code("1001", unlike) == "identity_invalid now", "no fault of the customer"
        assert await code("1001", token("kim")[:-4] + "AAAA") == "identity_invalid now"
        assert await code("1001", "eyJhbGciOiJub25lIn0.e30.") == "identity_invalid"
        assert await code("1001", 5) == "identity_invalid"
        assert not (await client.call_tool("search_products", {"query": "가방"})).is_error


def test_messages_that_mean_two_things_are_answered_with_errors(database: Path) -> None:
    twice = json.dumps(call(1, {"order_id": "1001"})).replace('{"order_id"', '{"order_id": "1002", "order_id"')
    replies = talk(
        database,
        json.dumps(HELLO).encode(),
        twice.encode(),
        json.dumps(call(2, {"order_id": float("nan")})).encode(),
        b"",
        b"not json",
        b"[]",
        b'{"x": "' + b"y" * (2 << 20) + b'"}',
        json.dumps(call(3, {"query": "\ud800"}, "search_products")).encode(),
        json.dumps(call(4, {"order_id": "1001"})).encode(),
    )
    codes = [(reply["id"], reply["error"]["code"]) for reply in replies if "error" in reply]
    assert codes == [(1, -32700), (2, -32700), (None, -32700), (None, -32600), (None, -32700)]
    results = {reply["id"]: reply["result"] for reply in replies if "result" in reply}
    assert results[3]["structuredContent"]["code"] == "empty_query"
    assert results[4]["structuredContent"]["order_id"] == "1001"


def test_calls_that_are_running_when_stdin_ends_are_answered(database: Path) -> None:
    asked = [json.dumps(call(n, {"order_id": "1001"})).encode() for n in range(1, 31)]
    replies = talk(database, json.dumps(HELLO).encode(), *asked, options=("--customer", "kim", "--delay", "300"))
    assert sorted(reply["id"] for reply in replies) == list(range(31))


def test_no_input_at_all_ends_well(database: Path) -> None:
    assert talk(database) == []


def test_prints_inside_a_tool_stay_out_of_the_protocol(database: Path) -> None:
    script = f"""
import os, subprocess, sys
import msgspec
from siafu.apps.support.shop import tools
from siafu.cli.main import main
spec = tools.TOOLS["get_order_status"]
def loud(database, caller, question):
    print("printed by a tool", flush=True)
    os.write(1, b"written to descriptor 1\\n")
    subprocess.run(["echo", "said by a child"])
    assert sys.stdin.read() == ""
    return spec.run(database, caller, question)
tools.TOOLS["get_order_status"] = msgspec.structs.replace(spec, run=loud)
main(["shop", "serve", "--customer", "kim", "--database", {str(database)!r}])
"""
    sent = b"\n".join(json.dumps(message).encode() for message in (HELLO, call(1, {"order_id": "1001"})))
    done = subprocess.run([sys.executable, "-c", script], input=sent + b"\n", capture_output=True, timeout=60)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [0, 1], done.stderr
    for text in (b"printed by a tool", b"written to descriptor 1", b"said by a child"):
        assert text in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(database: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "siafu", "shop", "serve", "--database", str(database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write(json.dumps(HELLO).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 0
        process.send_signal(number)
        assert process.wait(timeout=20) == 0
        assert process.stderr.read() == b""


def test_the_shop_remembers_what_it_was_asked(tmp_path: Path) -> None:
    log = tmp_path / "calls.jsonl"
    talk(
        tmp_path / "shop.db",
        *(json.dumps(m).encode() for m in (HELLO, call(1, {"order_id": "1001"}), call(2, {"order_id": "1002"}))),
        options=("--customer", "kim", "--log-calls", str(log)),
    )
    shop = ShopDatabase(tmp_path / "shop.db")
    seen = [(c.customer, c.tool, c.outcome) for c in shop.calls(10)]
    shop.close()
    assert sorted(seen) == [("kim", "get_order_status", "ok"), ("kim", "get_order_status", "order_not_found")]
    logged = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert sorted(line["arguments"]["order_id"] for line in logged) == ["1001", "1002"]
