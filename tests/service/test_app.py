"""The API over a real socket: what is checked, what is refused, and what becomes of a request that is cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from siafu.errors import RateLimited, StoreError, UpstreamFault
from siafu.gateway.chat import ChatAnswer, ChatRequest
from siafu.gateway.endpoint import Delta, EndCallback, Reply, ReplyHead
from siafu.gateway.scripted import Scripted, say
from siafu.observe.calls import CallContext
from siafu.service import access, exchange
from siafu.service import app as app_module
from siafu.service import server as server_module
from siafu.service.app import Bounds
from siafu.service.routes import ROUTES
from siafu.store.client_keys import SCOPES, KeyTerms

from .server import HELLO, Served, Slow, server, until

KEY_PATHS = ["/v1/models", "/v1/models/m", "/v1/nothing", "/", "/metrics", "/v1/chat/completions"]


async def make_key(served: Served, **terms: Any) -> tuple[str, dict[str, Any]]:
    key, secret = await served.parts.keys.create(KeyTerms(name="k", **terms))
    await served.ring.refresh()
    return key.id, {"Authorization": f"Bearer {secret.reveal()}"}


async def test_an_answer_comes_back_byte_for_byte_with_what_siafu_did(tmp_path: Path) -> None:
    slow = Slow()
    slow.go.set()
    async with server(tmp_path, slow) as served:
        status, headers, body = await served.ask()
    assert (status, body) == (200, {"whole": "answer"})
    assert headers["x-siafu-upstream"] == "behind"
    assert headers["x-siafu-cost-usd"] == "0.0000015"
    assert headers["x-siafu-attempts"] == "1"
    assert float(headers["x-siafu-queue-ms"]) >= 0.0
    assert headers["x-siafu-upstream-request-id"] == "up-1"
    assert headers["x-request-id"] == headers["x-siafu-request-id"] == slow.contexts[0].task
    assert "access-control-allow-origin" not in headers


async def test_a_stream_from_an_upstream_that_does_not_stream(tmp_path: Path) -> None:
    calls = ("c1", "look", "{}"), ("c2", "look", '{"a":1}')
    async with server(tmp_path, Scripted([say("네"), say(None, *calls)])) as served:
        _, headers, text = await served.ask(body={**HELLO, "stream": True})
        options = {"stream": True, "stream_options": {"include_usage": True}}
        _, _, more = await served.ask(body={**HELLO, **options})
    assert headers["content-type"].startswith("text/event-stream")
    *events, done, _ = text.split("\n\n")
    assert done == "data: [DONE]"
    (event,) = [json.loads(event.removeprefix("data: ")) for event in events]
    assert event["choices"][0]["delta"]["content"] == "네"
    said, usage = [json.loads(event.removeprefix("data: ")) for event in more.split("\n\n")[:2]]
    assert [call["index"] for call in said["choices"][0]["delta"]["tool_calls"]] == [0, 1]
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 12)


async def test_g18_when_it_is_full_a_lower_priority_that_was_not_sent_yet_makes_room(tmp_path: Path) -> None:
    slow = Slow()
    async with server(tmp_path, slow, bounds=Bounds(at_once=3)) as served:
        asked = []
        for priority in ("2", "3", "3"):
            asked.append(asyncio.create_task(served.ask(x_siafu_priority=priority)))
            await until(lambda: len(slow.contexts) == len(asked))
        assert (await served.ask(x_siafu_priority="3"))[0] == 429, "its equals do not make room"
        first = asyncio.create_task(served.ask(x_siafu_priority="1"))
        status, headers, body = await asked.pop()
        assert (status, body["error"]["code"]) == (429, "queue_full")
        assert int(headers["retry-after"]) >= 1 and "made room" in body["error"]["message"]
        served.app._queued.end(slow.contexts[1].task)  # it was sent
        await until(lambda: len(slow.contexts) == 4)
        second = asyncio.create_task(served.ask(x_siafu_priority="1"))
        assert (await asked.pop(0))[0] == 429, "the next lowest"
        assert (await served.ask(x_siafu_priority="1"))[0] == 429, "nobody is left who could make room"
        slow.go.set()
        assert [(await each)[0] for each in (first, second, *asked)] == [200, 200, 200]
    assert [context.priority for context in slow.contexts] == [2, 3, 3, 1, 1]


async def test_sec1_without_a_key_only_health_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "WRONG_KEYS_AT_ONCE", 100)
    async with server(tmp_path) as served:
        await make_key(served)
        for path in KEY_PATHS:
            status, headers, body = await served.ask(path)
            assert (path, status, body["error"]["code"]) == (path, 401, "invalid_api_key")
            assert headers["www-authenticate"] == "Bearer"
        for route in ROUTES:
            status, _, _ = await served.ask(route.path, method=route.method)
            assert (route.name, status) == (route.name, 200 if route.open else 401)
        assert (await served.ask("/health/liveness"))[0] == 200
        assert (await served.ask("/health/readiness"))[0] == 200


@pytest.mark.parametrize("scope", SCOPES)
async def test_sec2_a_key_does_only_what_its_scopes_say(tmp_path: Path, scope: str) -> None:
    slow = Slow()
    slow.go.set()
    async with server(tmp_path, slow) as served:
        _, auth = await make_key(served, scopes=(scope,))
        asked = [route for route in ROUTES if not route.open and route.path != "/metrics"]
        for route in asked:
            status, _, body = await served.ask(route.path, {}, method=route.method, **auth)
            code = body["error"]["code"] if isinstance(body, dict) and "error" in body else ""
            assert ((status, code) == (403, "scope_missing")) is (route.scope != scope), route.name
        assert {route.scope for route in asked} == set(SCOPES)


async def test_sec6_other_hosts_and_pages_are_refused_everywhere(tmp_path: Path) -> None:
    async with server(tmp_path) as served:
        for path in (*KEY_PATHS, "/health/liveness"):
            assert (await served.ask(path, Host="evil.com"))[0] == 421
            assert (await served.ask(path, Origin="https://evil.com"))[0] == 403
        assert (await served.ask("/v1/models", Origin="http://localhost:3000"))[0] == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_sec8_only_json_is_taken(tmp_path: Path, kind: str) -> None:
    async with server(tmp_path) as served:
        status, _, body = await served.ask(Content_Type=kind)
        assert (status, body["error"]["code"]) == (415, "unsupported_media_type")


async def test_sec7_no_page_is_let_in_by_cors(tmp_path: Path) -> None:
    async with server(tmp_path) as served:
        for method, path in (("OPTIONS", "/v1/chat/completions"), ("GET", "/v1/models")):
            status, headers, _ = await served.ask(path, method=method, Origin="http://localhost:3000")
            assert status == (405 if method == "OPTIONS" else 200)
            assert not [name for name in headers if name.startswith("access-control-")]


async def test_sec3_a_key_sees_and_uses_its_own_models_only(tmp_path: Path) -> None:
    slow = Slow()
    slow.go.set()
    async with server(tmp_path, slow) as served:
        id, auth = await make_key(served, models=("oth*",), tenant="t1", customer="kim")
        _, _, listed = await served.ask("/v1/models", **auth)
        assert [model["id"] for model in listed["data"]] == ["other"]
        assert (await served.ask("/v1/models/m", **auth))[0] == 404
        assert (await served.ask("/v1/models/other", **auth))[2]["id"] == "other"
        status, _, body = await served.ask(**auth)
        assert (status, body["error"]["code"], slow.contexts) == (403, "model_not_allowed", [])
        assert (await served.ask(body={**HELLO, "model": "other", "tenant": "t2", "user": "lee"}, **auth))[0] == 200
    (context,) = slow.contexts
    assert (context.agent, context.tenant, context.user) == (id, "t1", "kim")  # never from the body
    assert context.task.startswith(f"{id}/req_")


async def test_a_budget_of_a_key_is_one_account_a_day(tmp_path: Path) -> None:
    slow = Slow()
    slow.go.set()
    async with server(tmp_path, slow, spent=(300, 40)) as served:
        _, auth = await make_key(served, day_pico=500, total_pico=1000, allow_unpriced=True)
        await served.ask(**auth)
        await served.ask(**auth)
        first, second = (context.run for context in slow.contexts)
        account = served.parts.accounts.of(first)
        assert (first, account.limit, account.spent, account.allow_unpriced) == (second, 500, 40, True)
        _, other = await make_key(served, total_pico=1000)
        await served.ask(**other)
        assert served.parts.accounts.of(slow.contexts[2].run).limit == 700


async def with_headers(url: str, size: int) -> bytes:
    """The status of a request whose headers, names and values, have that many bytes."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    filling = size - len("host127.0.0.1connectioncloseaccept")
    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nAccept: ")
    writer.write(b"x" * filling + b"\r\n\r\n")
    async with asyncio.timeout(10):
        found = await reader.read()
    writer.close()
    return found.split()[1]


