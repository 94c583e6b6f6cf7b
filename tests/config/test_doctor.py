from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import ssl
import sys
import time
from contextlib import closing
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

import siafu
from gateway.fake_upstream import OK, Arrival, error, http, upstream
from siafu.apps.support.shop.database import ShopDatabase
from siafu.border.secrets import Secret
from siafu.border.urls import origin
from siafu.config.advice import advice, clock_row, maker_of_host, maker_of_key, model_row, wrong_maker
from siafu.config.databases import database_rows
from siafu.config.doctor import call_rows, ended_well, file_system, settings_rows, state_rows
from siafu.config.effects import open_effects
from siafu.config.reaching import endpoint_rows
from siafu.config.servers import tool_rows
from siafu.config.settings import Settings, given, load
from siafu.config.upstream_keys import Added, changing
from siafu.errors import AccessRefused, QuotaExhausted, RequestRefused
from siafu.gateway import probe
from siafu.gateway.probe import clock_ahead, obstacle, parse_models
from siafu.gateway.upstream import Upstream
from siafu.store.database import look

KEY = "k3y-that-is-real-0123456789"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "CONNECT_SECONDS", 0.5)


def models(*names: str, date: str | None = None) -> bytes:
    body: dict[str, Any] = {"object": "list", "data": [{"id": name} for name in names]}
    return http(body, date=date or formatdate(usegmt=True))


def settings(base_url: str, model: str = "m", **endpoint: Any) -> Settings:
    return Settings.model_validate(
        {"endpoint": {"base_url": base_url, "api_key": Secret(KEY), **endpoint}, "models": {"default": model}}
    )


async def states(base_url: str, **more: Any) -> list[tuple[str, str]]:
    return [(row.check, row.state) for row in await endpoint_rows(settings(base_url, **more))]


# ---- the endpoint ---------------------------------------------------------------------------------------------------


async def test_an_endpoint_that_works() -> None:
    async with upstream([models("m", "n")]) as fake:
        rows = await endpoint_rows(settings(fake.base_url))
        assert [(row.check, row.state) for row in rows] == [("endpoint", "ok"), ("clock", "ok"), ("model m", "ok")]
        assert "it offers 2 models" in rows[0].found and ended_well(rows)
        (asked,) = fake.arrivals
        assert asked.line.startswith("GET /v1/models ") and asked.headers["authorization"] == f"Bearer {KEY}"
        assert await fake.all_closed()


async def test_a_model_that_is_not_offered_gets_its_nearest_names() -> None:
    async with upstream([models("kimi-k2.5", "deepseek-v3.2")]) as fake:
        rows = await endpoint_rows(settings(fake.base_url, model="kimi-k25"))
        assert rows[-1].state == "warn" and "did you mean kimi-k2.5?" in rows[-1].advice


async def test_models_are_wanted_but_not_named() -> None:
    async with upstream([models("a", "b")]) as fake:
        unnamed = Settings.model_validate({"endpoint": {"base_url": fake.base_url}})
        rows = await endpoint_rows(unnamed)
        assert rows[-1].state == "fail" and "SIAFU_MODEL" in rows[-1].found and rows[-1].advice == "it offers a, b"
        assert "without asking for a key" in rows[0].found


async def test_a_clock_that_is_wrong() -> None:
    async with upstream([models("m", date=formatdate(time.time() + 3600, usegmt=True))]) as fake:
        rows = await endpoint_rows(settings(fake.base_url))
        assert rows[1].state == "warn" and rows[1].found.endswith("s behind the endpoint's")
        assert 3500 < int(rows[1].found.split()[0].replace(",", "")) <= 3600


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (error(401, code="invalid_api_key"), "make sure that the key is complete"),
        (error(403, code="permission_error"), "may not do this"),
        (error(402), "top the account up"),
        (error(404), "check the path"),
        (http("<html>Welcome</html>", content_type="text/html"), "that is a web page"),
        (http({"object": "list"}), ""),
        (http(b"", 302, location="https://elsewhere.example/v1/models"), ""),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ""),
    ],
)
async def test_an_endpoint_that_refuses(reply: bytes, words: str) -> None:
    async with upstream([reply]) as fake:
        (row,) = await endpoint_rows(settings(fake.base_url))
        assert row.state == "fail" and row.found.startswith(fake.base_url) and words in row.advice
        assert KEY not in repr(row)
        nearby = "check the path" in row.advice or "web page" in row.advice  # other paths were tried
        assert (len(fake.arrivals) == 1) is not nearby  # a redirect was not followed


