"""Which MCP servers there are: the well-known `{"mcpServers": {...}}`, read strictly."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from siafu.border.canonical import loads
from siafu.border.secrets import MASK, Secret
from siafu.border.text import preview
from siafu.border.urls import check_web_url
from siafu.errors import BoundaryError, ConfigError

MAX_CONFIG_BYTES = 1024 * 1024
_KINDS = {"stdio": "stdio", "http": "http", "streamable-http": "http", "streamableHttp": "http", "sse": "sse"}
_OPTIONS = ("type", "command", "args", "env", "cwd", "url", "headers", "timeout", "identity")


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach one MCP server: a `command` to start (stdio), or a `url` (Streamable HTTP; `sse` for servers of the
    protocol of 2024-11-05).

    env: the variables the process gets beside PATH, HOME, LANG, LC_* and TZ; nothing else is inherited. headers: sent
    with every request. timeout: seconds for opening the connection, and for one call. identity: "siafu" = calls carry
    the caller's identity token and bound arguments in `_meta`; None = they never do.

    Raises: ConfigError when the parts do not fit together.
    """

    name: str
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str | Secret] = {}
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str | Secret] = {}
    sse: bool = False
    timeout: float = 30.0
    identity: Literal["siafu"] | None = None

    def __post_init__(self) -> None:
        where = f"MCP server {preview(self.name, 64)!r}"
        if not self.name or len(self.name) > 64 or not self.name.isprintable():
            raise ConfigError(f"{where}: a name has 1 to 64 printable characters")
        if bool(self.command) == bool(self.url):
            raise ConfigError(f"{where} needs either a command or a url")
        if not 0 < self.timeout <= 3600:
            raise ConfigError(f"{where}: timeout must be above 0 and at most 3600 seconds")
        if self.url:
            if self.args or self.env or self.cwd:
                raise ConfigError(f"{where} has a url, so args, env and cwd have no meaning")
            check_web_url(self.url, f"{where}: url", like="https://host/mcp", instead="use headers")
        elif self.headers or self.sse:
            raise ConfigError(f"{where} has a command, so headers and type sse have no meaning")

    def __repr__(self) -> str:
        env, headers = (dict.fromkeys(values, MASK) for values in (self.env, self.headers))
        return f"McpServer({self.name!r}, command={self.command!r}, url={self.url!r}, env={env}, headers={headers})"


def parse_servers(data: bytes | str, environ: Mapping[str, str]) -> list[McpServer]:
    """The servers of a JSON configuration, in its order.

    A value in `env` or `headers` that is written `env:NAME` is taken from `environ` and kept secret.

    Raises: ConfigError for an unknown key (with the nearest known one), a wrong type or a missing variable.
    """
    try:
        config = loads(data, max_bytes=MAX_CONFIG_BYTES, what="the MCP configuration")
    except BoundaryError as error:
        raise ConfigError(error.message) from None
    _check_keys(config, ("mcpServers",), "the MCP configuration")
    servers = config.get("mcpServers", {})
    if not isinstance(servers, dict):
        raise ConfigError("mcpServers must be an object of servers by name")
    return [_server(name, options, environ) for name, options in servers.items()]


def _server(name: str, options: Any, environ: Mapping[str, str]) -> McpServer:
    where = f"MCP server {preview(name, 64)!r}"
    _check_keys(options, _OPTIONS, where)
    given = dict(options)
    kind = given.pop("type", None)
    if kind is not None and (not isinstance(kind, str) or kind not in _KINDS):
        raise ConfigError(f"{where}: type is one of {', '.join(_KINDS)}, not {preview(str(kind), 40)!r}")
    if kind is not None and (_KINDS[kind] == "stdio") != ("command" in given):
        raise ConfigError(f"{where}: type {kind} needs {'a command' if _KINDS[kind] == 'stdio' else 'a url'}")
    for key in ("env", "headers"):
        if key in given:
            given[key] = _values(given[key], f"{where}: {key}", environ)
    try:
        return msgspec.convert({**given, "name": name, "sse": kind == "sse"}, _Given).made()
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None


class _Given(msgspec.Struct, kw_only=True):
    """The types of what a configuration may hold, before it becomes an McpServer."""

    name: str
    sse: bool
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, Any] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, Any] = {}
    timeout: float = 30.0
    identity: Literal["siafu"] | None = None

    def made(self) -> McpServer:
        return McpServer(**{name: getattr(self, name) for name in self.__struct_fields__})


def _values(given: Any, where: str, environ: Mapping[str, str]) -> dict[str, str | Secret]:
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise ConfigError(f"{where} must be an object of texts")
    found: dict[str, str | Secret] = {}
    for key, value in given.items():
        variable = value.removeprefix("env:")
        if variable != value and variable not in environ:
            raise ConfigError(f"{where}.{key} names the variable {preview(variable, 80)}, which is not set")
        found[key] = value if variable == value else Secret(environ[variable])
    return found


def _check_keys(given: Any, known: tuple[str, ...], where: str) -> None:
    if not isinstance(given, dict):
        raise ConfigError(f"{where} must be an object")
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"{where} has the unknown key {preview(key, 60)!r}; {hint}")
