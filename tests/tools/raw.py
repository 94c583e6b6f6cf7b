"""A misbehaving MCP server under test, and ways to wait and to look at processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from siafu.observe.calls import CallContext
from siafu.tools.mcp import McpTools
from siafu.tools.servers import McpServer

SERVERS = Path(__file__).parent / "servers"
RAW = SERVERS / "raw_stdio.py"
SDK = SERVERS / "sdk.py"
CONTEXT = CallContext()
PROMPT = 5.0  # seconds that "at once" may take on a busy machine; the tool timeouts here are longer


class Raw:
    """A hand-written server, and what it has written down."""

    def __init__(self, log: Path, *wishes: str, **options: Any) -> None:
        self.log = log
        args = (str(RAW), str(log), *wishes)
        self.server = McpServer(**{"name": "raw", "command": sys.executable, "args": args, "timeout": 30.0, **options})
        self.tools = McpTools(self.server)

    def notes(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def pids(self) -> list[int]:
        return [note["started"] for note in self.notes() if "started" in note]

    def got(self, method: str) -> list[dict[str, Any]]:
        return [note["got"] for note in self.notes() if note.get("got", {}).get("method") == method]

    async def call(self, name: str, context: CallContext = CONTEXT, **arguments: Any) -> Any:
        return await self.tools.call(name, arguments, context)


Make = Callable[..., Raw]


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie counts as alive, since nobody has waited for it."""
    return Path(f"/proc/{pid}").exists()


async def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.02)


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < PROMPT


def state(pid: int) -> str:
    """The letter that the kernel has for it; Z (a zombie) also when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


def files() -> int:
    """How many file descriptors this process has open."""
    return len([*Path("/proc/self/fd").iterdir()])
