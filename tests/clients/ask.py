"""An MCP client without a will of its own: connects as the first line of stdin says, then does what each further line
says, and answers each with one line. How the lines look is told in asking.py.

Which client: sdk = the official SDK's, fastmcp = FastMCP's. A program of its own, as it runs without siafu as well.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from typing import Any

from mcp import MCPError

Message = dict[str, Any]


def official(server: Message) -> Any:
    import httpx2
    from mcp import Client, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client

    if "command" in server:
        return Client(StdioServerParameters(**server))
    http = httpx2.AsyncClient(headers=server["headers"], timeout=60)
    return Client(streamable_http_client(server["url"], http_client=http))


def fastmcp(server: Message) -> Any:
    from fastmcp import Client  # type: ignore[import-not-found] # in an environment of its own
    from fastmcp.client.transports import StdioTransport, StreamableHttpTransport  # type: ignore[import-not-found]

    return Client(StdioTransport(**server) if "command" in server else StreamableHttpTransport(**server))


class Asker:
    """What can be asked of a connected client. FastMCP's differs from the official one in what it hands back."""

    def __init__(self, client: Any, *, fast: bool) -> None:
        self._client, self._fast = client, fast

    async def connected(self) -> Message:
        about = self._client
        return {
            "server": wire(about.server_info),
            "instructions": about.instructions,
            "protocol": about.protocol_version,
        }

    async def tools(self) -> Message:
        listed = await self._client.list_tools()
        return {"tools": wire(listed if self._fast else listed.tools)}

    async def call(self, tool: str, args: Message) -> Message:
        progress: list[Message] = []

        async def hear(done: float, total: float | None, message: str | None) -> None:
            progress.append({"progress": done, "message": message})

        if self._fast:
            result = await self._client.call_tool(tool, args, progress_handler=hear, raise_on_error=False)
            data = {} if result.data is None else {"data": dataclasses.asdict(result.data)}
        else:
            result, data = await self._client.call_tool(tool, args, progress_callback=hear), {}
        return {
            "error": result.is_error,
            "structured": result.structured_content,
            "text": "".join(part.text for part in result.content),
            "progress": progress,
            **data,
        }

    async def resources(self) -> Message:
        listed, shapes = await self._client.list_resources(), await self._client.list_resource_templates()
        if self._fast:
            return {"resources": wire(listed), "templates": wire(shapes)}
        return {"resources": wire(listed.resources), "templates": wire(shapes.resource_templates)}

    async def read(self, uri: str) -> Message:
        found = await self._client.read_resource(uri)
        return {"contents": wire(found if self._fast else found.contents)}


def wire(value: Any) -> Any:
    """As it was sent, with the protocol's own names."""
    if isinstance(value, list):
        return [wire(part) for part in value]
    return value.model_dump(by_alias=True, exclude_none=True, mode="json")


async def main(which: str) -> None:
    server = json.loads(await asyncio.to_thread(sys.stdin.readline))
    server.pop("what")
    fast = which == "fastmcp"
    async with fastmcp(server) if fast else official(server) as client:
        asker = Asker(client, fast=fast)
        answer = await asker.connected()
        while True:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
            line = await asyncio.to_thread(sys.stdin.readline)
            if not line:
                return
            how = json.loads(line)
            try:
                answer = await getattr(asker, how.pop("what"))(**how)
            except (MCPError, RuntimeError) as error:
                answer = {"failed": str(error), "code": error.code if isinstance(error, MCPError) else None}


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
