"""The shop over Streamable HTTP, as a real process, asked with plain requests and with a real MCP client."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp import Client

from here import command
from siafu.apps.support.shop.server import AUDIENCE, META_KEY
from siafu.border.identity import mint
from siafu.border.secrets import Secret

KEY = "s3cret" * 8
ENV = {name: value for name, value in os.environ.items() if name != "SIAFU_IDENTITY_KEY"}


def environment(key: str | None) -> dict[str, str]:
    return {**ENV, "SIAFU_IDENTITY_KEY": key} if key else ENV


def siafu(*arguments: str, key: str | None = None) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "siafu", *arguments]
    return subprocess.Popen(words, env=environment(key), stderr=subprocess.PIPE)


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.stderr.read() if process.stderr else b""
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text(encoding="utf-8").strip()


@contextmanager
def serving(folder: Path, *options: str, key: str | None = None) -> Iterator[str]:
    ready = folder / "url"
    where = ("--port", "0", "--database", str(folder / "shop.db"), "--ready-file", str(ready))
    process = siafu("shop", "serve", "--transport", "http", *where, *options, key=key)
    try:
        yield wait_for(ready, process)
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert b"Traceback" not in err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("http")


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with serving(folder, key=KEY) as url:
        yield url


def token(customer: str, *, audience: str = AUDIENCE, age: float = 0, key: str = KEY) -> str:
    scopes = ["get_order_status", "search_products"]
    return mint(Secret(key), subject=customer, audience=audience, scopes=scopes, now=time.time() - age)


def ask(order_id: str = "1001") -> bytes:
    return json.dumps(
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "get_order_status", "arguments": {"order_id": order_id}},
        }
    ).encode()


def post(url: str, body: bytes, *, method: str = "POST", **headers: str) -> tuple[int, bytes]:
    """One plain request. `headers`: names with _ for -; Host is what the URL says unless given."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    sent = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    try:
        connection.request(method, parts.path, body, sent)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def code(reply: tuple[int, bytes]) -> str:
    assert reply[0] == 200, reply
    return json.loads(reply[1])["result"]["structuredContent"].get("code", "ok")  # type: ignore[no-any-return]


def test_a_plain_post_without_any_handshake_is_answered(url: str) -> None:
    status, body = post(url, ask(), Authorization=f"Bearer {token('kim')}")
    assert status == 200, body
    result = json.loads(body)["result"]
    assert result["isError"] is False
    assert result["structuredContent"]["order_id"] == "1001"
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]


def test_bearer_tokens(url: str) -> None:
    assert code(post(url, ask())) == "identity_required"
    assert code(post(url, ask(), Authorization=f"Bearer {token('kim')}")) == "ok"
    assert code(post(url, ask(), Authorization=f"bearer {token('lee')}")) == "order_not_found"
    for wrong in (
        f"Bearer {token('kim', audience='another-server')}",
        f"Bearer {token('kim', age=3600)}",
        f"Bearer {token('kim', key='another' * 8)}",
        f"Bearer {token('kim')[:-4]}AAAA",
        f"Bearer {'x' * 9000}",
        f"Basic {token('kim')}",
        "Bearer",
        token("kim"),
    ):
        status, body = post(url, ask(), Authorization=wrong)
        assert status == 401 and b"result" not in body
        assert token("kim")[:20].encode() not in body


def test_a_strangers_order_is_the_same_bytes_as_none(url: str) -> None:
    identity = f"Bearer {token('kim')}"
    answers = {post(url, ask(order_id), Authorization=identity) for order_id in ("1002", "1003", "999999", "0000")}
    assert len(answers) == 1 and code(answers.pop()) == "order_not_found"
    assert code(post(url, ask("1002"), Authorization=f"Bearer {token('lee')}")) == "ok"


def test_sec6_host_and_origin(url: str) -> None:
    port = urlsplit(url).port
    for host in ("evil.com", f"evil.com:{port}", "127.0.0.1.evil.com", "localhost.evil.com:80", ""):
        assert post(url, ask(), Host=host)[0] in (400, 403, 421), host
    for origin in ("https://evil.com", "http://127.0.0.1.evil.com", "null", f"http://evil.com:{port}"):
        assert post(url, ask(), Origin=origin)[0] == 403, origin
    for good in ({"Host": f"localhost:{port}"}, {"Host": "127.0.0.1"}, {"Origin": f"http://127.0.0.1:{port}"}):
        assert post(url, ask(), **good)[0] == 200, good


