"""MCP servers over HTTP: sessions that are forgotten, answers that are lost, and the real SDK on the other side."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from siafu.border.secrets import Secret
from siafu.errors import OutcomeUnknown, ToolFault, ToolTimeout, ToolUnavailable
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock
from siafu.tools.mcp import McpTools
from siafu.tools.servers import McpServer

from .raw import CONTEXT, SDK, at_once, files, until
from .servers.raw_http import RawHttp


@pytest.fixture
async def http() -> AsyncIterator[RawHttp]:
    server = RawHttp()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def tools(http: RawHttp) -> AsyncIterator[McpTools]:
    made = McpTools(McpServer(name="raw", url=http.url, timeout=20.0))
    yield made
    await made.aclose()


async def test_a_hundred_callers_share_one_session(http: RawHttp, tools: McpTools) -> None:
    results = await asyncio.gather(*(tools.call("write", {}, CONTEXT) for _ in range(100)))
    assert {result.text for result in results} == {"write 완료"}
    assert (http.made, http.commits) == (1, 100)
    assert {session for session, message in http.received if message.get("method") == "tools/call"} == {"session-1"}


@pytest.mark.parametrize("name", ["read", "write"])
async def test_f23_a_forgotten_session_is_opened_again_once_for_all(http: RawHttp, tools: McpTools, name: str) -> None:
    assert (await tools.call(name, {}, CONTEXT)).text == f"{name} 완료"
    http.sessions.clear()
    results = await asyncio.gather(*(tools.call(name, {}, CONTEXT) for _ in range(100)))
    assert {result.text for result in results} == {f"{name} 완료"}
    assert http.made == 2
    assert http.commits == (0 if name == "read" else 101)  # what is refused with 404 was not done, so it is sent again
    openings = [session for session, message in http.received if message.get("method") == "initialize"]
    assert openings == [None, None]  # the old id is dropped


async def test_f23_a_server_that_forgets_every_session_is_given_up(http: RawHttp, tools: McpTools) -> None:
    http.behave["write"] = ["forget"] * 10
    with pytest.raises(ToolUnavailable, match="does not know the session any more"):
        await tools.call("write", {}, CONTEXT)
    assert http.made == 2


async def test_f23_calls_that_run_on_the_old_session_may_end_there(http: RawHttp, tools: McpTools) -> None:
    await tools.list()
    http.behave["add.note"] = ["hang"]
    running = asyncio.create_task(tools.call("add_note", {}, CONTEXT))
    await until(lambda: http.commits == 1)
    http.behave["read"] = ["forget"]
    assert (await tools.call("read", {}, CONTEXT)).text == "read 완료"
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


LOST = [
    "close",
    "half",
    "status 500",
    "status 502",
    "sse cut",
    "sse odd",
    "html",
    "accepted",
    "odd",
    "huge",
    "null",
    "deep",
]


@pytest.mark.parametrize("how", LOST)
async def test_f29_a_lost_answer_to_a_write_is_never_asked_for_again(http: RawHttp, tools: McpTools, how: str) -> None:
    await tools.list()
    http.behave["write"] = [how]
    with pytest.raises(OutcomeUnknown, match="Whether it took effect is unknown"):
        await tools.call("write", {}, CONTEXT)
    assert http.commits == 1
    assert (await tools.call("write", {}, CONTEXT)).text == "write 완료"
    assert http.made == 1  # the session goes on


async def test_the_old_protocol_ends_a_call_at_once_that_gets_no_answer_to_be_read(http: RawHttp) -> None:
    tools = McpTools(McpServer(name="old", url=http.url.replace("/mcp", "/sse"), sse=True, timeout=20.0))
    assert (await tools.call("write", {}, CONTEXT)).text == "write 완료"
    for how, why in (("null", "breaks the protocol"), ("deep", "breaks the protocol"), ("status 500", "HTTP 500")):
        http.behave["write"] = [how]
        with at_once(), pytest.raises(OutcomeUnknown, match=why):
            await tools.call("write", {}, CONTEXT)
    assert http.made == 1
    assert (await tools.call("write", {}, CONTEXT)).text == "write 완료"
    assert http.made == 2  # the SDK sends nothing more after a POST that failed
    await tools.aclose()


@pytest.mark.parametrize("how", ["close", "half", "status 503", "sse cut"])
async def test_f29_a_read_is_asked_for_again_once(http: RawHttp, tools: McpTools, how: str) -> None:
    http.behave["read"] = [how]
    assert (await tools.call("read", {}, CONTEXT)).text == "read 완료"
    assert len(http.got("tools/call")) == 2
    http.behave["read"] = [how, how]
    with pytest.raises(ToolUnavailable):
        await tools.call("read", {}, CONTEXT)
    assert len(http.got("tools/call")) == 4


async def test_one_lost_answer_leaves_the_other_calls_alone(http: RawHttp, tools: McpTools) -> None:
    await tools.list()
    http.behave["write"] = ["close", *["answer"] * 20]
    calls = [tools.call("write", {}, CONTEXT) for _ in range(20)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(result, OutcomeUnknown) for result in results) == 1
    assert sum(not isinstance(result, BaseException) for result in results) == 19
    assert (http.commits, http.made) == (20, 1)


async def test_refused_calls_did_not_happen(http: RawHttp, tools: McpTools) -> None:
    await tools.list()
    http.refuse_all = "401"
    with pytest.raises(ToolUnavailable, match="answered HTTP 401 <html>no"):
        await tools.call("write", {}, CONTEXT)
    assert http.commits == 0
    http.refuse_all = ""
    assert (await tools.call("write", {}, CONTEXT)).text == "write 완료"


async def test_a_server_that_refuses_the_handshake(http: RawHttp, tools: McpTools) -> None:
    http.refuse_all = "403"
    with pytest.raises(ToolUnavailable, match="MCP server raw answered HTTP 403"):
        await tools.list()


async def test_f28_timeout_and_cancellation_tell_the_server(http: RawHttp) -> None:
    tools = McpTools(McpServer(name="raw", url=http.url, timeout=0.7))
    await tools.list()
    http.behave["write"] = ["hang", "hang"]
    with pytest.raises(ToolTimeout):
        await tools.call("write", {}, CONTEXT)
    task = asyncio.create_task(tools.call("write", {}, CONTEXT))
    await until(lambda: http.commits == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: len(http.got("notifications/cancelled")) == 2)
    asked = [message["id"] for message in http.got("tools/call")]
    assert [message["params"]["requestId"] for message in http.got("notifications/cancelled")] == asked
    assert (await tools.call("write", {}, CONTEXT)).text == "write 완료"
    await tools.aclose()


async def test_a_server_that_does_not_take_the_cancellation(http: RawHttp, tools: McpTools) -> None:
    await tools.list()
    http.hang_on_notifications = True
    http.behave["write"] = ["hang"]
    task = asyncio.create_task(tools.call("write", {}, CONTEXT))
    await until(lambda: http.commits == 1)
    with at_once():
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await tools.call("write", {}, CONTEXT)).text == "write 완료"


@pytest.mark.parametrize("how", ["surrogate", "sse surrogate"])
async def test_f48_lone_surrogates_in_answers(http: RawHttp, tools: McpTools, how: str) -> None:
    http.behave["write"] = [how]
    assert (await tools.call("write", {}, CONTEXT)).text == "write \ufffd 끝 😀"


async def test_answers_as_an_event_stream(http: RawHttp, tools: McpTools) -> None:
    http.behave["write"] = ["sse"] * 3
    results = await asyncio.gather(*(tools.call("write", {}, CONTEXT) for _ in range(3)))
    assert [result.text for result in results] == ["write 완료"] * 3


async def test_a_server_that_goes_away_and_comes_back(http: RawHttp, tools: McpTools) -> None:
    assert (await tools.call("write", {}, CONTEXT)).text == "write 완료"
    await http.stop()
    with pytest.raises((ToolUnavailable, OutcomeUnknown)):  # the first may meet the closing of an open socket
        await tools.call("write", {}, CONTEXT)
    with pytest.raises(ToolUnavailable, match="cannot be reached: ConnectError"):
        await tools.call("write", {}, CONTEXT)
    assert http.commits == 1
    await http.start()
    assert (await tools.call("write", {}, CONTEXT)).text == "write 완료"
    assert http.commits == 2


async def fault(tools: McpTools, name: str = "read") -> ToolFault:
    with pytest.raises(ToolFault) as caught:
        await tools.call(name, {}, CONTEXT)
    return caught.value


async def test_a_server_that_is_away_says_so_and_answers_a_knock_when_it_is_back(
    http: RawHttp, tools: McpTools
) -> None:
    listed = await tools.list()
    await http.stop()
    assert (await fault(tools)).away is tools
    assert not await tools.knock()
    assert await tools.list() is listed
    await http.start()
    assert await tools.knock()
    assert (await tools.call("write", {}, CONTEXT)).text == "write 완료"
    assert await tools.list() is listed and len(http.got("tools/list")) <= 4


async def test_a_proxy_that_does_not_reach_the_server_says_so_for_reads_only(http: RawHttp, tools: McpTools) -> None:
    await tools.list()
    http.behave = {"read": ["status 502"] * 2, "write": ["status 502"]}
    assert (await fault(tools)).away is tools
    unknown = await fault(tools, "write")
    assert isinstance(unknown, OutcomeUnknown) and unknown.away is None
    http.behave["read"] = ["status 500"] * 2  # it was reached
    assert (await fault(tools)).away is None


async def test_a_server_that_refuses_is_not_away(http: RawHttp, tools: McpTools) -> None:
    await tools.list()
    http.refuse_all = "401"
    assert (await fault(tools)).away is None
    assert await tools.knock()  # who waits had better hear it
    http.sessions.clear()
    await http.stop()
    http.refuse_all = "403"
    await http.start()
    assert (await fault(tools)).away is None


async def test_nobody_listens() -> None:
    server = RawHttp()
    await server.start()
    await server.stop()
    tools = McpTools(McpServer(name="gone", url=server.url))
    with pytest.raises(ToolUnavailable, match="MCP server gone cannot be reached") as caught:
        await tools.list()
    assert caught.value.away is None  # it never answered: rather the wrong address
    assert (await fault(tools)).away is None
    await tools.aclose()


async def test_headers_are_sent_and_never_shown(http: RawHttp) -> None:
    key = "shop-key-9f8e7d6c5b4a"
    server = McpServer(name="raw", url=http.url, headers={"authorization": Secret(f"Token {key}")})
    tools = McpTools(server)
    await tools.list()
    assert all(headers["authorization"] == f"Token {key}" for headers in http.headers)
    assert key not in repr(server)
    http.refuse_all = "401"
    with pytest.raises(ToolUnavailable, match=r"<html>no \*\*\*") as caught:
        await tools.call("write", {}, CONTEXT)
    assert key not in caught.value.message
    await tools.aclose()


async def test_nothing_is_left_behind(http: RawHttp) -> None:
    await asyncio.sleep(0)
    before = len(asyncio.all_tasks()), files()
    for _ in range(3):
        tools = McpTools(McpServer(name="raw", url=http.url))
        http.behave["write"] = ["close", "half", "sse"]
        await asyncio.gather(*(tools.call("write", {}, CONTEXT) for _ in range(20)), return_exceptions=True)
        http.sessions.clear()
        await tools.call("write", {}, CONTEXT)
        await tools.aclose()
    await until(lambda: (len(asyncio.all_tasks()), files()) <= before)


@contextlib.asynccontextmanager
async def sdk(how: str) -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(sys.executable, str(SDK), how, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.communicate()


async def ask(tools: McpTools, name: str, **arguments: Any) -> Any:
    return (await tools.call(name, arguments, CONTEXT)).structured["result"]


async def test_the_sdks_own_server_over_http() -> None:
    async with sdk("http") as port:
        url = f"http://127.0.0.1:{port}/mcp"
        tools = McpTools(McpServer(name="sdk", url=url, identity="siafu"))
        assert await asyncio.gather(*(ask(tools, "add", a=i, b=1) for i in range(100))) == list(range(1, 101))
        who = CallContext(identity="signed-token")
        assert (await tools.call("identity", {}, who)).text == "signed-token"
        assert await ask(tools, "identity") == "None"
        with pytest.raises(ToolTimeout):
            late = CallContext(deadline=SystemClock().now() + 0.3)
            await tools.call("sleeps", {"seconds": 30}, late)
        async with asyncio.timeout(10):
            while await ask(tools, "how_many_were_cancelled") != 1:
                pass
        assert await tools.read_resource("doc://policy") == "환불은 7일"
        await tools.aclose()
        plain = McpTools(McpServer(name="sdk", url=url))
        assert (await plain.call("identity", {}, who)).text == "None"
        await plain.aclose()


async def test_servers_of_the_old_sse_protocol() -> None:
    async with sdk("sse") as port:
        tools = McpTools(McpServer(name="old", url=f"http://127.0.0.1:{port}/sse", sse=True))
        assert await asyncio.gather(*(ask(tools, "add", a=i, b=1) for i in range(20))) == list(range(1, 21))
        assert (await tools.call("add", {"a": "x", "b": 1}, CONTEXT)).is_error
        await tools.aclose()
