"""Where models are called: address, key, headers, time limits. Checked before anything is sent."""

from __future__ import annotations

import os
import re
import ssl
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode, urlsplit

import msgspec

from siafu.border.secrets import Secret
from siafu.border.text import preview
from siafu.border.urls import check_server, checked_base_url, is_loopback
from siafu.errors import ConfigError
from siafu.gateway.chat import MAX_ANSWER_BYTES

_OWN_HEADERS = {"authorization", "content-type", "content-length", "host", "transfer-encoding", "x-siafu-attempt"}


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `connect`: until the connection is made. `first_byte`: from then until the answer begins; None = for a
    plain call the total, for a stream as `idle`. `idle`: between two pieces of an answer. `total`: for the whole.
    """

    connect: float = 5.0
    first_byte: float | None = None
    idle: float = 60.0
    total: float = 600.0

    def __post_init__(self) -> None:
        if min(self.connect, self.first_byte or 1.0, self.idle, self.total) <= 0:
            raise ConfigError("timeouts are numbers of seconds above 0")


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """One place where models are called. `base_url`: such as `https://host/v1`. `headers`: sent with each request.

    key_header: the header that carries the key; `Authorization` carries it as a bearer token. query: parameters of each
    URL, such as an api-version. proxy: its address; None = what `HTTPS_PROXY`, `NO_PROXY` and the like say. ca_file:
    certificates to trust beside the system's (or those of `SSL_CERT_FILE`).
    """

    name: str
    base_url: str
    key: Secret | None = None
    headers: Mapping[str, str | Secret] = {}
    timeouts: Timeouts = Timeouts()
    max_answer_bytes: int = MAX_ANSWER_BYTES
    key_header: str = "Authorization"
    query: Mapping[str, str] = {}
    proxy: str | Secret | None = None
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        checked_base_url(self.base_url, f"the base URL of {self.name}")
        if not re.fullmatch(r"[A-Za-z0-9-]+", self.key_header):
            raise ConfigError(f"{preview(self.key_header, 40)!r}, the key_header of {self.name}, is no header's name")
        for name, value in self.headers.items():
            text = value.reveal() if isinstance(value, Secret) else value
            if name.lower() in _OWN_HEADERS:
                raise ConfigError(f"the header {name!r} of {self.name} is set by siafu itself")
            if not (name + text).isascii() or not (name + text).isprintable():
                raise ConfigError(f"the header {name!r} of {self.name} holds line breaks or non-ASCII characters")

    def url(self, path: str) -> str:
        """The address of a path of the API, such as `/models`."""
        return self.base_url.rstrip("/") + path + (f"?{urlencode(self.query)}" if self.query else "")

    def authorization(self) -> dict[str, str]:
        """The header with the key; none without a key."""
        if self.key is None:
            return {}
        bearer = "Bearer " if self.key_header.lower() == "authorization" else ""
        return {self.key_header: f"{bearer}{self.key.reveal()}"}

    def proxy_for(self, url: str) -> str | None:
        """The proxy on the way to `url`; what the environment names never stands before this machine itself. Raises:
        ConfigError for what is no address.
        """
        found = self._proxy_for(url)
        if found is not None:
            check_server(found, f"{self.proxy_from()} (the proxy of {self.name})", like="http://host:3128")
        return found

    def _proxy_for(self, url: str) -> str | None:
        if self.proxy is not None:
            return self.proxy.reveal() if isinstance(self.proxy, Secret) else self.proxy
        parts = urlsplit(url)
        host = parts.hostname or ""
        if is_loopback(host) or urllib.request.proxy_bypass(f"{host}:{parts.port}" if parts.port else host):
            return None
        return urllib.request.getproxies().get(parts.scheme)

    def proxy_from(self) -> str:
        """Who says that there is a proxy: `proxy`, or a variable of the environment."""
        name = f"{urlsplit(self.base_url).scheme}_proxy"
        if self.proxy is not None:
            return "proxy"
        return next((each for each in (name, name.upper(), "all_proxy", "ALL_PROXY") if os.environ.get(each)), "system")

    def trusted(self) -> ssl.SSLContext | Literal[True]:
        """The certificates to trust; True = the system's. Raises: ConfigError when `ca_file` cannot be used."""
        if self.ca_file is None:
            return True
        context = ssl.create_default_context()
        try:
            context.load_verify_locations(self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{self.ca_file}, the ca_file of {self.name}, cannot be used: {error}") from None
        return context
