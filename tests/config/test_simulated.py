from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from processes import alive, children, wait_until
from siafu.config import simulated as module
from siafu.config.simulated import simulated
from siafu.errors import ConfigError

CHILD = """
import asyncio, sys
from siafu.config.simulated import simulated
async def main():
    async with simulated("--latency", "none") as url:
        print(url, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


def listed(url: str) -> object:
    with urllib.request.urlopen(f"{url}/models", timeout=10) as reply:
        return json.load(reply)["object"]


async def test_it_answers_while_the_block_runs_and_is_gone_after_it() -> None:
    before = children()
    async with simulated("--latency", "none") as url:
        assert await asyncio.to_thread(listed, url) == "list"
        assert len(children() - before) == 1
    assert children() == before
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(listed, url)


async def test_it_is_gone_after_an_error_and_a_cancellation() -> None:
    before = children()
    with pytest.raises(ValueError, match="mine"):
        async with simulated():
            raise ValueError("mine")

    async def hold() -> None:
        async with simulated():
            await asyncio.Event().wait()

    for wanted in (0, 1):  # before and after it has started
        task = asyncio.create_task(hold())
        await asyncio.sleep(0)
        assert await asyncio.to_thread(wait_until, lambda: len(children() - before) >= wanted)  # noqa: B023
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled() and children() == before


async def test_cancelled_twice_it_is_killed_and_collected() -> None:
    before = children()

    async def hold() -> None:
        async with simulated():
            (child,) = children() - before
            os.kill(child, signal.SIGSTOP)  # it cannot end by itself any more
            started.set()
            await asyncio.Event().wait()

    started = asyncio.Event()
    task = asyncio.create_task(hold())
    async with asyncio.timeout(20):
        await started.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled() and children() == before


async def test_what_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    before = children()  # a database that other tests use may be among them
    with pytest.raises(ConfigError, match="did not start"):
        async with simulated("--latency", "nonsense"):
            pass
    assert "latency" in capfd.readouterr().err  # its own words
    monkeypatch.setattr(module, "START_SECONDS", 0.0)
    with pytest.raises(ConfigError, match="within 0 s"):
        async with simulated():
            pass
    assert children() == before


@pytest.mark.kill
def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", CHILD], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        assert listed(url) == "list"
        (child,) = children(parent.pid)
        parent.send_signal(signal.SIGKILL)
    assert wait_until(lambda: not alive(child))


def test_a_module_in_the_working_folder_does_not_stand_in_for_ours(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise SystemExit('the wrong typer')")
    script = CHILD.replace("await asyncio.sleep(60)", "pass")
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and done.stdout.startswith("http://127.0.0.1:"), done.stderr