async def test_a_base_url_without_its_path() -> None:
    async with upstream([error(404)]) as fake:
        bare = fake.base_url.removesuffix("/v1")
        (row,) = await endpoint_rows(settings(bare))
        assert row.advice == f"the path of the API is missing: try {bare}/v1"


async def test_an_endpoint_that_repeats_the_key_in_its_refusal() -> None:
    async with upstream([error(401, f"Incorrect API key provided: {KEY}")]) as fake:
        (row,) = await endpoint_rows(settings(fake.base_url))
        assert KEY not in repr(row) and "***" in row.found


async def test_a_key_of_another_provider_is_not_sent_at_all() -> None:
    strange = Settings.model_validate({"endpoint": {"api_key": Secret("sk-ant-0123456789abcdef")}})
    (row,) = await endpoint_rows(strange)
    assert row.state == "fail" and "nothing was sent" in row.found and "Anthropic" in row.advice


async def test_nothing_listens(unused_tcp_port: int) -> None:
    (row,) = await endpoint_rows(settings(f"http://127.0.0.1:{unused_tcp_port}/v1"))
    assert row.state == "fail" and f"nothing listens on port {unused_tcp_port}" in row.found


async def test_a_proxy_that_does_not_stand_before_it_hides_no_obstacle(
    unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # not for this machine itself
    (row,) = await endpoint_rows(settings(f"http://127.0.0.1:{unused_tcp_port}/v1"))
    assert f"nothing listens on port {unused_tcp_port}" in row.found


async def test_a_placeholder_and_a_missing_key() -> None:
    for wrong, words in (("YOUR_API_KEY", "placeholder"), ("env:NOT_SET_ANYWHERE", "not set")):
        (row,) = await endpoint_rows(load(environ={"SIAFU_API_KEY": wrong}))
        assert row.state == "fail" and words in row.found


async def test_nothing_configured_is_fine() -> None:
    (row,) = await endpoint_rows(load(environ={}))
    assert row.state == "ok" and "SIMULATED" in row.found and "OPENAI_API_KEY" in row.advice


# ---- where the way ends ---------------------------------------------------------------------------------------------


async def speaks_plainly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()


async def test_obstacles(monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int) -> None:
    async with upstream([models("m")]) as fake:
        assert await obstacle(Upstream(name="u", base_url=fake.base_url)) == ""
    async with await asyncio.start_server(speaks_plainly, "127.0.0.1", 0) as plain:
        port = plain.sockets[0].getsockname()[1]
        assert "does not speak TLS" in await obstacle(Upstream(name="u", base_url=f"https://127.0.0.1:{port}"))
    assert "is not known" in await obstacle(Upstream(name="u", base_url="https://no-such-host.invalid/v1"))
    assert "nothing listens" in await obstacle(Upstream(name="u", base_url=f"http://127.0.0.1:{unused_tcp_port}"))

    async def never(*_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    async def distrust(*_: Any, **__: Any) -> Any:
        refused = ssl.SSLCertVerificationError(1, "no")
        refused.verify_code, refused.verify_message = 1, "nobody knows"
        raise refused

    monkeypatch.setattr(probe, "CONNECT_SECONDS", 0.01)
    for way, words in ((never, "does not answer"), (distrust, "nobody knows")):
        monkeypatch.setattr(asyncio, "open_connection", way)
        assert words in await obstacle(Upstream(name="u", base_url="https://127.0.0.1/v1"))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"data": [{"id": "a"}, {"id": "b"}]}, ("a", "b")),
        ({"models": [{"name": "models/a"}]}, ("models/a",)),
        ([{"id": "a"}, "b", 5, {"id": 5}, {}], ("a", "b")),
        ({"data": []}, ()),
    ],
)
def test_lists_of_models_in_every_form(body: Any, found: tuple[str, ...]) -> None:
    assert parse_models(json.dumps(body).encode(), "application/json") == found