def test_requests_that_are_none_are_refused(url: str) -> None:
    twice = ask().replace(b'{"order_id"', b'{"order_id": "1002", "order_id"')
    for body in (
        twice,
        ask().replace(b'"1001"', b"NaN"),
        ask().replace(b'"1001"', b"1e999"),
        b"",
        b"{",
        b"[]",
        b"\xff",
    ):
        status, answer = post(url, body)
        assert status == 400 and json.loads(answer)["error"]["code"] in (-32700, -32600), body
    assert json.loads(post(url, twice)[1])["id"] == 1
    assert post(url, b" " * (1 << 20) + ask())[0] == 413
    assert post(url, b" " * ((1 << 20) - len(ask())) + ask())[0] == 200
    assert post(url, ask(), Content_Type="text/plain")[0] in (400, 415)
    for method in ("GET", "DELETE", "PUT"):
        assert post(url, b"", method=method)[0] == 405
    assert post(url.removesuffix("mcp") + "elsewhere", ask())[0] == 404


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_many_customers_share_one_connection(url: str, mode: Any) -> None:
    async with Client(url, mode=mode) as client:

        async def status(order_id: str, customer: str) -> str:
            meta: Any = {META_KEY: token(customer)}
            found = (await client.call_tool("get_order_status", {"order_id": order_id}, meta=meta)).structured_content
            return found.get("code", "ok")  # type: ignore[no-any-return]

        mine, others = [("1001", "kim"), ("1002", "lee"), ("1003", "park")], [("1001", "lee"), ("1002", "kim")]
        answers = await asyncio.gather(*(status(*pair) for pair in (mine + others) * 5))
        assert answers == (["ok"] * 3 + ["order_not_found"] * 2) * 5
        catalogue = await client.call_tool("search_products", {"query": "earphones"})
        assert catalogue.structured_content["products"][0]["name_ko"] == "무선 이어폰 프로"


def test_without_a_key_a_token_is_refused_rather_than_passed_over(tmp_path: Path) -> None:
    with serving(tmp_path, "--customer", "kim") as url:
        assert code(post(url, ask())) == "ok"
        assert post(url, ask(), Authorization=f"Bearer {token('lee')}")[0] == 401
        body = json.loads(ask())
        body["params"]["_meta"] = {META_KEY: token("lee")}
        assert code(post(url, json.dumps(body).encode())) == "identity_invalid"
    database = str(tmp_path / "shop.db")
    calls = command(tmp_path, "shop", "calls", "--json", "--database", database, environment=ENV)
    seen = [(call["customer"], call["outcome"]) for call in json.loads(calls.stdout)]
    assert seen == [("kim", "ok"), (None, "identity_invalid")]


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        (("--host", "0.0.0.0"), None, "SIAFU_IDENTITY_KEY"),
        (("--host", "::"), None, "SIAFU_IDENTITY_KEY"),
        (("--host", "0.0.0.0", "--customer", "kim"), KEY, "--customer"),
        (("--allow-host", "*"), KEY, "--allow-host"),
        ((), "short", "SIAFU_IDENTITY_KEY"),
        (("--database", "mysql://x/y"), None, "sqlite"),
    ],
)
def test_unsafe_starts_are_refused(tmp_path: Path, options: tuple[str, ...], key: str | None, words: str) -> None:
    serve = ("shop", "serve", "--transport", "http", "--port", "0", "--database", str(tmp_path / "shop.db"))
    done = command(tmp_path, *serve, *options, environment=environment(key))
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


def test_beyond_loopback_only_named_hosts_get_in(tmp_path: Path) -> None:
    with serving(tmp_path, "--host", "0.0.0.0", "--allow-host", "shop.example", key=KEY) as url:
        local = f"http://127.0.0.1:{urlsplit(url).port}/mcp"
        assert post(local, ask(), Host="shop.example")[0] == 200
        assert post(local, ask(), Host="shop.example:80", Origin="https://shop.example")[0] == 200
        assert post(local, ask(), Host="evil.com")[0] == 421


def test_a_taken_port_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = ("--port", str(taken.getsockname()[1]), "--database", str(tmp_path / "shop.db"))
        process = siafu("shop", "serve", "--transport", "http", *where)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 2 and b"--port" in err and b"Traceback" not in err


@pytest.mark.kill
def test_it_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    ready = tmp_path / "url"
    script = f"""
import os, subprocess, sys, time
command = [sys.executable, "-m", "siafu", "shop", "serve", "--transport", "http", "--port", "0",
           "--database", {str(tmp_path / "shop.db")!r}, "--ready-file", {str(ready)!r},
           "--parent-pid", str(os.getpid())]
subprocess.Popen(command, stderr=subprocess.DEVNULL)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], env=ENV, stderr=subprocess.PIPE)
    url = wait_for(ready, parent)
    assert post(url, ask())[0] == 200
    parent.kill()
    parent.communicate(timeout=20)
    deadline = time.monotonic() + 20
    while True:
        try:
            post(url, ask())
        except OSError:
            break
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_calls_in_flight_are_answered_before_it_stops(tmp_path: Path) -> None:
    with serving(tmp_path, "--customer", "kim", "--delay", "1000") as url:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
        connection.request("POST", parts.path, ask(), {"Content-Type": "application/json"})
        post(url, b"{}")  # the first request has been read by now
    assert json.loads(connection.getresponse().read())["result"]["isError"] is False
    connection.close()
