"""A process that runs a file with a slow endpoint, to be killed: `child.py FOLDER LINES`.

Each request leaves a line in FOLDER/asked before it is answered, so the endpoint's own count outlives the process.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from siafu.gateway.chat import ChatRequest
from siafu.gateway.scripted import Scripted
from siafu.observe.calls import CallContext

sys.path.insert(0, str(Path(__file__).parents[1]))
from filerun.mini import Desk, lines


def main(folder: Path, count: int) -> None:
    log = os.open(folder / "asked", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def slow(request: ChatRequest, context: CallContext) -> str:
        text = str(request.messages[-1]["content"])
        os.write(log, f"{text}\n".encode())
        await asyncio.sleep(0.01)
        return f"답 {text}"

    desk = Desk(folder, lines(*(f"q{number}" for number in range(count))))
    desk.run(Scripted(slow), concurrency=10)


main(Path(sys.argv[1]), int(sys.argv[2]))
