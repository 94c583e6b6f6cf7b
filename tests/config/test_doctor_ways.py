"""What the doctor says of wrong addresses, certificates, proxies and keys, at real sockets."""

from __future__ import annotations

import socket
import ssl
import warnings
from pathlib import Path
from typing import Any

import pytest

from certificates import certified, speaking_tls
from gateway.fake_upstream import Arrival, error, http, upstream
from siafu.border.secrets import Secret
from siafu.config.advice import Row
from siafu.config.assembly import notices
from siafu.config.checking import risks
from siafu.config.doctor import risk_rows
from siafu.config.reaching import endpoint_rows
from siafu.config.settings import Settings, load
from siafu.errors import ConfigError
from siafu.gateway import probe

KEY = "k3y-that-is-real-0123456789"
MODELS = http({"data": [{"id": "m"}]})


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "CONNECT_SECONDS", 0.5)


async def look(base_url: str, **own: Any) -> list[Row]:
    found = Settings.model_validate(
        {"upstreams": {"u": {"base_url": base_url, **own}}, "models": {"default": "m"}}
    ).model_copy()
    upstream = found.upstreams["u"].model_copy(update={"api_key": Secret(KEY)})
    return await endpoint_rows(found.model_copy(update={"upstreams": {"u": upstream}}))


async def one(base_url: str, **own: Any) -> Row:
    """The row that says what is wrong."""
    (row,) = [row for row in await look(base_url, **own) if row.state == "fail"]
    assert KEY not in repr(row)
    return row


# ---- TLS ------------------------------------------------------------------------------------------------------------


async def test_sec28_certificates_that_are_refused(tmp_path: Path) -> None:
    """The authority is trusted; else nobody would look at the dates and names."""
    for names, validity, host, words in (
        (["localhost"], {"begins": -3.0, "ends": -1.0}, "localhost", "has expired: renew it at the server"),
        (["localhost"], {"begins": 1.0, "ends": 2.0}, "localhost", "is not valid yet: check this machine's clock"),
        (["other.example"], {}, "localhost", "for another name than localhost: check the address"),
        (["localhost"], {}, "127.0.0.1", "for another address than 127.0.0.1: use the host's name"),
    ):
        files = certified(tmp_path, *names, **validity)
        async with speaking_tls(files, MODELS) as port:
            row = await one(f"https://{host}:{port}/v1", ca_file=str(files.certificate))
            assert words in row.found, row
    async with speaking_tls(certified(tmp_path, "localhost"), MODELS) as port:
        assert (
            "from nobody this machine trusts (self-signed certificate): set ca_file"
            in (await one(f"https://localhost:{port}/v1")).found
        )


async def test_a_good_certificate_is_taken(tmp_path: Path) -> None:
    files = certified(tmp_path, "localhost", "127.0.0.1")
    async with speaking_tls(files, MODELS) as port:
        for host in ("localhost", "127.0.0.1"):
            rows = await look(f"https://{host}:{port}/v1", ca_file=str(files.certificate))
            assert all(row.state != "fail" for row in rows), rows


async def test_plain_and_secure_ports_mixed_up(tmp_path: Path) -> None:
    async with upstream([MODELS]) as fake:
        row = await one(f"https://127.0.0.1:{fake.port}/v1", connect_seconds=0.2)
        assert f"port {fake.port} says nothing of TLS: should the address begin with http://" in row.found  # it waits
    async with speaking_tls(certified(tmp_path, "localhost"), MODELS) as port:
        row = await one(f"http://localhost:{port}/v1")
        assert f"port {port} speaks TLS: the address should begin with https://" in row.found
    async with upstream([http("The plain HTTP request was sent to HTTPS port", 400)]) as fake:
        assert "refused the request (400)" in (await one(fake.base_url)).found  # it only says so


async def test_sec28_tls_older_than_1_2_is_refused(tmp_path: Path) -> None:
    files = certified(tmp_path, "localhost")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        async with speaking_tls(files, MODELS, newest=ssl.TLSVersion.TLSv1_1) as port:
            row = await one(f"https://localhost:{port}/v1", ca_file=str(files.certificate))
    assert "breaks off when TLS begins" in row.found