def test_the_clock_of_a_reply() -> None:
    assert clock_ahead({"date": "Sun, 29 Nov 2026 00:00:10 GMT"}, 1795910405.0) == -5.0
    assert clock_ahead({}, 0.0) is clock_ahead({"date": "tomorrow"}, 0.0) is None
    assert [clock_row(ahead).state for ahead in (None, 0.0, -30.0, 31.0)] == ["ok", "ok", "ok", "warn"]


# ---- advice ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "maker"), [("sk-ant-x", "Anthropic"), ("gsk_x", "Groq"), ("sk-proj-x", "OpenAI"), ("sk-1234", "")]
)
def test_keys_are_known_by_their_beginning(key: str, maker: str) -> None:
    assert maker_of_key(Secret(key)) == maker


def test_hosts_are_known_by_their_end() -> None:
    assert maker_of_host("api.openai.com") == maker_of_host("OpenAI.com.") == "OpenAI"
    assert maker_of_host("notopenai.com") == maker_of_host("openai.com.evil.example") == ""


def test_advice_after_a_refused_key() -> None:
    refused = AccessRefused("no", status=401)
    mixed = advice(refused, "https://gateway.example/v1", Secret("sk-ant-0123456789"))
    assert "Anthropic" in mixed and "gateway.example" in mixed
    assert wrong_maker("https://gateway.example/v1", Secret("sk-ant-0123456789")) == ""  # it may well take that key
    assert "SIAFU_BASE_URL" in advice(refused, "https://api.openai.com/v1", Secret("sk-0123456789"))
    assert "SIAFU_API_KEY" in advice(refused, "http://127.0.0.1:1/v1", None)
    assert advice(QuotaExhausted("no"), "https://a.example/v1", None).startswith("top the account up")
    assert advice(RequestRefused("no", status=400), "https://a.example/v1", None) == ""


def test_models_of_a_family_prefix_count_as_offered() -> None:
    assert model_row("gemini-2.5-flash", ["cheap"], ["models/gemini-2.5-flash"]).state == "ok"
    assert model_row("zzz", ["cheap"], ["a"]).advice.startswith("`siafu doctor --call`")


# ---- calls ----------------------------------------------------------------------------------------------------------

CALLS: list[tuple[dict[str, Any] | bytes, str, str]] = [
    (OK, "warn", "price unknown"),
    ({**OK, "model": "gpt-4.1-mini"}, "ok", "10 + 2 tokens (0 cached, 0 reasoning)"),
    ({**OK, "usage": None}, "warn", "usage unknown"),
    (error(404, code="model_not_found"), "fail", "model_not_found"),
]


@pytest.mark.parametrize(("reply", "state", "words"), CALLS)
async def test_a_call_tells_latency_usage_and_price(reply: dict[str, Any] | bytes, state: str, words: str) -> None:
    async with upstream([reply if isinstance(reply, bytes) else http(reply)]) as fake:
        (row,) = await call_rows(settings(fake.base_url))
        assert row.state == state and words in row.found
        assert fake.arrivals[0].json["max_tokens"] == 16


async def test_each_model_that_would_be_asked_is_called_once() -> None:
    def answer(arrival: Arrival) -> bytes:
        return http({**OK, "model": arrival.json["model"]})

    async with upstream(answer) as fake:
        own = settings(fake.base_url).model_dump() | {"models": {"strong": "big", "cheap": "small"}}
        rows = await call_rows(Settings.model_validate(own))
        assert [row.check for row in rows] == ["call small", "call big"] and len(fake.arrivals) == 2


