"""The MCP servers that the settings name. Apart from what starts them, as the SDK takes a second to import."""

from __future__ import annotations

from siafu.config.sections import McpServerSettings
from siafu.config.settings import Settings, resolved
from siafu.tools.servers import McpServer


def servers(settings: Settings) -> list[McpServer]:
    """The configured MCP servers. Raises: ConfigError when one cannot be used as it is configured."""
    return [configured_server(name, given) for name, given in settings.mcp_servers.items()]


def configured_server(name: str, given: McpServerSettings) -> McpServer:
    """One of them. Raises: ConfigError."""
    where = f"mcp_servers.{name}"
    return McpServer(
        name=name,
        command=given.command,
        args=tuple(given.args),
        env=resolved(given.env, f"{where}.env"),
        cwd=given.cwd,
        url=given.url,
        headers=resolved(given.headers, f"{where}.headers"),
        timeout=given.timeout_seconds,
        identity=given.identity,
    )
