"""Several upstreams and keys over real sockets: regions that hang, keys that are refused, Azure's spelling, proxies."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from siafu.border.secrets import Secret
from siafu.errors import Unreachable, UpstreamFault
from siafu.gateway.accounts import Accounts
from siafu.gateway.chat import ChatAnswer
from siafu.gateway.client import Gateway, Way, assemble
from siafu.gateway.limits import Limits
from siafu.gateway.pricing import Prices
from siafu.gateway.routing import Rule, target
from siafu.gateway.upstream import Timeouts, Upstream
from siafu.observe.calls import CallContext
from siafu.observe.events import nobody
from siafu.pace.clock import SystemClock

from .conftest import ASK, KEY, LineLedger
from .fake_upstream import OK, Answer, Arrival, error, http, sse, trickle, upstream

HANG = trickle(gap=0.0, hang=30.0)
HANG_IN_BODY = trickle(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{", gap=0.0, hang=30.0)


def lane(name: str, base_url: str, *, key: str = KEY, id: str = "", tier: int = 1, **upstream: Any) -> Way:
    return Way(
        upstream=Upstream(name=name, base_url=base_url, key=Secret(key), **upstream),
        limits=Limits(),
        prices=Prices(table=False),
        id=id,
        tier=tier,
    )


@asynccontextmanager
async def gateway(ways: Sequence[Way], rules: Sequence[Rule] = ()) -> AsyncIterator[tuple[Gateway, LineLedger]]:
    ledger = LineLedger()
    made = assemble(
        ways, rules, ledger=ledger, accounts=Accounts(), clock=SystemClock(), rng=Random(7), observer=nobody
    )
    try:
        yield made, ledger
    finally:
        await made.aclose()


async def ask(made: Gateway, **changes: Any) -> ChatAnswer:
    request = ASK if not changes else type(ASK)(model=ASK.model, messages=ASK.messages, **changes)
    return await (await made.open(request, CallContext(run="r"))).message()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("silence", [HANG, HANG_IN_BODY])
async def test_a_region_without_a_first_byte_in_time_is_left_for_another(stream: bool, silence: Answer) -> None:
    limits = Timeouts(first_byte=0.2, idle=0.2)
    good = sse({"model": "m", "choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}]}, "[DONE]")
    async with upstream([silence]) as far, upstream([good if stream else http(OK)]) as near:
        ways = [lane("far", far.base_url, timeouts=limits), lane("near", near.base_url, tier=2)]
        async with gateway(ways) as (made, ledger):
            began = time.monotonic()
            assert (await ask(made, stream=stream)).text == "ok"
            assert 0.2 <= time.monotonic() - began < 5.0
            assert await far.until(lambda: not far.connections)  # its socket is freed
        assert [(line.upstream, line.model) for line in ledger.opened] == [("far", "m"), ("near", "m")]
        assert (ledger.ended[0].outcome, ledger.ended[0].usage_known) == ("abandoned", False)
        assert [arrival.headers["x-siafu-attempt"] for arrival in near.arrivals] == ["2"]


async def test_a_refused_key_is_asked_once_and_the_next_one_goes_on() -> None:
    def by_key(arrival: Arrival) -> Answer:
        return error(401, "no such key") if arrival.headers["authorization"] == f"Bearer {KEY}-1" else http(OK)

    async with upstream(by_key) as gw:
        ways = [lane("a", gw.base_url, key=f"{KEY}-{n}", id=f"a#{n}") for n in (1, 2)]
        async with gateway(ways) as (made, ledger):
            answers = [await ask(made) for _ in range(10)]
        assert [answer.attempts for answer in answers] == [2, *[1] * 9]
        keys = [arrival.headers["authorization"][-1] for arrival in gw.arrivals]
        assert keys == ["1", *["2"] * 10]
        assert [line.outcome for line in ledger.ended] == ["refused", *["ok"] * 10]


async def test_a_hundred_calls_meet_a_refused_key_at_once_and_all_are_answered() -> None:
    def by_key(arrival: Arrival) -> Answer:
        return error(401, "no") if arrival.headers["authorization"].endswith("-1") else http(OK)

    async with upstream(by_key) as gw:
        ways = [lane("a", gw.base_url, key=f"{KEY}-{n}", id=f"a#{n}") for n in (1, 2)]
        async with gateway(ways) as (made, _):
            answers = await asyncio.gather(*(ask(made) for _ in range(100)))
        assert len(answers) == 100 and max(answer.attempts for answer in answers) == 2


async def test_models_are_those_that_are_named_and_those_that_one_key_of_each_upstream_in_use_lists() -> None:
    def listed(*names: str) -> bytes:
        return http({"object": "list", "data": [{"id": name} for name in names]})

    async with upstream([listed("m", "n")]) as one, upstream([error(500)]) as broken:
        named = msgspec.structs.replace(lane("c", "http://127.0.0.1:9/v1"), models={"big": "theirs"})
        first, second = (lane("a", one.base_url, key=f"{KEY}-{n}", id=f"a#{n}") for n in (1, 2))
        async with gateway([first, second, lane("b", broken.base_url), named]) as (made, _):
            assert await made.models() == ["big", "m", "n"]
            await made.change([second])
            assert await made.models() == ["m", "n"]
            await made.change([lane("b", broken.base_url)])
            with pytest.raises(UpstreamFault):
                await made.models()
        assert [arrival.headers["authorization"][-1] for arrival in one.arrivals] == ["1", "2"]


async def test_azure_gets_its_header_path_and_version() -> None:
    async with upstream([http(OK)]) as gw:
        azure = lane(
            "azure",
            f"http://127.0.0.1:{gw.port}/openai/deployments/my-gpt",
            key_header="api-key",
            query={"api-version": "2024-10-21"},
            headers={"x-team": "refunds"},
        )
        rules = [Rule(use=(target("m@azure"),))]
        async with gateway([azure], rules) as (made, _):
            await ask(made)
        (arrival,) = gw.arrivals
        assert arrival.line == "POST /openai/deployments/my-gpt/chat/completions?api-version=2024-10-21 HTTP/1.1"
        assert arrival.headers["api-key"] == KEY and "authorization" not in arrival.headers
        assert arrival.headers["x-team"] == "refunds"


async def test_each_upstream_has_its_own_proxy() -> None:
    async with upstream([http(OK)]) as proxy, upstream([http(OK)]) as direct:
        ways = [
            lane("far", "http://127.0.0.1:9/v1", proxy=f"http://127.0.0.1:{proxy.port}"),
            lane("near", direct.base_url),
        ]
        async with gateway(ways) as (made, _):
            await ask(made)
            await ask(made)
        assert [arrival.line for arrival in proxy.arrivals] == ["POST http://127.0.0.1:9/v1/chat/completions HTTP/1.1"]
        assert [arrival.line for arrival in direct.arrivals] == ["POST /v1/chat/completions HTTP/1.1"]


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    return key, cert


async def test_an_own_certificate_authority_counts_for_its_upstream_only(certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(http(OK, connection="close"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}/v1"
        async with gateway([lane("own", url, ca_file=cert)]) as (made, _):
            assert (await ask(made)).text == "ok"
        async with gateway([lane("own", url)]) as (made, _):
            with pytest.raises(Unreachable, match="certificate"):
                await ask(made)