async def test_a_call_that_is_refused_is_explained_by_the_key_that_was_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADDED", "sk-ant-0123456789abcdef")
    async with upstream([error(401)]) as fake:
        own = settings(fake.base_url, api_key=None).model_copy(update={"home": tmp_path})
        with changing(tmp_path, "default") as beside:
            beside.added.append(Added("env:ADDED", origin(fake.base_url)))
        (row,) = await call_rows(own)
        assert row.state == "fail" and "Anthropic" in row.advice
        assert fake.arrivals[0].headers["authorization"].startswith("Bearer sk-ant-")


# ---- the machine ----------------------------------------------------------------------------------------------------


def test_settings_are_told_with_their_source_and_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(
        "[endpoint]\napi_key = 'env:NAMED'\nheaders = { x-team = 'plain' }\n"
        "[mcp_servers.a]\ncommand = 'a'\nenv = { K = 'env:K', V = 'v' }\n"
    )
    rows = {row.check: row.found for row in settings_rows(given(config=path, environ={"SIAFU_MODEL": "m"}))}
    assert rows["endpoint.api_key"] == f"env:NAMED  (from {path})"
    assert rows["models.default"] == "m  (from SIAFU_MODEL)"
    assert rows["endpoint.headers.x-team"].startswith("*** ") and rows["mcp_servers.a.env.V"].startswith("*** ")
    (shown,) = settings_rows(given(environ={"SIAFU_API_KEY": KEY}, config=None))
    assert shown.found == "***  (from SIAFU_API_KEY)"


def test_an_empty_environment_has_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (row,) = settings_rows(given(environ={}), {"HOME": "/x"})
    assert "all defaults" in row.found
    (row,) = settings_rows(given(environ={}), {"SIAFU_PAYMENTS_URL": "http://127.0.0.1:1"})
    assert "all defaults" not in row.found and "SIAFU_PAYMENTS_URL" in row.found and "127" not in row.found


def test_the_state_folder(tmp_path: Path) -> None:
    rows = state_rows(tmp_path / "not" / "there" / "yet")
    assert [row.check for row in rows] == ["state folder", "disk"] and rows[0].state == "ok"
    assert list(tmp_path.iterdir()) == []  # nothing was made
    (tmp_path / "file").write_text("")
    (row,) = state_rows(tmp_path / "file" / "home")
    assert row.state == "fail" and "SIAFU_HOME" in row.advice
    (row,) = state_rows(Path("/proc/nothing"))  # cannot be written, even by root
    assert row.state == "fail"


@pytest.mark.parametrize(
    ("place", "kind"),
    [("/home/kim", "nfs4"), ("/home", "nfs4"), ("/homes", "ext4"), ("/my disk/x", "9p"), ("/", "ext4")],
)
def test_file_systems(place: str, kind: str) -> None:
    mounts = "/dev/sda1 / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\nhost /my\\040disk 9p rw 0 0\nbroken\n"
    assert file_system(Path(place), mounts) == kind


def test_little_disk_and_a_network_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, state in ((10**9, "ok"), (10**9 - 1, "warn"), (10**8 - 1, "fail")):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: type("Usage", (), {"free": free}))
        assert state_rows(tmp_path)[-1].state == state
    monkeypatch.setattr("siafu.config.doctor._mounts", lambda: f"server:/x {tmp_path} nfs rw 0 0")
    assert any(row.state == "fail" and "network" in row.found for row in state_rows(tmp_path))


# ---- tools ----------------------------------------------------------------------------------------------------------