async def test_sec32_large_bodies_and_headers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MAX_BODY", 1000)
    slow = Slow()
    slow.go.set()

    def body(size: int) -> bytes:
        start = b'{"model":"m","messages":[{}],"x":"'
        return start + b"x" * (size - len(start) - 2) + b'"}'

    async with server(tmp_path, slow) as served:
        assert [(await served.ask(body=body(size)))[0] for size in (1000, 1001)] == [200, 413]
        async with aiohttp.ClientSession() as session:

            async def pieces() -> Any:
                for _ in range(11):
                    yield b"x" * 100

            url, kind = served.url + "/v1/chat/completions", {"Content-Type": "application/json"}
            async with session.post(url, data=pieces(), headers=kind) as reply:
                assert reply.status == 413
        assert [await with_headers(served.url, size) for size in (16 * 1024, 16 * 1024 + 1)] == [b"200", b"431"]


async def test_a_full_queue_refuses_at_once(tmp_path: Path) -> None:
    slow = Slow()
    async with server(tmp_path, slow, bounds=Bounds(at_once=2)) as served:
        running = [asyncio.create_task(served.ask()) for _ in range(2)]
        await until(lambda: len(slow.contexts) == 2)
        status, headers, body = await served.ask()
        assert (status, body["error"]["code"]) == (429, "queue_full")
        assert int(headers["retry-after"]) >= 1
        slow.go.set()
        assert [status for status, _, _ in await asyncio.gather(*running)] == [200, 200]
        assert (await served.ask())[0] == 200


