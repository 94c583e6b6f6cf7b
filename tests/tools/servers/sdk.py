"""A well-behaved MCP server made with the SDK: `sdk.py stdio|http|sse`. HTTP prints its port first."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("sdk", log_level="CRITICAL")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def add(a: int, b: int) -> int:
    """더하기"""
    return a + b


@server.tool()
async def process() -> dict[str, int]:
    return {"pid": os.getpid()}


@server.tool()
async def identity(ctx: Context[Any, Any]) -> str:
    return str((ctx.request_context.meta or {}).get("siafu/identity"))


cancelled = 0


@server.tool()
async def sleeps(seconds: float) -> str:
    global cancelled
    try:
        await asyncio.sleep(seconds)
    except BaseException:
        cancelled += 1
        raise
    return "slept"


@server.tool()
async def how_many_were_cancelled() -> int:
    return cancelled


@server.resource("doc://policy")
def policy() -> str:
    return "환불은 7일"


def main(how: str) -> None:
    if how == "stdio":
        server.run("stdio")
        return
    app = server.sse_app() if how == "sse" else server.streamable_http_app()
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1)).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1])
