"""An MCP server over HTTP that can be killed and started again at the same place: `till.py PORT FOLDER`.

Every call is a line in FOLDER/calls when it comes in. `pay` does so once for each effect key (FOLDER/paid), and takes a
while after that; `find` only reads. Prints "up" when it listens.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations

PORT, FOLDER = int(sys.argv[1]), Path(sys.argv[2])
server = MCPServer("till", log_level="CRITICAL")


def note(file: str, line: str) -> None:
    with (FOLDER / file).open("a", encoding="utf-8") as out:
        out.write(line + "\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def find(order: str) -> str:
    note("calls", f"find {order}")
    await asyncio.sleep(0.05)
    return f"{order} 배송 중"


@server.tool()
async def pay(order: str, ctx: Context[Any, Any]) -> str:
    key = (ctx.request_context.meta or {}).get("siafu/effect-key")
    note("calls", f"pay {order}")
    paid = FOLDER / "paid"
    if not paid.exists() or f"{order} {key}" not in paid.read_text(encoding="utf-8").splitlines():
        note("paid", f"{order} {key}")
    await asyncio.sleep(0.1)
    return f"{order} 환불됨"


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", PORT))
    print("up", flush=True)
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="critical")).run(sockets=[listener])