async def test_a_request_that_is_not_sent_in_time_is_refused(tmp_path: Path) -> None:
    slow = Slow()
    async with server(tmp_path, slow, bounds=Bounds(at_once=5, queue_seconds=0.1)) as served:
        status, headers, body = await served.ask()
        assert (status, body["error"]["code"], slow.cancelled) == (429, "queue_timeout", 1)
        assert int(headers["retry-after"]) >= 1
        slow.came.clear()
        asking = asyncio.create_task(served.ask())
        await slow.came.wait()
        served.parts.departures.left(slow.contexts[-1].task)  # now it is sent
        await asyncio.sleep(0.3)  # longer than it may wait
        slow.go.set()
        assert (await asking)[0] == 200


async def test_a_client_that_leaves_gives_the_call_up(tmp_path: Path) -> None:
    slow = Slow()
    async with server(tmp_path, slow) as served:
        asking = asyncio.create_task(served.ask())
        await slow.came.wait()
        asking.cancel()
        await until(lambda: slow.cancelled == 1)
        slow.go.set()
        assert (await served.ask())[0] == 200


class Falling:
    """A streamed reply that says one thing, then fails with `error`, or waits for ever without one."""

    head = ReplyHead(upstream="behind")

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.closed = asyncio.Event()

    async def open(self, request: ChatRequest, context: CallContext) -> Reply:
        return self

    async def deltas(self) -> AsyncIterator[Delta]:
        yield Delta(events=(b'{"said":\n1}',))
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()

    async def message(self) -> ChatAnswer:
        raise AssertionError("the stream did not end")

    def on_end(self, callback: EndCallback) -> None:
        raise AssertionError("nobody asks")

    async def aclose(self) -> None:
        self.closed.set()


async def test_a_stream_that_breaks_ends_with_an_error_event(tmp_path: Path) -> None:
    falling = Falling(UpstreamFault("the connection to behind broke"))
    async with server(tmp_path, falling) as served:
        status, _, text = await served.ask(body={**HELLO, "stream": True})
    said, error, rest = text.split("\n\n")
    assert (status, said, rest) == (200, 'data: {"said":\ndata: 1}', "")
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "upstream_fault"
    assert falling.closed.is_set()


async def test_a_client_that_leaves_a_stream_closes_it(tmp_path: Path) -> None:
    falling = Falling(None)
    async with server(tmp_path, falling) as served, aiohttp.ClientSession() as session:
        url = served.url + "/v1/chat/completions"
        async with session.post(url, json={**HELLO, "stream": True}) as reply:
            await reply.content.readany()
            reply.close()
        async with asyncio.timeout(10):
            await falling.closed.wait()


class Endless(Falling):
    """A stream that never ends. `sent`: bytes of it that were asked for."""

    sent = 0

    async def deltas(self) -> AsyncIterator[Delta]:
        while True:
            await asyncio.sleep(0)
            self.sent += 60_000
            yield Delta(events=(b"x" * 60_000,))


