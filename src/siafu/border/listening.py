"""A socket that others may connect to."""

from __future__ import annotations

import socket

from siafu.border.text import preview
from siafu.errors import ConfigError


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; `port` 0 takes a free one.

    Raises: ConfigError.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error}; choose another --port (0 = any)") from None


def host_and_port(text: str, where: str) -> tuple[str, int]:
    """`[HOST:]PORT`; without a host 127.0.0.1. An IPv6 address stands in brackets. where: names it in messages.

    Raises: ConfigError.
    """
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError(f"{where} is a port or HOST:PORT, such as 8000 or 127.0.0.1:8000, not {preview(text, 60)!r}")
    return host, int(port)


def bound_host(listening: socket.socket) -> str:
    """The address as it stands in a URL."""
    host: str = listening.getsockname()[0]
    return f"[{host}]" if ":" in host else host


def bound_url(listening: socket.socket) -> str:
    """`http://HOST:PORT`."""
    return f"http://{bound_host(listening)}:{listening.getsockname()[1]}"
