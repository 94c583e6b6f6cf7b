"""`GET /metrics`: what it tells, and whom."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from siafu.border.listening import bind, bind_first, bound_url, host_and_ports
from siafu.border.secrets import Secret
from siafu.config.settings import load
from siafu.config.watching import known_models, scrape_token
from siafu.errors import ConfigError
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import PlainReply, Reply
from siafu.gateway.scripted import say
from siafu.observe.calls import CallContext
from siafu.observe.counts import Counts
from siafu.observe.scrape import Scrape
from siafu.pace.clock import SystemClock
from siafu.service.metrics import WRONG_AT_ONCE, Metrics, MetricsApp
from siafu.service.server import served_beside

from .server import server
from .test_app import make_key

TOKEN = Secret("a-token-that-is-long-enough")


class Ready:
    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        return PlainReply(say("네"))


async def test_who_is_on_this_machine_reads_what_was_asked(tmp_path: Path) -> None:
    async with server(tmp_path, Ready()) as served:
        await served.ask()
        await served.ask("/v1/chat/completions", b"no json")
        await served.ask("/v1/models/그런것은없다")
        await served.ask("/wp-admin/setup.php")
        status, headers, text = await served.ask("/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    assert 'siafu_http_requests_total{route="/v1/chat/completions",status="200"} 1.0' in text
    assert 'siafu_http_requests_total{route="/v1/chat/completions",status="400"} 1.0' in text
    assert 'siafu_http_requests_total{route="/v1/models/{model}",status="404"} 1.0' in text
    assert 'siafu_http_requests_total{route="other",status="404"} 1.0' in text
    assert 'siafu_http_request_seconds_count{route="/v1/chat/completions"} 1.0' in text
    assert not any(word in text for word in ("그런것은없다", "wp-admin"))


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via", "X-Real-IP"])
async def test_sec42_what_a_proxy_on_this_machine_passes_on_is_refused(tmp_path: Path, header: str) -> None:
    async with server(tmp_path) as served:
        status, _, said = await served.ask("/metrics", **{header: "203.0.113.9"})
        assert (status, said["error"]["code"]) == (403, "metrics_refused")


async def test_sec42_a_server_for_others_tells_metrics_to_nobody_without_a_token(tmp_path: Path) -> None:
    async with server(tmp_path, loopback=False) as served:
        assert (await served.ask("/metrics"))[0] == 401
        assert (await served.ask("/metrics", Host="192.0.2.1"))[0] == 403


async def test_once_clients_need_a_key_metrics_need_the_token(tmp_path: Path) -> None:
    async with server(tmp_path) as served:
        assert (await served.ask("/metrics"))[0] == 200
        _, key = await make_key(served)
        for sent in ({}, key):
            assert (await served.ask("/metrics", **sent))[0] == 401


async def test_a_page_of_another_site_is_refused(tmp_path: Path) -> None:
    async with server(tmp_path) as served:
        assert (await served.ask("/metrics", Host="evil.example"))[0] == 421
        assert (await served.ask("/metrics", Origin="https://evil.example"))[0] == 403


@pytest.mark.parametrize("loopback", [True, False])
async def test_sec42_with_a_token_it_is_needed_wherever_one_asks_from(tmp_path: Path, loopback: bool) -> None:
    async with server(tmp_path, scrape_token=TOKEN, loopback=loopback) as served:
        status, headers, said = await served.ask("/metrics")
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert TOKEN.reveal() not in str(said)
        for wrong in (f"Bearer {TOKEN.reveal()}x", TOKEN.reveal(), f"Basic {TOKEN.reveal()}", "Bearer", "Bearer 열쇠"):
            assert (await served.ask("/metrics", Authorization=wrong.encode().decode("latin-1")))[0] == 401
        status, _, text = await served.ask("/metrics", Authorization=f"bearer {TOKEN.reveal()}")
        assert status == 200
        assert TOKEN.reveal() not in text


async def test_sec34_who_guesses_tokens_is_slowed_down_and_the_right_one_is_not(tmp_path: Path) -> None:
    async with server(tmp_path, scrape_token=TOKEN) as served:
        found = [(await served.ask("/metrics", Authorization=f"Bearer {n}"))[0] for n in range(3 * WRONG_AT_ONCE)]
        assert found[0] == 401
        assert 429 in found
        assert (await served.ask("/metrics", Authorization=f"Bearer {TOKEN.reveal()}"))[0] == 200


async def test_beside_a_worker_there_is_that_page_and_no_other() -> None:
    clock = SystemClock()
    scrape = Scrape(Counts(), clock)
    with bind("127.0.0.1", 0) as listening:
        page = MetricsApp(Metrics(scrape, None, clock, lambda: True), clock)
        async with served_beside(page, listening), aiohttp.ClientSession() as session:
            url = bound_url(listening)
            found = {}
            for method, path in itertools.product(("GET", "POST"), ("/metrics", "/", "/v1/chat/completions")):
                async with session.request(method, url + path) as reply:
                    found[method, path] = reply.status
            async with session.get(f"{url}/metrics", headers={"Host": "evil.example"}) as reply:
                assert reply.status == 403
            async with session.get(f"{url}/metrics") as reply:
                assert "agent_swarm_task_total" in await reply.text()
    assert found.pop(("GET", "/metrics")) == 200
    assert set(found.values()) <= {404, 405}


async def test_it_ends_with_the_block_also_while_somebody_reads() -> None:
    clock = SystemClock()
    with bind("127.0.0.1", 0) as listening:
        page = MetricsApp(Metrics(Scrape(Counts(), clock), None, clock, lambda: True), clock)
        async with asyncio.timeout(10):
            async with served_beside(page, listening):
                _, writer = await asyncio.open_connection(*listening.getsockname())
                writer.write(b"GET /metrics HTTP/1.1\r\n")  # and no more
                await writer.drain()
            writer.close()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("8000", ("127.0.0.1", range(8000, 8001))),
        ("0.0.0.0:8000-8003", ("0.0.0.0", range(8000, 8004))),
        ("[::1]:0", ("::1", range(1))),
        ("한국.example:80", ("한국.example", range(80, 81))),
        (":8000", None),
        ("8000:", None),
        ("host", None),
        ("1:65536", None),
        ("8003-8000", None),
        ("1000-2000", None),
        ("-1", None),
        ("٣", None),
    ],
)
def test_where_to_listen(text: str, found: Any) -> None:
    if found is not None:
        assert host_and_ports(text, "--metrics") == found
        return
    with pytest.raises(ConfigError, match="such as 8000"):
        host_and_ports(text, "--metrics")


def test_of_several_ports_each_process_gets_one() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="cannot listen"):
            bind_first("127.0.0.1", range(port, port + 1))
        with bind_first("127.0.0.1", range(port, port + 20)) as free:
            assert port < free.getsockname()[1] < port + 20


def test_a_token_that_can_be_guessed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIAFU_METRICS_TOKEN", raising=False)
    assert scrape_token() is None
    monkeypatch.setenv("SIAFU_METRICS_TOKEN", "short")
    with pytest.raises(ConfigError, match="openssl"):
        scrape_token()
    monkeypatch.setenv("SIAFU_METRICS_TOKEN", f" {TOKEN.reveal()}\n")
    assert scrape_token() == TOKEN


def test_the_models_that_settings_name_have_labels(tmp_path: Path) -> None:
    file = tmp_path / "siafu.toml"
    file.write_text(
        '[models]\nstrong = "a"\n[upstreams.u]\nbase_url = "http://127.0.0.1:1/v1"\nmodels = { b = "c" }\n'
        '[[routes]]\nuse = ["d@u"]\n[budgets]\nsoft = 0.5\ncheaper = { e = "f" }\n',
        encoding="utf-8",
    )
    assert known_models(load(config=file, environ={})) == set("abcdef")
