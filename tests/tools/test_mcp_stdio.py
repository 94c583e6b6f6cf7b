"""MCP servers that are child processes: calls, errors, losses."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from processes import children
from siafu.border.secrets import Secret
from siafu.errors import OutcomeUnknown, ToolDenied, ToolFault, ToolTimeout, ToolUnavailable
from siafu.observe.calls import CallContext
from siafu.pace.clock import SystemClock
from siafu.tools.joined import Joined
from siafu.tools.mcp import McpTools
from siafu.tools.servers import McpServer

from .raw import CONTEXT, SDK, Make, alive, at_once, until


async def test_a_hundred_callers_share_one_process(raw: Make) -> None:
    server = raw()
    results = await asyncio.gather(*(server.call("echo", n=i, word="안녕") for i in range(100)))
    assert [json.loads(result.text) for result in results] == [{"n": i, "word": "안녕"} for i in range(100)]
    assert len(server.pids()) == 1
    assert len(server.got("initialize")) == 1
    assert len(server.got("tools/list")) == 1
    assert len(server.got("tools/call")) == 100


async def test_the_sdks_own_server_over_stdio() -> None:
    tools = McpTools(McpServer(name="sdk", command=sys.executable, args=(str(SDK), "stdio")))
    listed = {tool.name: tool for tool in await tools.list()}
    assert listed["add"].read_only and not listed["process"].read_only
    assert listed["add"].description == "더하기"
    assert listed["add"].output_schema is not None
    assert (await tools.call("add", {"a": 1, "b": 2}, CONTEXT)).structured == {"result": 3}
    assert await tools.read_resource("doc://policy") == "환불은 7일"
    assert [one.uri for one in await tools.list_resources()] == ["doc://policy"]
    await tools.aclose()


@pytest.mark.parametrize(("name", "says"), [("exit", "exit code 1"), ("kill", "SIGKILL")])
async def test_f21_a_server_that_dies_during_a_call(raw: Make, name: str, says: str) -> None:
    server, other = raw(), raw()
    await server.tools.list()
    await other.tools.list()
    pending = [asyncio.create_task(server.call("never")) for _ in range(10)]
    await until(lambda: len(server.got("tools/call")) == 10)
    with at_once():
        with pytest.raises(OutcomeUnknown, match=says) as caught:
            await server.call(name)
        ended = await asyncio.gather(*pending, return_exceptions=True)
    assert all(isinstance(each, OutcomeUnknown) for each in ended)
    assert "MCP server raw" in caught.value.message
    if name == "exit":
        assert "마지막 말: key ***" in caught.value.message
    assert (await other.call("echo", a=1)).text == '{"a": 1}'
    assert (await server.call("echo", a=2)).text == '{"a": 2}'  # started again
    first, second = server.pids()
    assert first != second
    await until(lambda: not alive(first))
    assert len(server.got("tools/call")) == 12  # nothing was sent twice


async def test_f21_a_command_that_exits_before_the_handshake(raw: Make) -> None:
    server = raw("exit")
    with at_once():
        results = await asyncio.gather(*(server.call("echo") for _ in range(20)), return_exceptions=True)
    assert all(isinstance(each, ToolUnavailable) for each in results)
    assert "ended with exit code 1; the last words on its stderr: 설정이 없습니다" in str(results[0])
    assert len(server.pids()) == 2  # once more without the question for the newest protocol
    await until(lambda: not any(alive(pid) for pid in server.pids()))


async def test_a_server_that_knows_the_old_handshake_only(raw: Make) -> None:
    server = raw("strict")
    results = await asyncio.gather(*(server.call("echo", n=i) for i in range(10)))
    assert len(results) == 10
    assert [note["got"]["method"] for note in server.notes() if "got" in note][:2] == ["server/discover", "initialize"]
    assert len(server.pids()) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"command": "/no/such/server", "args": ()}, "No such file or directory: /no/such/server"),
        ({"cwd": "/no/such/folder"}, "No such file or directory: /no/such/folder"),
        ({"command": "/", "args": ()}, "cannot be started: "),
        ({"command": "nul\0byte", "args": ()}, "null byte"),
    ],
)
async def test_f21_a_command_that_cannot_be_started(raw: Make, options: dict[str, Any], says: str) -> None:
    server = raw(**options)
    with at_once(), pytest.raises(ToolUnavailable, match=says):
        await server.tools.list()


async def test_a_server_that_cannot_be_opened_is_left_alone_for_a_while(raw: Make) -> None:
    class Stepped(SystemClock):
        at = 100.0

        def now(self) -> float:
            return self.at

    clock = Stepped()
    server = raw("exit")
    server.tools = McpTools(server.server, clock)
    for starts, step in ((2, 0.49), (2, 0.02), (4, 0.9), (4, 0.2), (6, 0.0)):
        with pytest.raises(ToolUnavailable, match="exit code 1"):
            await server.call("echo")
        assert len(server.pids()) == starts
        clock.at += step


async def test_f22_banner_and_log_lines_on_stdout(raw: Make, caplog: pytest.LogCaptureFixture) -> None:
    server = raw("banner")
    with caplog.at_level(logging.WARNING):
        assert (await server.call("echo", a=1)).text == '{"a": 1}'
        assert (await server.call("echo", a=2)).text == '{"a": 2}'
    assert [record.getMessage() for record in caplog.records] == [
        "MCP server raw writes more than messages to its stdout; ignored: 🚀 welcome to the server"
    ]


async def test_f24_all_pages_of_tools(raw: Make) -> None:
    server = raw("pages")
    assert [tool.name for tool in await server.tools.list()] == sorted(f"tool{i}" for i in range(101))
    assert [call.get("params", {}).get("cursor") for call in server.got("tools/list")] == [None, "p2", "p3"]
    endless = raw("endless")
    with at_once(), pytest.raises(ToolFault, match="does not come to an end of tools/list"):
        await endless.tools.list()


async def test_f25_an_error_stays_an_error_with_its_text(raw: Make) -> None:
    server = raw()
    result = await server.call("error")
    assert (result.text, result.is_error, result.code) == ("backend offline", True, "E7")
    assert result.structured == {"total": 7, "error": {"code": "E7"}}
    empty = await server.call("empty")
    assert empty.is_error and empty.text == "the tool failed and did not say why"


async def test_f26_the_wire_has_the_original_name_at_the_right_server(raw: Make) -> None:
    first, second = raw(name="s1"), raw(name="s2")
    joined = Joined([first.tools, second.tools])
    names = [tool.name for tool in await joined.list()]
    assert "s1_echo" in names and "s2_echo" in names and "s1_with_dots_slash" in names
    await joined.call("s2_with_dots_slash", {"note": "메모"}, CONTEXT)
    assert first.got("tools/call") == []
    assert [call["params"]["name"] for call in second.got("tools/call")] == ["with.dots/slash"]


async def test_f27_blocks_that_are_no_text(raw: Make) -> None:
    result = await raw().call("blocks")
    assert result.text.splitlines() == [
        "downloaded",
        "[resource, file:///가.txt, text/plain]",
        "BODY",
        "[resource, file:///b.pdf, application/pdf, 3,000 bytes, not shown]",
        "[image, image/png, 3,000 bytes, not shown]",
        "[audio, audio/wav, 3 bytes, not shown]",
        "[link to a resource, log, file:///log, 12]",
        "[content of the type hologram, not shown]",
    ]


async def test_f28_timeout_and_cancellation_tell_the_server(raw: Make) -> None:
    server = raw(timeout=1.0)
    await server.tools.list()
    with pytest.raises(ToolTimeout, match="never of MCP server raw did not answer within 1 s"):
        await server.call("never")
    task = asyncio.create_task(server.call("never"))
    await until(lambda: len(server.got("tools/call")) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    asked = [call["id"] for call in server.got("tools/call")]
    await until(lambda: len(server.got("notifications/cancelled")) == 2)
    assert [note["params"]["requestId"] for note in server.got("notifications/cancelled")] == asked
    soon = CallContext(deadline=SystemClock().now() + 0.3)
    with pytest.raises(ToolTimeout, match="before the deadline"):
        await server.call("late", soon)
    assert (await server.call("echo", a=1)).text == '{"a": 1}'  # the late answer hurt nobody
    assert len(server.pids()) == 1


async def test_a_deadline_that_has_passed_sends_nothing(raw: Make) -> None:
    server = raw()
    with pytest.raises(ToolTimeout, match="was not called"):
        await server.call("echo", CallContext(deadline=SystemClock().now() - 1))
    assert server.notes() == []


async def test_f29_only_tools_marked_as_reading_are_asked_again(raw: Make) -> None:
    server = raw()
    with pytest.raises(OutcomeUnknown, match="Whether it took effect is unknown; it was not sent again"):
        await server.call("exit")
    assert len(server.got("tools/call")) == 1
    with pytest.raises(ToolUnavailable, match="exit code 1"):
        await server.call("exit_reading")
    assert len(server.got("tools/call")) == 3
    server = raw()
    assert (await server.call("exit_once", a=1)).text == '{"a": 1}'
    assert len(server.got("tools/call")) == 2


async def test_f30_one_call_that_hangs_holds_up_nobody(raw: Make) -> None:
    server = raw()
    hanging = asyncio.create_task(server.call("never"))
    with at_once():
        await asyncio.gather(*(server.call("echo", n=i) for i in range(20)))
    assert not hanging.done()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging


async def test_f48_a_lone_surrogate_in_a_result(raw: Make) -> None:
    assert (await raw().call("surrogate")).text == "주문 \ufffd 끝 😀 \\ud83d\ufffd"


async def test_sec14_the_environment_holds_what_is_named_and_no_more(
    raw: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "SIAFU_API_KEY", "MOONSHOT_API_KEY", "AWS_SECRET_ACCESS_KEY", "USER", "PYTHONPATH"):
        monkeypatch.setenv(name, "must-not-leak")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("TZ", "Asia/Seoul")
    server = raw(env={"SHOP_TOKEN": Secret("token-for-the-shop"), "PLAIN": "평범"})
    seen = json.loads((await server.call("environment")).text)
    allowed = {"PATH", "HOME", "LANG", "TZ", "LC_ALL", "SHOP_TOKEN", "PLAIN"}
    assert set(seen) - {name for name in seen if name.startswith(("LC_", "__"))} <= allowed
    assert (seen["SHOP_TOKEN"], seen["PLAIN"], seen["TZ"]) == ("token-for-the-shop", "평범", "Asia/Seoul")
    assert "must-not-leak" not in json.dumps(seen)
    assert "token-for-the-shop" not in repr(server.server)


async def test_sec14_no_shell_reads_the_arguments(raw: Make, tmp_path: Path) -> None:
    server = raw("; touch pwned", "$(touch pwned)", "`touch pwned`", cwd=str(tmp_path))
    argv = json.loads((await server.call("arguments")).text)
    assert argv[2:] == ["; touch pwned", "$(touch pwned)", "`touch pwned`"]
    assert not (tmp_path / "pwned").exists()


async def test_sec15_a_server_cannot_ask_for_a_model(raw: Make) -> None:
    server = raw()
    await server.call("sampling")
    await until(lambda: any(note.get("got", {}).get("id") == "s1" for note in server.notes()))
    (answer,) = [note["got"] for note in server.notes() if note.get("got", {}).get("id") == "s1"]
    assert "error" in answer and "result" not in answer


async def test_sec15_a_flood_on_stderr_blocks_nothing(raw: Make) -> None:
    server = raw("flood")
    assert (await server.call("echo", a=1)).text == '{"a": 1}'
    with pytest.raises(OutcomeUnknown) as caught:
        await server.call("exit")
    assert len(caught.value.message) < 1500


async def test_a_line_without_end_ends_the_connection(raw: Make) -> None:
    server = raw()
    with pytest.raises(OutcomeUnknown, match="wrote a line of more than 33,554,432 bytes"):
        await server.call("long", size=40_000_000)
    assert (await server.call("echo")).text == "{}"


async def test_a_server_that_talks_much_is_read_to_the_end(raw: Make) -> None:
    assert (await raw().call("chatter")).text == "{}"


async def test_a_process_that_stops_reading_takes_no_more_calls(raw: Make) -> None:
    server = raw()
    deaf = asyncio.create_task(server.call("deafens"))
    await until(lambda: len(server.got("tools/call")) == 1)
    waiting = [asyncio.create_task(server.call("echo", word="x" * 9_000_000)) for _ in range(4)]
    with at_once():
        await asyncio.sleep(0.1)
        with pytest.raises(ToolUnavailable, match="does not read what it is sent; the call was not sent"):
            await server.call("echo")
        for task in waiting:
            task.cancel()
        ended = await asyncio.gather(*waiting, return_exceptions=True)  # although the server cannot be told
    assert all(isinstance(each, asyncio.CancelledError) for each in ended)
    deaf.cancel()


async def test_a_process_that_never_speaks(raw: Make) -> None:
    server, before = raw("deaf", timeout=0.5), children()
    with pytest.raises(ToolUnavailable, match=r"did not finish its handshake within 0\.5 s"):
        await server.tools.list()
    await until(lambda: children() <= before)


async def test_the_identity_goes_only_to_servers_set_up_for_it(raw: Make) -> None:
    who = CallContext(identity="signed-token")
    trusted, other = raw(identity="siafu"), raw()
    assert json.loads((await trusted.call("identity", who)).text) == {"siafu/identity": "signed-token"}
    assert json.loads((await trusted.call("identity")).text) is None
    assert "signed-token" not in (await other.call("identity", who)).text
    assert "signed-token" not in other.log.read_text()


async def test_the_effect_key_goes_with_a_call_and_bound_arguments_only_where_identities_go(raw: Make) -> None:
    call = CallContext(effect_key="ef:1", bound={"expected_refunded_minor": 0})
    bound = {"siafu/bound": {"expected_refunded_minor": 0}}
    trusted, other = raw(identity="siafu"), raw()
    assert json.loads((await trusted.call("identity", call)).text) == {"siafu/effect-key": "ef:1", **bound}
    assert json.loads((await other.call("identity", call)).text) == {"siafu/effect-key": "ef:1"}


async def test_under_an_effect_key_a_lost_call_is_not_sent_again_whatever_its_hint_says(raw: Make) -> None:
    server = raw()
    with pytest.raises(OutcomeUnknown):
        await server.call("exit_once", CallContext(effect_key="ef:1"))
    assert len(server.got("tools/call")) == 1


async def test_errors_of_the_protocol_are_results_for_the_model(raw: Make) -> None:
    server = raw()
    result = await server.call("rpc_error")
    assert (result.text, result.is_error, result.code) == ("no such 주문", True, "-32602")
    result = await server.call("closed_code")  # the number the SDK uses for a closed connection
    assert (result.text, result.is_error, result.code) == ("my own error", True, "-32000")
    assert len(server.pids()) == 1


async def test_an_answer_that_breaks_the_protocol(raw: Make) -> None:
    server = raw()
    with pytest.raises(OutcomeUnknown, match="breaks the protocol"):
        await server.call("malformed")
    with pytest.raises(ToolUnavailable, match="breaks the protocol"):
        await server.call("malformed_reading")
    assert len(server.got("tools/call")) == 3
    assert (await server.call("echo")).text == "{}"


async def test_an_answer_that_cannot_be_read_ends_its_call_at_once(raw: Make) -> None:
    server = raw()
    others = asyncio.gather(*(server.call("echo", n=n) for n in range(3)))
    for name in ("null", "deep", "deep_first", "half"):
        with at_once(), pytest.raises(OutcomeUnknown, match=r"gave no answer: what it sent breaks the protocol: \{"):
            await server.call(name)
    assert len(await others) == 3
    assert len(server.pids()) == 1  # the connection goes on


async def test_what_is_no_message_is_told_when_the_call_has_timed_out(raw: Make) -> None:
    server = raw(timeout=1.0)
    with pytest.raises(ToolTimeout, match="did not answer within 1 s; it has also sent what is no message: 완료"):
        await server.call("no_json")


async def test_unknown_names_are_denied_without_asking(raw: Make) -> None:
    server = raw()
    with pytest.raises(ToolDenied, match="MCP server raw has no tool 'Echo'"):
        await server.call("Echo")
    assert server.got("tools/call") == []


async def test_a_changed_list_is_read_again_and_an_unchanged_one_is_kept(raw: Make) -> None:
    server = raw()
    before = await server.tools.list()
    assert await server.tools.list() is before
    await server.call("changes")
    await until(lambda: server.tools._connection is not None and not server.tools._connection.listed)
    assert [tool.name for tool in await server.tools.list()] == sorted({"added", *(tool.name for tool in before)})
    assert len(server.got("tools/list")) == 2


async def test_the_last_list_stands_while_the_server_is_away(raw: Make) -> None:
    server = raw()
    before = await server.tools.list()
    with pytest.raises(OutcomeUnknown):
        await server.call("kill")
    assert await server.tools.list() is before
    assert len(server.pids()) == 1  # listing did not start it
    await server.call("echo")
    assert await server.tools.list() is before  # asked again, and equal
    assert len(server.got("tools/list")) == 2


async def test_resources(raw: Make) -> None:
    server = raw()
    (resource,) = await server.tools.list_resources()
    assert (resource.uri, resource.name) == ("doc://정책", "policy")
    assert await server.tools.read_resource("doc://정책") == "환불은 7일\n[resource, doc://b, 3 bytes, not shown]"
    with pytest.raises(ToolFault, match="cannot read doc://x: not found"):
        await server.tools.read_resource("doc://x")
