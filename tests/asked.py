"""A slow endpoint of a process that is to be killed. Its count of requests outlives the process."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from siafu.gateway.chat import ChatRequest
from siafu.gateway.scripted import Scripted
from siafu.observe.calls import CallContext


def counting(folder: Path) -> Scripted:
    """It answers after 10 ms; each request leaves a line in FOLDER/asked before."""
    log = os.open(folder / "asked", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def slow(request: ChatRequest, context: CallContext) -> str:
        text = str(request.messages[-1]["content"])
        os.write(log, f"{text}\n".encode())
        await asyncio.sleep(0.01)
        return f"답 {text}"

    return Scripted(slow)
