"""A socket that others may connect to."""

from __future__ import annotations

import contextlib
import re
import socket

from siafu.border.text import preview
from siafu.errors import ConfigError

MOST_PORTS = 1000
_PLACE = re.compile(r"(?:(.+):)?([0-9]{1,5})(?:-([0-9]{1,5}))?")


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; `port` 0 takes a free one. What it accepts sends at once, however little it is.

    Raises: ConfigError.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=2048)
        # Accepted sockets inherit it. asyncio would set it on those of its own making only, and without it the second
        # of two small writes waits for the peer's delayed acknowledgement of the first, 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error}; choose another --port (0 = any)") from None


def bind_first(host: str, ports: range) -> socket.socket:
    """A listening socket at the first of `ports` that is free; of processes that ask at once, each gets its own.

    Raises: ConfigError.
    """
    for port in ports[:-1]:
        with contextlib.suppress(ConfigError):
            return bind(host, port)
    return bind(host, ports[-1])


def host_and_ports(text: str, where: str) -> tuple[str, range]:
    """`[HOST:]PORT` or `[HOST:]PORT-PORT`; without a host 127.0.0.1. An IPv6 address stands in brackets. where: names
    it in messages.

    Raises: ConfigError.
    """
    found = _PLACE.fullmatch(text.strip())
    first = int(found[2]) if found else -1
    last = int(found[3] or first) if found else -1
    if found is None or not first <= last <= 65_535 or last - first >= MOST_PORTS:
        raise ConfigError(f"{where} is a port or HOST:PORT, such as 8000 or 127.0.0.1:8000, not {preview(text, 60)!r}")
    return (found[1] or "127.0.0.1").removeprefix("[").removesuffix("]"), range(first, last + 1)


def bound_host(listening: socket.socket) -> str:
    """The address as it stands in a URL."""
    host: str = listening.getsockname()[0]
    return f"[{host}]" if ":" in host else host


def bound_url(listening: socket.socket) -> str:
    """`http://HOST:PORT`."""
    return f"http://{bound_host(listening)}:{listening.getsockname()[1]}"
