"""How the processes of MCP servers end, and that nothing is left of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from siafu.errors import OutcomeUnknown, ToolUnavailable
from siafu.tools.mcp import McpTools

from .raw import RAW, Make, Raw, alive, at_once, files, state, until


async def test_closing_ends_the_process_and_what_it_started(raw: Make) -> None:
    server = raw()
    grandchild = int((await server.call("grandchild")).text)
    assert alive(grandchild)
    await server.tools.aclose()
    assert not alive(server.pids()[0])
    await until(lambda: not alive(grandchild) or state(grandchild) == "Z")  # its parent is whoever adopts it
    with pytest.raises(ToolUnavailable, match="was closed"):
        await server.call("echo")
    await server.tools.aclose()


async def test_f21_a_death_is_seen_though_an_orphan_holds_the_pipes(raw: Make) -> None:
    server = raw()
    with at_once(), pytest.raises(OutcomeUnknown, match="ended with exit code 1"):
        await server.call("orphan")
    with at_once():
        await server.tools.aclose()
    assert not alive(server.pids()[0])


async def test_closing_ends_a_process_that_does_not_want_to(raw: Make) -> None:
    server = raw("stubborn")
    pending = asyncio.create_task(server.call("never"))
    await until(lambda: len(server.got("tools/call")) == 1)
    await server.tools.aclose()
    assert not alive(server.pids()[0])
    with pytest.raises(OutcomeUnknown, match="was closed"):
        await pending


async def test_a_cancelled_owner_ends_the_process_and_a_second_cancel_kills_at_once(raw: Make) -> None:
    server = raw("stubborn")
    await server.call("echo")
    connection = server.tools._connection
    assert connection is not None
    connection.owner.cancel()
    await asyncio.sleep(0.1)  # it waits for the process to end by itself, for 2 s
    assert alive(server.pids()[0]) and not connection.owner.done()
    connection.owner.cancel()
    async with asyncio.timeout(1):
        await asyncio.wait([connection.owner])
    assert not alive(server.pids()[0])


@pytest.mark.kill
async def test_the_process_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = (
        "import asyncio, sys\n"
        "from siafu.observe.calls import CallContext\n"
        "from siafu.tools.mcp import McpTools\n"
        "from siafu.tools.servers import McpServer\n"
        "async def main():\n"
        f"    server = McpServer(name='raw', command=sys.executable, args=({str(RAW)!r}, {str(log)!r}))\n"
        "    await McpTools(server).call('never', {}, CallContext())\n"
        "asyncio.run(main())\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": source}
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, env=environment)
    try:
        await until(lambda: log.exists() and '"tools/call"' in log.read_text(), 30)
        pid = json.loads(log.read_text().splitlines()[0])["started"]
        assert alive(pid)
    finally:
        parent.send_signal(signal.SIGKILL)
        await parent.wait()
    await until(lambda: not alive(pid) or state(pid) == "Z")


async def test_nothing_is_left_behind(raw: Make) -> None:
    server = raw()
    await server.call("echo")
    await server.tools.aclose()
    await asyncio.sleep(0)
    tasks, opened = len(asyncio.all_tasks()), files()
    for _ in range(3):
        server.tools = McpTools(server.server)
        await asyncio.gather(*(server.call("echo", n=i) for i in range(10)))
        with pytest.raises(OutcomeUnknown):
            await server.call("kill")
        await server.call("echo")
        await server.tools.aclose()
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == tasks
    assert files() <= opened


def test_one_set_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    server = Raw(tmp_path / "log")

    async def ask() -> str:
        results = await asyncio.gather(*(server.call("echo", n=i) for i in range(10)))
        return str(results[0].text)

    assert asyncio.run(ask()) == asyncio.run(ask()) == '{"n": 0}'
    assert len(server.pids()) == 2
    assert not any(alive(pid) for pid in server.pids())
