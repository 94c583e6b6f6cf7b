"""Async work from code that is not async (F44)."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from siafu.errors import UsageError
from siafu.swarm.sync import run_sync
from swarm.nest import start


async def answer() -> int:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    return 42


def test_f44_three_times_in_one_process() -> None:
    assert [run_sync(answer()), run_sync(answer), run_sync(answer)] == [42, 42, 42]


def test_f44_from_threads() -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(run_sync(answer))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == [42, 42, 42]


async def test_f44_inside_a_running_loop() -> None:
    before = threading.active_count()
    assert [run_sync(answer()), run_sync(answer)] == [42, 42]
    assert threading.active_count() == before


def test_a_map_becomes_a_list() -> None:
    assert [r.value for r in run_sync(start("{item}", ["a", "b"]))] == ["ok", "ok"]


async def test_errors_come_through_and_context_variables_go_in() -> None:
    name = contextvars.ContextVar("name", default="nobody")
    name.set("kim")

    async def who() -> str:
        if name.get() != "kim":
            raise AssertionError
        raise KeyError(name.get())

    with pytest.raises(KeyError, match="kim"):
        run_sync(who)


@pytest.mark.parametrize("work", [7, lambda: 7])
def test_what_cannot_be_run_is_refused(work: Any) -> None:
    with pytest.raises(UsageError, match="a coroutine"):
        run_sync(work)


SCRIPT = """
import asyncio, sys
from siafu.swarm.sync import run_sync

async def work():
    print("begun", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        print("cleaned up", flush=True)

async def notebook():
    run_sync(work)

if sys.argv[1] == "notebook":
    asyncio.run(notebook())
else:
    run_sync(work)
"""


@pytest.mark.parametrize("where", ["script", "notebook"])
def test_ctrl_c_cancels_and_waits(where: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", "-c", SCRIPT, where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            os.kill(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert out == "cleaned up\n"
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "Warning" not in err


def test_a_program_that_exits_in_the_middle_cleans_up() -> None:
    done: list[str] = []

    async def work() -> None:
        async def leave() -> None:
            sys.exit(5)

        leaving = asyncio.create_task(leave())
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            done.append("work")
            leaving.exception()

    with pytest.raises(SystemExit):
        run_sync(work)
    assert done == ["work"]


def test_what_begins_as_another_task_ends_does_not_keep_run_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siafu.swarm.sync.GRACE", 0.02)
    kept: list[asyncio.Future[Any]] = []

    async def mule() -> None:
        for _ in range(1000):  # ten seconds, as a test that fails has to end
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    async def last() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            kept.append(asyncio.gather(mule()))  # so that asyncio does not log that it is left

    async def work() -> None:
        kept.append(asyncio.create_task(last()))
        await asyncio.sleep(0)

    run_sync(work)
    assert not kept[1].done()


STUBBORN = """
import asyncio, logging, sys, threading
import siafu.swarm.sync
from swarm.nest import start

logging.basicConfig()
siafu.swarm.sync.GRACE = float(sys.argv[2])

async def work(item, ctx):
    print("begun", flush=True)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print("swallowed", flush=True)

async def main():
    seconds = float(sys.argv[3])
    options = {"item_timeout": seconds} if seconds else {}
    return [r.error.code async for r in start(work, ["kim"], key=str, grace=0.05, **options)]

async def notebook():
    return siafu.swarm.sync.run_sync(main)

print(asyncio.run(notebook()) if sys.argv[1] == "notebook" else siafu.swarm.sync.run_sync(main))
"""


def stubborn(where: str, grace: float, item_timeout: float) -> subprocess.Popen[str]:
    """A script whose work never ends by being cancelled. grace: of run_sync."""
    return subprocess.Popen(
        [sys.executable, "-c", STUBBORN, where, str(grace), str(item_timeout)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize("where", ["script", "notebook"])
def test_work_that_swallows_being_cancelled_does_not_keep_run_sync(where: str) -> None:
    with stubborn(where, 0.05, 0.05) as process:
        try:
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, out.splitlines()[-1]) == (0, "['deadline_reached']")
    assert "the work on item kim does not end although it was cancelled" in err
    assert "siafu: work on kim does not end when it is cancelled, and is left" in err


@pytest.mark.parametrize("where", ["script", "notebook"])
def test_a_second_ctrl_c_does_not_wait_for_work_that_swallows_the_first(where: str) -> None:
    with stubborn(where, 600, 0) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            os.kill(process.pid, signal.SIGINT)
            assert process.stdout.readline() == "swallowed\n"
            os.kill(process.pid, signal.SIGINT)
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert "KeyboardInterrupt" in err