async def test_servers_are_started_and_tell_their_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIAFU_IDENTITY_KEY", raising=False)
    shop = [sys.executable, "-m", "siafu", "shop", "serve"]
    dies = "import sys; sys.exit('주문 서버: no database, key sk-abcdefghijklmnop1234')"
    servers = {
        "shop": {"command": shop[0], "args": shop[1:], "env": {"PYTHONPATH": ":".join(sys.path)}},
        "dies": {"command": sys.executable, "args": ["-c", dies]},
        "none": {"command": "no-such-command-anywhere"},
    }
    rows = {row.check: row for row in await tool_rows(Settings.model_validate({"mcp_servers": servers}))}
    assert rows["tools shop"].state == "ok" and "get_order_status" in rows["tools shop"].found
    assert rows["tools dies"].state == "fail" and "주문 서버: no database" in rows["tools dies"].found
    assert "sk-abc" not in rows["tools dies"].found
    assert rows["tools none"].state == "fail" and "cannot be started" in rows["tools none"].found


async def test_a_rule_for_a_tool_that_its_server_has_not_is_told(tmp_path: Path) -> None:
    env = {"SIAFU_HOME": str(tmp_path), "PYTHONPATH": str(Path(siafu.__file__).parents[1])}
    server = {"command": sys.executable, "args": ["-m", "siafu", "shop", "serve", "--customer", "kim"], "env": env}
    given: dict[str, Any] = {"mcp_servers": {"shop": server}, "tools": {"effects": {"shop.process_refunds": {}}}}
    (row,) = await tool_rows(Settings.model_validate(given))
    assert row.state == "fail" and "shop.process_refunds" in row.found and "shop.process_refund?" in row.advice
    given["tools"] = {"effects": {"shop.process_refund": {}}}
    (row,) = await tool_rows(Settings.model_validate(given))
    assert row.state == "ok"


# ---- databases ------------------------------------------------------------------------------------------------------


async def test_databases_are_looked_at_and_left_as_they_are(tmp_path: Path, sql_url: str) -> None:
    home = tmp_path / "home"
    settings = Settings.model_validate({"home": str(home), "database_url": sql_url})
    places = [(row.check, row.state, "new" in row.found) for row in await database_rows(settings, sql_url)]
    names = ["database tasks", "database effects", "database shop"]
    assert places == [(name, "ok", True) for name in names]
    assert not home.exists() and look(sql_url, what="it", schema="shop", versions=1)[1] is None
    open_effects(settings).close()
    ShopDatabase(sql_url).close()
    _, *rows = await database_rows(settings, sql_url)
    assert [(row.state, "can be read" in row.found) for row in rows] == [("ok", True), ("ok", True)]
    with closing(ShopDatabase(sql_url)) as shop:
        shop.transact(lambda tx: tx.change("UPDATE siafu_schema SET version = 99 WHERE name = 'shop_money'"))
        shop.transact(lambda tx: tx.change("UPDATE siafu_schema SET version = 0 WHERE name = 'effects'"))
    _, older, newer = await database_rows(settings, sql_url)
    assert (older.state, newer.state) == ("ok", "fail")
    assert "older version" in older.found and "newer version" in newer.found


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql://user:geheim@127.0.0.1:9/x", "cannot be reached"),
        ("mysql://u:geheim@h/x", "cannot be used"),
        ("notes.db", "not an SQLite database"),
        ("other.db", "of another program"),
    ],
)
async def test_a_database_that_cannot_be_used_is_told_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.db").write_text("no database" * 200)
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE mine (x)")
    for row in await database_rows(Settings.model_validate({"home": str(tmp_path), "database_url": url}), url):
        assert row.state == "fail" and words in row.found and "geheim" not in row.found
    assert names(tmp_path) == ["notes.db", "other.db"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_a_server_that_cannot_be_used_as_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIAFU_IDENTITY_KEY", raising=False)
    for server, words in (
        ({"command": "x", "identity": "siafu"}, "SIAFU_IDENTITY_KEY"),
        ({"command": "x", "url": "https://x.example"}, "either a command or a url"),
        ({"url": "http://x.example/mcp"}, "https"),
    ):
        (row,) = await tool_rows(Settings.model_validate({"mcp_servers": {"a": server}}))
        assert row.state == "fail" and words in row.found
