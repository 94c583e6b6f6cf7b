from __future__ import annotations

import asyncio
import gc
import json
import warnings
from typing import Any

import aiohttp
import pytest

from siafu.border.secrets import Secret
from siafu.errors import (
    AccessRefused,
    CallTimeout,
    ConfigError,
    DeadlineReached,
    ModelError,
    RateLimited,
    RequestRefused,
    Unreachable,
)
from siafu.gateway import transport as transport_module
from siafu.gateway.chat import ChatRequest
from siafu.gateway.endpoint import End
from siafu.gateway.transport import Transport
from siafu.gateway.upstream import Timeouts, Upstream
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock

from .conftest import ASK, KEY, transport
from .fake_upstream import (
    OK,
    SSE_HEAD,
    Answer,
    Arrival,
    close_after,
    error,
    http,
    http_chunk,
    piece,
    reset_after,
    sse,
    trickle,
    upstream,
)

QUICK = Timeouts(connect=5, idle=0.2, total=5)
STREAM = ChatRequest(model="m", messages=ASK.messages, stream=True)
NOBODY = CallContext()


def data_event(chunk: dict[str, Any]) -> bytes:
    return http_chunk(b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n")


async def test_a_plain_call_sends_what_it_should() -> None:
    async with upstream() as gw, transport(gw.base_url, headers={"X-Team": "개미".encode().hex()}) as t:
        reply = await t.open(ASK, CallContext(attempts=2))
        answer = await reply.message()
        assert (answer.content, answer.usage is not None, reply.head.status) == ("ok", True, 200)
        assert [d.content async for d in reply.deltas()] == ["ok"]
        (arrival,) = gw.arrivals
    assert arrival.line == "POST /v1/chat/completions HTTP/1.1"
    assert arrival.headers["authorization"] == f"Bearer {KEY}"
    assert arrival.headers["content-type"] == "application/json"
    assert arrival.headers["x-siafu-attempt"] == "3"
    assert arrival.headers["user-agent"].startswith("siafu/")
    assert arrival.headers["x-team"] == "개미".encode().hex()
    assert arrival.json == {"model": "m", "messages": [{"role": "user", "content": "주문 1001은 어디에 있나요?"}]}


async def test_a_stream_returns_at_its_first_delta_and_delivers_as_it_comes() -> None:
    go = asyncio.Event()

    async def script(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
        writer.write(SSE_HEAD + http_chunk(b": wait\n\n") + data_event(piece(role="assistant", content="")))
        writer.write(data_event(piece("안")))
        await writer.drain()
        await go.wait()
        text = "data: " + json.dumps(piece("녕", finish="stop"), ensure_ascii=False) + "\n\ndata: [DONE]\n\n"
        for byte in text.encode():  # one byte at a time, also within a Korean letter
            writer.write(http_chunk(bytes([byte])))
            await writer.drain()
        writer.write(http_chunk(b""))

    async with upstream([script]) as gw, transport(gw.base_url) as t:
        reply = await t.open(STREAM, NOBODY)
        ends: list[End] = []
        reply.on_end(ends.append)
        deltas = reply.deltas()
        assert (await anext(deltas)).content == "안"
        assert not ends
        go.set()
        assert [d.content async for d in deltas] == ["녕"]
        answer = await reply.message()
        assert answer.content == "안녕" and (await reply.message()) is answer
        assert ends[0].outcome == "completed" and ends[0].answer is answer
        assert ends[0].first_token is not None and ends[0].first_token <= ends[0].seconds
        reply.on_end(ends.append)
        await reply.aclose()
        assert len(ends) == 2 and ends[1] is ends[0]
        assert gw.arrivals[0].json["stream_options"] == {"include_usage": True}


async def test_connections_are_used_again_plain_and_streamed() -> None:
    script = [http(OK), sse(piece("a", finish="stop"), "[DONE]"), error(429), http(OK)]
    async with upstream(script) as gw, transport(gw.base_url) as t:
        await t.open(ASK, NOBODY)
        await (await t.open(STREAM, NOBODY)).message()
        with pytest.raises(RateLimited):
            await t.open(ASK, NOBODY)
        await t.open(ASK, NOBODY)
        assert len(gw.connections) == 1


async def test_a_stream_answered_plainly_and_one_that_only_calls_tools() -> None:
    tool = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}
    script = [http(OK), sse(piece(tool_calls=[tool]), piece(finish="tool_calls"), "[DONE]")]
    async with upstream(script) as gw, transport(gw.base_url) as t:
        assert (await (await t.open(STREAM, NOBODY)).message()).content == "ok"
        answer = await (await t.open(STREAM, NOBODY)).message()
        assert [c.name for c in answer.tool_calls] == ["f"]


async def silence(writer: asyncio.StreamWriter, arrival: Arrival) -> None:
    await asyncio.sleep(30)


FIRST = data_event(piece("Par"))


async def test_after_the_finish_reason_a_broken_end_does_not_lose_the_answer() -> None:
    whole = SSE_HEAD + FIRST + data_event(piece(finish="stop"))
    script = [close_after(whole), trickle(whole, gap=0, hang=30)]
    async with upstream(script) as gw, transport(gw.base_url, timeouts=Timeouts(idle=0.2, total=5)) as t:
        for _ in range(2):
            assert (await (await t.open(STREAM, NOBODY)).message()).content == "Par"


@pytest.mark.parametrize("request_", [ASK, STREAM], ids=["plain", "stream"])
async def test_cancelling_frees_the_socket(request_: ChatRequest) -> None:
    async with upstream([silence]) as gw, transport(gw.base_url) as t:
        task = asyncio.create_task(t.open(request_, NOBODY))
        await gw.until(lambda: bool(gw.arrivals))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await gw.all_closed()


async def test_closing_or_cancelling_a_half_read_stream_frees_the_socket() -> None:
    hanging = trickle(SSE_HEAD + FIRST, gap=0, hang=30)
    async with upstream([hanging]) as gw, transport(gw.base_url) as t:
        reply = await t.open(STREAM, NOBODY)
        ends: list[End] = []
        reply.on_end(ends.append)
        async for _ in reply.deltas():
            break
        await reply.aclose()
        assert [end.outcome for end in ends] == ["abandoned"]
        with pytest.raises(ModelError, match="closed"):
            await reply.message()
        assert await gw.all_closed()
        reply = await t.open(STREAM, NOBODY)
        reply.on_end(ends.append)
        task = asyncio.create_task(asyncio.wait_for(reply.message(), 30))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [end.outcome for end in ends] == ["abandoned"] * 2
        assert await gw.all_closed()


async def test_the_deadline_bounds_the_call_and_is_told_apart_from_the_timeout() -> None:
    async with upstream([silence]) as gw, transport(gw.base_url, timeouts=QUICK) as t:
        now = SystemClock().now()
        with pytest.raises(DeadlineReached):
            await t.open(ASK, CallContext(deadline=now + 0.2))
        assert SystemClock().now() - now >= 0.2
        with pytest.raises(DeadlineReached):
            await t.open(ASK, CallContext(deadline=now - 1))
        assert len(gw.arrivals) == 1


async def test_first_byte_and_connect_limits() -> None:
    async with upstream([silence]) as gw, transport(gw.base_url, timeouts=Timeouts(first_byte=0.2, total=30)) as t:
        with pytest.raises(CallTimeout, match=r"no answer within 0\.2 s") as caught:
            await t.open(ASK, NOBODY)
        assert caught.value.phase == "first_byte"


@pytest.mark.parametrize("drop", [b"HTTP/1.1 102 Processing\r\n\r\n", b"y"])
async def test_the_first_byte_limit_is_not_begun_anew_by_what_is_no_answer(drop: bytes) -> None:
    dripping = trickle(b"" if len(drop) > 1 else b"HTTP/1.1 200 ", *[drop] * 300, gap=0.1)
    timeouts = Timeouts(connect=0.2, first_byte=0.4, total=30)
    async with upstream([dripping]) as gw, transport(gw.base_url, timeouts=timeouts) as t:
        began = SystemClock().now()
        with pytest.raises(CallTimeout) as caught:
            await t.open(ASK, NOBODY)
        assert caught.value.phase == "first_byte" and 0.6 <= SystemClock().now() - began < 10
        await t.aclose()
        assert await gw.all_closed()


async def test_a_long_answer_may_be_many_events() -> None:
    """Each few letters come in some hundred bytes of JSON: these do not count as the answer's."""
    many = [{**piece("가" * 3), "system_fingerprint": "f" * 200}] * 1000
    script = [sse(*many, piece(finish="stop"), "[DONE]")]
    async with upstream(script) as gw, transport(gw.base_url, max_answer_bytes=30_000) as t:
        assert (await (await t.open(STREAM, NOBODY)).message()).text == "가" * 3000


async def test_nobody_listens() -> None:
    async with upstream() as gw:
        url = gw.base_url
    async with transport(url) as t:
        with pytest.raises(Unreachable, match="check the address"):
            await t.open(ASK, NOBODY)


async def test_no_secure_connection() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 plain\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with transport(f"https://127.0.0.1:{port}/v1") as t:
            with pytest.raises(Unreachable, match="SSL_CERT_FILE"):
                await t.open(ASK, NOBODY)


async def test_a_handshake_that_hangs_ends_at_the_connect_limit() -> None:
    async with upstream() as gw:
        url = gw.base_url.replace("http:", "https:")
        async with transport(url, timeouts=Timeouts(connect=0.2)) as t:
            with pytest.raises(CallTimeout) as caught:
                await t.open(ASK, NOBODY)
        assert caught.value.phase == "connect" and not gw.arrivals


async def test_f58_a_proxy_gets_its_own_password_and_not_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    ours: Any = {"headers": {"api-key": Secret("of-azure"), "x-tenant": "kim"}}
    async with upstream([http(b"", 403)] * 2) as proxy, upstream() as direct:
        monkeypatch.setenv("https_proxy", f"http://kim:pa55word@127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        async with transport("https://api.example.com/v1", **ours) as t:
            with pytest.raises(Unreachable, match="proxy") as caught:
                await t.open(ASK, NOBODY)
            with pytest.raises(Unreachable, match="proxy"):
                await t.models()
        async with transport(direct.base_url, **ours) as t:
            await t.open(ASK, NOBODY)
    for arrival in proxy.arrivals:
        assert arrival.line.startswith("CONNECT api.example.com:443 ")
        assert arrival.headers["proxy-authorization"].startswith("Basic ")
        assert {"authorization", "api-key", "x-tenant"}.isdisjoint(arrival.headers)
    assert len(proxy.arrivals) == 2 and "pa55word" not in caught.value.message
    sent = direct.arrivals[0].headers
    assert (sent["authorization"], sent["api-key"], sent["x-tenant"]) == (f"Bearer {KEY}", "of-azure", "kim")


async def test_a_large_request_goes_through() -> None:
    async with upstream() as gw, transport(gw.base_url) as t:
        await t.open(ChatRequest(model="m", messages=[{"role": "user", "content": "가" * 1_000_000}]), NOBODY)
        assert len(gw.arrivals[0].json["messages"][0]["content"]) == 1_000_000


async def test_extra_fields_are_sent_and_ours_cannot_be_replaced() -> None:
    async with upstream() as gw, transport(gw.base_url) as t:
        await t.open(ChatRequest(model="m", messages=[], extra={"seed": 5}), NOBODY)
        assert gw.arrivals[0].json["seed"] == 5
        with pytest.raises(RequestRefused, match="model"):
            await t.open(ChatRequest(model="m", messages=[], extra={"model": "other"}), NOBODY)
        assert len(gw.arrivals) == 1


async def test_f58_redirects_are_not_followed_and_cookies_not_kept() -> None:
    async with upstream() as other:
        away = http(b"", 307, location=f"{other.base_url}/chat/completions", set_cookie="a=b; Path=/")
        async with upstream([away]) as gw, transport(gw.base_url) as t:
            for _ in range(2):
                with pytest.raises(RequestRefused):
                    await t.open(ASK, NOBODY)
            assert "cookie" not in gw.arrivals[1].headers
        assert not other.arrivals


async def test_f58_the_key_is_in_no_message_and_no_repr() -> None:
    body = {"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}}
    async with upstream([http(body, 401)]) as gw, transport(gw.base_url, headers={"X-Key": Secret("hunter22")}) as t:
        with pytest.raises(AccessRefused) as caught:
            await t.open(ASK, NOBODY)
        assert gw.arrivals[0].headers["x-key"] == "hunter22"  # positive control
    told = [str(caught.value), repr(caught.value), repr(t), repr(vars(t)["_upstream"])]
    assert not any(KEY in text or "hunter22" in text for text in told)
    assert "Incorrect API key" in caught.value.message and "check the key" in caught.value.message


@pytest.mark.parametrize("answer", [reset_after(b""), b"HTTP/1.1 200 OK\r\nBad Header\r\n\r\n", http("{}"), error(401)])
async def test_f58_no_error_of_the_library_with_the_request_in_it_hangs_behind_ours(answer: Answer) -> None:
    async with upstream([answer]) as gw, transport(gw.base_url) as t:
        with pytest.raises(ModelError) as caught:
            await t.open(ASK, NOBODY)
    assert caught.value.__context__ is None and caught.value.__cause__ is None


@pytest.mark.parametrize(
    "settings",
    [
        {"base_url": "http://api.example.com/v1"},
        {"headers": {"Authorization": "Bearer x"}},
        {"headers": {"X-A": "a\r\nX-B: b"}},
        {"headers": {"X-A": "가"}},
        {"headers": {"X-A": Secret("a\nb")}},
    ],
)
def test_unsafe_upstreams_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="fake"):
        Upstream(**{"name": "fake", "base_url": "https://api.example.com/v1", **settings})


def test_f44_several_asyncio_runs_with_one_transport() -> None:
    async def ask(t: Transport) -> str:
        async with upstream() as gw:
            object.__setattr__(t, "_url", gw.base_url + "/chat/completions")
            answer = await (await t.open(ASK, NOBODY)).message()
            assert len(gw.connections) == 1
            return answer.text

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        t = Transport(Upstream(name="fake", base_url="http://127.0.0.1:1/v1"), SystemClock())
        assert [asyncio.run(ask(t)) for _ in range(3)] == ["ok"] * 3
        assert len(t._sessions) == 1, "closed loops are forgotten"
        del t
        gc.collect()


async def test_f44_closing_twice_and_going_on() -> None:
    async with upstream() as gw, transport(gw.base_url) as t:
        await t.aclose()
        await t.open(ASK, NOBODY)
        await t.aclose()
        await t.aclose()
        assert await gw.all_closed()
        await t.open(ASK, NOBODY)


def aiohttp_errors() -> list[type[BaseException]]:
    """Every exception class that the HTTP library can raise at us."""
    found = {c for c in vars(aiohttp).values() if isinstance(c, type) and issubclass(c, aiohttp.ClientError)}
    todo = list(found)
    while todo:
        more = set(todo.pop().__subclasses__()) - found
        found |= more
        todo += more
    return sorted((c for c in found if c.__module__.startswith("aiohttp")), key=lambda c: c.__name__)


class _Bare:
    def __str__(self) -> str:
        return f"about {KEY}"


@pytest.mark.parametrize("kind", [*aiohttp_errors(), OSError, ConnectionResetError, TimeoutError])
def test_every_error_of_the_http_library_has_a_meaning(kind: type[BaseException]) -> None:
    made: BaseException = kind.__new__(type(f"Bare{kind.__name__}", (_Bare, kind), {}))
    fake = Upstream(name="fake", base_url="https://api.example.com/v1", key=Secret(KEY))
    call = transport_module._Call(upstream=fake, began=0.0, limit=600.0)
    error = call.translate(made, began=False)
    assert isinstance(error, ModelError)
    assert "fake (https://api.example.com/v1)" in error.message
    assert KEY not in error.message
    rows = [row for row in transport_module._MEANINGS if issubclass(kind, row[0])]
    assert rows, "no row of the table fits"
    if not issubclass(kind, TimeoutError):
        assert type(error) is rows[0][1]


def test_the_list_of_library_errors_is_not_empty() -> None:
    assert len(aiohttp_errors()) > 20


def test_the_order_of_the_meanings_hides_no_row() -> None:
    rows = [kinds for kinds, _, _ in transport_module._MEANINGS]
    for place, kinds in enumerate(rows):
        for kind in kinds:
            assert not any(issubclass(kind, above) for above in rows[:place]), kind


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({"https_proxy": "http://p:1"}, "https://api.example.com/v1", "http://p:1"),
        ({"https_proxy": "http://p:1", "no_proxy": "example.com"}, "https://api.example.com/v1", None),
        ({"http_proxy": "http://p:1"}, "http://127.0.0.1:80/v1", None),
        ({}, "https://api.example.com/v1", None),
    ],
)
def test_the_proxy_comes_from_the_environment_and_spares_this_machine(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str, proxy: str | None
) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Upstream(name="u", base_url=url).proxy_for(url) == proxy