# ---- addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "real"), [("", "/v1"), ("/api", "/api/v1"), ("/v1/v1", "/v1"), ("/openai", "/v1"), ("/v2", "/api/v1")]
)
@pytest.mark.parametrize("otherwise", [error(404), http("<!doctype html>", content_type="text/html")])
async def test_the_path_of_the_api_is_found(given: str, real: str, otherwise: bytes) -> None:
    def by_path(arrival: Arrival) -> bytes:
        return MODELS if arrival.line.startswith(f"GET {real}/models ") else otherwise

    async with upstream(by_path) as fake:
        root = fake.base_url.removesuffix("/v1")
        row = await one(root + given)
        assert row.advice == f"the API is at {root}{real}: set the base URL to that"
        assert {arrival.headers["host"] for arrival in fake.arrivals} == {f"127.0.0.1:{fake.port}"}


async def test_a_page_at_every_path() -> None:
    async with upstream([http("<html>로그인</html>", content_type="text/html")]) as fake:
        row = await one(fake.base_url)
        assert "that is a web page" in row.advice and "로그인" in row.found


@pytest.mark.parametrize("path", ["/chat/completions", "/models", "/embeddings", "/completions"])
def test_a_path_too_much_is_named(path: str) -> None:
    settings = load(environ={"SIAFU_BASE_URL": f"https://a.example/v1{path}"})
    with pytest.raises(ConfigError, match=f"leave away {path}$"):
        settings.base_url()


# ---- proxies --------------------------------------------------------------------------------------------------------


async def test_proxies_are_told_and_asked(monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://kim:pa55word@127.0.0.1:{unused_tcp_port}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    told, row = await look("https://a.example/v1")
    assert told.found == f"calls go through http://***@127.0.0.1:{unused_tcp_port}  (from HTTPS_PROXY)"
    assert f"the way leads through the proxy http://***@127.0.0.1:{unused_tcp_port}: nothing listens" in row.found
    async with upstream([http("", 407)]) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        row = await one("https://a.example/v1")
        assert "wants a user name and a password" in row.advice
        assert KEY not in "".join(str(arrival.headers) for arrival in proxy.arrivals)
    assert (await look("https://a.example/v1", proxy=f"http://127.0.0.1:{unused_tcp_port}"))[0].found.endswith(
        "(from proxy)"
    )


async def test_a_host_that_does_not_answer() -> None:
    """A full queue of a socket that nobody accepts from takes no more connections."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=0)
    port, held = listening.getsockname()[1], []
    try:
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            held.append(filler)
        row = await one(f"http://127.0.0.1:{port}/v1", connect_seconds=0.2)
        assert f"does not answer on port {port}" in row.found
    finally:
        for filler in (*held, listening):
            filler.close()


# ---- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("Bearer sk-0123456789abcdefghij", "begins with Bearer, which siafu puts before it; leave it away"),
        ('"sk-0123456789abcdefghij"', "stands in quotes"),
        ("'sk-0123456789abcdefghij'", "stands in quotes"),
        ("sk-0123456789\nabcdefghij", "holds a space or a line break"),
        ("sk-0123456789 abcdefghij", "holds a space or a line break"),
        ("sk-0123456789–abcdefghij", "holds characters that no key has"),
        ("YOUR_API_KEY", "still holds a placeholder"),
        (" ", "is empty"),
    ],
)
async def test_keys_that_are_none(key: str, words: str) -> None:
    (row,) = await endpoint_rows(load(environ={"SIAFU_API_KEY": key}))
    assert words in row.found and row.state == "fail" and (len(key) < 20 or key not in row.found)


async def test_a_line_break_at_the_end_of_a_key_is_none_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with upstream([MODELS]) as fake:
        rows = await endpoint_rows(
            load(environ={"SIAFU_API_KEY": f" {KEY}\n", "SIAFU_BASE_URL": fake.base_url, "SIAFU_MODEL": "m"})
        )
        assert all(row.state != "fail" for row in rows)
        assert fake.arrivals[0].headers["authorization"] == f"Bearer {KEY}"


# ---- what works and is not safe -------------------------------------------------------------------------------------


def test_sec28_clear_text_to_another_machine_is_warned_of() -> None:
    settings = load(
        environ={"REDIS_URL": "redis://:geheim@cache.example", "SIAFU_DATABASE_URL": "postgresql://db.example/x"}
    )
    rows = risk_rows(settings)
    assert [(row.state, row.advice) for row in rows] == [
        ("warn", "begin it with rediss://"),
        ("warn", "add ?sslmode=verify-full"),
    ]
    assert [text for text in notices(settings) if "clear text" in text] == risks(settings)
    assert "geheim" not in str(rows)
    assert risk_rows(load(environ={"REDIS_URL": "rediss://cache.example"})) == []
