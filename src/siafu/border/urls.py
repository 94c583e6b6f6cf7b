"""Addresses that an operator configures: which are safe to call."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import parse_qs, urlsplit

from siafu.border.secrets import redact
from siafu.border.text import preview
from siafu.errors import ConfigError

WRITTEN = (
    "a user and password stand before the host as user:password@; in them, write @ as %40, / as %2F, : as %3A, "
    "? as %3F, # as %23"
)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_DATABASE = re.compile(r"/?|/[0-9]{1,5}")  # of a Redis: its number
_PATHS = ("/chat/completions", "/completions", "/embeddings", "/models", "/responses")


def is_loopback(host: str) -> bool:
    """True for localhost, 127.0.0.0/8 and ::1 (as written, without a DNS look-up)."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet: not of this machine or link (where clouds keep their
    metadata), of no private, shared or reserved network, and not such an address written within another.
    """
    try:
        found: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found in _NAT64:
            found = ipaddress.IPv4Address(found.packed[-4:])
        else:
            found = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else found)
    return found.is_global and not found.is_multicast


def checked_base_url(url: str, where: str) -> str:
    """A base URL such as `https://api.example.com/v1`, without a trailing slash.

    https anywhere; http on loopback only, since a key would travel in clear text.

    Raises: ConfigError.
    """
    text = url.strip().rstrip("/")
    check_web_url(text, where, like="https://host/v1", instead="set the key apart from it")
    if "?" in text or "#" in text:  # also an empty one, which would swallow the path
        raise ConfigError(f"{where} must not have a query or fragment")
    for path in _PATHS:
        if text.endswith(path):
            raise ConfigError(f"{where} is the base of the API; leave away {path}")
    return text


def check_web_url(url: str, where: str, *, like: str, instead: str) -> None:
    """Refuse what is no http(s) URL, holds a user name or password, or is http:// to another machine.

    `where`, `like` and `instead` (of a password in it) go into the messages.

    Raises: ConfigError.
    """
    if not url.isprintable() or " " in url or "\\" in url:
        raise ConfigError(f"{where} holds spaces, line breaks or backslashes; it must look like {like}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # it may show a part of a password
        raise ConfigError(f"{where} is no URL: its host or port is none; it must look like {like}") from None
    if port == 0:
        raise ConfigError(f"{where} has the port 0, where nothing listens")
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{where} must look like {like}, not {preview(redact(url), 80)!r}")
    if "%" in host or ".." in host or host.startswith("."):
        raise ConfigError(f"{where} names no host: {preview(redact(host), 80)!r}")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{where} must not hold a user name or password; {instead}")
    if parts.scheme == "http" and not is_loopback(host):
        raise ConfigError(
            f"{where} uses http:// to another machine, so the key would travel in clear text; use https://"
        )


def check_server(url: str, where: str, *, like: str) -> None:
    """Refuse what is no http(s) address of a collector or a proxy, which may hold a user and password. like: goes into
    the message, which shows no part of the address.

    Raises: ConfigError.
    """
    try:
        parts = urlsplit(url.strip())
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ConfigError(f"{where} is no address; it must look like {like} ({WRITTEN})")


def check_redis_url(url: str, where: str) -> None:
    """Refuse an address of Redis of which the client would leave out what it does not understand. No message shows a
    part of it: where a password holds a mark of its own, what seems to be the port or the path belongs to it.

    Raises: ConfigError.
    """
    like = f"{where} must look like rediss://host:6379/0 or unix:///path"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"{like}: its port is no number up to 65535; {WRITTEN}") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ConfigError(f"{like}: it begins with neither redis://, rediss:// nor unix://")
    if not url.isprintable() or " " in url:
        raise ConfigError(f"{like}: it holds spaces or line breaks")
    if parts.fragment or "@" in parts.path + parts.query:
        raise ConfigError(f"{like}: something stands behind its host that does not belong there; {WRITTEN}")
    if parts.scheme == "unix":
        if not parts.path.strip("/") or parts.hostname:
            raise ConfigError(f"{like}: no path stands behind unix://")
        return
    if not host or port == 0:
        raise ConfigError(f"{like}: {'its port is 0' if host else 'it names no host'}; {WRITTEN}")
    if not _DATABASE.fullmatch(parts.path):
        raise ConfigError(f"{like}: what stands behind its host is the number of a database, such as /0")


def leads_elsewhere(url: str) -> bool:
    """Whether a server's address leads to another machine, as it is written; one without a host does not."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return host != "" and not is_loopback(host)


def in_clear_text(url: str) -> str:
    """What to do when a password or data would travel to the Redis or PostgreSQL at `url` on another machine without
    TLS; empty when it would not, or when nobody can tell.
    """
    if not leads_elsewhere(url):
        return ""
    parts = urlsplit(url)
    if parts.scheme == "redis":
        return "begin it with rediss://"
    modes = parse_qs(parts.query).get("sslmode", [""])
    if parts.scheme.startswith("postgres") and modes[-1] not in ("require", "verify-ca", "verify-full"):
        return "add ?sslmode=verify-full"
    return ""


def origin(url: str) -> str:
    """`scheme://host:port` of a URL: what a key is bound to."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
