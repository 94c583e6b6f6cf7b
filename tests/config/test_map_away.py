"""`siafu.map` whose tool server goes away in the middle and comes back."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import siafu
from services import free_port
from siafu.gateway.scripted import Scripted
from siafu.observe.events import Event, LaneClosed, LaneOpened
from siafu.swarm.results import MapResult
from tools.servers.raw_http import RawHttp

TILL = Path(__file__).parents[1] / "tools" / "servers" / "till.py"
ITEMS = [f"주문-{n}" for n in range(20)]
RULE = '[tools.effects."till.pay"]\nhonours_key = true\n'
pytestmark = pytest.mark.usefixtures("plain")


@contextlib.asynccontextmanager
async def till(port: int, folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(TILL), str(port), str(folder), stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(30):
            assert process.stdout is not None and await process.stdout.readline() == b"up\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


async def work(item: str, ctx: siafu.TaskContext) -> str:
    found = await ctx.tool("find", {"order": item})
    paid = await ctx.tool("pay", {"order": item})
    return f"{found.text}, {paid.text}"


async def test_a_run_goes_on_when_a_killed_server_is_there_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "siafu.toml").write_text(RULE, encoding="utf-8")
    port, events = free_port(), list[Event]()
    tools = siafu.McpTools(siafu.McpServer(name="till", url=f"http://127.0.0.1:{port}/mcp"))
    async with contextlib.AsyncExitStack() as stack:
        first = await stack.enter_async_context(till(port, tmp_path))
        stack.push_async_callback(tools.aclose)

        async def all_of_them() -> list[MapResult]:
            run = siafu.map(
                work, ITEMS, key=str, run="till", journal=tmp_path / "run.db", concurrency=4,
                tools=tools, endpoint=Scripted([]), observer=events.append,
            )  # fmt: skip
            return [result async for result in run]

        running = asyncio.create_task(all_of_them())
        async with asyncio.timeout(30):
            while len(lines(tmp_path / "paid")) < 6:
                await asyncio.sleep(0.01)
        first.kill()
        async with asyncio.timeout(30):
            while not any(isinstance(event, LaneClosed) for event in events):
                await asyncio.sleep(0.01)
        await stack.enter_async_context(till(port, tmp_path))
        async with asyncio.timeout(30):
            results = await running
    assert {result.key: result.value for result in results} == {
        item: f"{item} 배송 중, {item} 환불됨" for item in ITEMS
    }
    paid = lines(tmp_path / "paid")
    assert sorted(line.split()[0] for line in paid) == sorted(ITEMS)  # each once, and all under a key
    assert all(line.split()[1].startswith("ef:") for line in paid)
    assert max(Counter(lines(tmp_path / "calls")).values()) <= 2
    assert [type(event) for event in events if isinstance(event, LaneClosed | LaneOpened)] == [LaneClosed, LaneOpened]
    assert "MCP server till cannot be reached: calls wait for it" in caplog.text


@pytest.mark.parametrize("seconds", [0, 600])
async def test_without_patience_calls_fail_while_the_server_is_away(tmp_path: Path, seconds: int) -> None:
    (tmp_path / "siafu.toml").write_text(f"[patience]\noutage_seconds = {seconds}\n", encoding="utf-8")
    server, back = RawHttp(), list[asyncio.Task[None]]()
    await server.start()
    tools = siafu.McpTools(siafu.McpServer(name="raw", url=server.url))

    async def read(item: str, ctx: siafu.TaskContext) -> str:
        if item == ITEMS[5]:
            await server.stop()
        return (await ctx.tool("read", {})).text

    def restart(event: Event) -> None:
        if isinstance(event, LaneClosed):
            back.append(asyncio.create_task(server.start()))

    run = siafu.map(read, ITEMS, key=str, concurrency=4, tools=tools, endpoint=Scripted([]), observer=restart)
    results = [result async for result in run]
    codes = {"" if result.error is None else result.error.code for result in results}
    assert len(results) == 20
    assert codes == ({""} if seconds else {"", "tool_unavailable"})
    assert len(back) == (1 if seconds else 0)
    await tools.aclose()
    await server.stop()
