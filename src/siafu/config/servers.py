"""MCP servers from the settings. Apart from the rest, because the MCP SDK takes a second to import."""

from __future__ import annotations

from siafu.config.settings import McpServerSettings, resolve
from siafu.pace.clock import SystemClock
from siafu.tools.mcp import McpTools
from siafu.tools.servers import McpServer


def mcp_tools(name: str, server: McpServerSettings) -> McpTools:
    """The tools of one configured MCP server; close them with `aclose`. Raises: ConfigError."""
    where = f"mcp_servers.{name}"
    return McpTools(
        McpServer(
            name=name,
            command=server.command,
            args=tuple(server.args),
            env={key: resolve(value, f"{where}.env.{key}") for key, value in server.env.items()},
            cwd=server.cwd,
            url=server.url,
            headers={key: resolve(value, f"{where}.headers.{key}") for key, value in server.headers.items()},
            timeout=server.timeout_seconds,
            identity=server.identity,
        ),
        SystemClock(),
    )