async def test_a_client_that_takes_nothing_in_holds_the_stream_back_and_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "SEND_SECONDS", 0.5)
    endless = Endless(None)
    async with server(tmp_path, endless) as served:
        where = urlsplit(served.url)
        # a reader of its own limit: asyncio stops taking in after 2 x 1,000 bytes
        _, writer = await asyncio.open_connection(where.hostname, where.port, limit=1000)
        body = json.dumps({**HELLO, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        async with asyncio.timeout(20):
            await endless.closed.wait()
        writer.close()
    assert 0 < endless.sent < 50_000_000  # what the sockets of both sides hold, and no more


async def test_errors_behind_are_told_as_they_are_and_ours_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = [RateLimited("slow down", wait=7.0), StoreError("/secret/place"), ValueError("/secret/place")]
    async with server(tmp_path, Scripted(script)) as served:
        status, headers, body = await served.ask()
        assert (status, headers["retry-after"], body["error"]["message"]) == (429, "7", "slow down")
        for _ in range(2):
            status, headers, body = await served.ask()
            assert (status, body["error"]["code"]) == (500, "internal_error")
            assert "secret" not in str(body)
            assert headers["x-request-id"] in caplog.text  # where the operator finds why
    assert "/secret/place" in caplog.text


async def test_unknown_paths_get_help(tmp_path: Path) -> None:
    async with server(tmp_path) as served:
        status, _, body = await served.ask("/chat/completions", method="POST")
        assert (status, body["error"]["code"]) == (404, "unknown_url")
        assert "/v1/chat/completions" in body["error"]["message"]
        assert (await served.ask("/v1/chat/completions", method="GET"))[0] == 405


async def test_models_are_asked_for_once_and_again_after_a_failure(tmp_path: Path) -> None:
    asked = 0

    async def models() -> list[str]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise UpstreamFault("down")
        return ["m"]

    async with server(tmp_path, models=models) as served:
        assert (await served.ask("/v1/models"))[0] == 502
        for _ in range(3):
            assert (await served.ask("/v1/models"))[2]["data"][0]["id"] == "m"
    assert asked == 2


async def test_draining_finishes_what_runs_and_takes_nothing_new(tmp_path: Path) -> None:
    slow = Slow()
    async with server(tmp_path, slow) as served:
        running = asyncio.create_task(served.ask())
        await slow.came.wait()
        served.stops.signal()
        await until(lambda: served.app.draining)
        status, headers, body = await served.ask()
        assert (status, body["error"]["code"], headers["retry-after"]) == (503, "stopping", "5")
        assert (await served.ask("/health/readiness"))[0] == 503
        assert (await served.ask("/health/liveness"))[0] == 200
        slow.go.set()
        assert (await running)[0] == 200
        assert served.ended is not None
        assert await served.ended is True


@pytest.mark.parametrize("how", ["grace", "second signal"])
async def test_what_does_not_end_in_time_is_ended(tmp_path: Path, how: str) -> None:
    slow = Slow()
    async with server(tmp_path, slow, grace=0.1 if how == "grace" else 60.0) as served:
        plain = asyncio.create_task(served.ask())
        await slow.came.wait()
        served.stops.signal()
        await until(lambda: served.app.draining)
        if how != "grace":
            served.stops.signal()
        status, _, body = await plain
        assert (status, body["error"]["code"], slow.cancelled) == (503, "stopping", 1)
        assert "ended this request" in body["error"]["message"]
        assert served.ended is not None
        assert await served.ended is False


async def test_sec33_slow_headers_and_bodies_are_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HEADER_SECONDS", 0.3)
    monkeypatch.setattr(app_module, "BODY_SECONDS", 0.3)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    slow = Slow()
    slow.go.set()
    async with server(tmp_path, slow) as served:
        where = urlsplit(served.url)

        async def says(data: bytes) -> bytes:
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
            writer.write(data)
            found = b""
            async with asyncio.timeout(10):
                with contextlib.suppress(ConnectionResetError):  # cut off while a byte of ours was on the way
                    found = await reader.read()
            writer.close()
            return found

        dripping = [asyncio.create_task(says(data)) for data in [b"", head[:30], head] * 167]
        asking = [served.ask() for _ in range(20)]
        assert {status for status, _, _ in await asyncio.gather(*asking)} == {200}  # others are served meanwhile
        assert set(await asyncio.gather(*dripping)) == {b""}
        late = await says(head + b"Content-Length: 100\r\nConnection: close\r\n\r\n{")
        assert late.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"bad_request"' in await says(b"nonsense\r\n\r\n")


async def test_more_connections_than_may_be_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "most_connections", lambda: 3)
    async with server(tmp_path) as served:
        where = urlsplit(served.url)
        held = [await asyncio.open_connection(where.hostname, where.port) for _ in range(4)]
        async with asyncio.timeout(5):
            ends = [asyncio.create_task(reader.read(1)) for reader, _ in held]
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        for end in ends:
            end.cancel()
        for _, writer in held:
            writer.close()
