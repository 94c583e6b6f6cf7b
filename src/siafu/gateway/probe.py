"""What can be learned of an upstream without a completion: its models, its clock, and where the way to it ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec

from siafu.border.canonical import loads
from siafu.border.secrets import redact
from siafu.border.text import clean, preview
from siafu.border.urls import is_loopback
from siafu.errors import BoundaryError
from siafu.gateway.chat import MAX_ANSWER_BYTES
from siafu.gateway.classify import malformed
from siafu.gateway.upstream import Upstream

CONNECT_SECONDS = 5.0
MAX_MODELS = 10_000


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What an upstream says of itself. `models`: their ids. `seconds`: until it had answered. `ahead`: seconds that our
    clock is ahead of its own (which tells whole seconds), None when it does not tell.
    """

    models: tuple[str, ...]
    seconds: float
    ahead: float | None


def parse_models(body: bytes, content_type: str) -> tuple[str, ...]:
    """The ids in the body of `GET /models`: a list of objects with `id` or `name`, bare or under `data` or `models`.

    Raises: MalformedReply.
    """
    try:
        found = loads(body, max_bytes=MAX_ANSWER_BYTES, what="it")
    except BoundaryError as error:
        raise malformed(error.message, content_type=content_type, body=body) from None
    if isinstance(found, dict):
        found = found.get("data", found.get("models"))
    if not isinstance(found, list):
        raise malformed("it is no list of models", content_type=content_type, body=body)
    named = (_id(each) for each in found[:MAX_MODELS])
    return tuple(clean(name)[:200] for name in named if name)


def _id(model: Any) -> str:
    name = (model.get("id") or model.get("name")) if isinstance(model, dict) else model
    return name if isinstance(name, str) else ""


def clock_ahead(headers: Mapping[str, str], wall: float) -> float | None:
    """Seconds that `wall` (since 1970) is ahead of the `date` header (lower-case names); None without a usable one."""
    try:
        told = parsedate_to_datetime(headers.get("date", ""))
        return wall - told.replace(tzinfo=told.tzinfo or UTC).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


async def obstacle(upstream: Upstream) -> str:
    """Why no connection to the host of `upstream`, or to the proxy before it, can be made, and what to do; empty when
    one can. No key is sent.
    """
    proxy = upstream.proxy_for(upstream.base_url)
    parts = urlsplit(proxy or upstream.base_url)
    tls = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if tls else 80)
    trusted: ssl.SSLContext | bool | None = upstream.trusted() if tls else None
    blocked = await _blocked(host, port, trusted)
    if blocked and proxy:
        return f"the way leads through the proxy {preview(redact(proxy), 100)}: {blocked}"
    if not (tls or blocked or proxy) and await _speaks_tls(host, port):
        return f"port {port} speaks TLS: the address should begin with https://"
    return blocked


async def _blocked(host: str, port: int, trusted: ssl.SSLContext | bool | None) -> str:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=trusted)
        writer.transport.abort()
    except socket.gaierror:
        return f"the name {preview(host, 100)} is not known: check its spelling, and this machine's DNS and network"
    except ConnectionRefusedError:
        own = "; start the server, or correct the port" if is_loopback(host) else "; check the address and port"
        return f"nothing listens on port {port} of {preview(host, 100)}{own}"
    except TimeoutError:
        if trusted and not await _blocked(host, port, None):
            return f"port {port} says nothing of TLS: should the address begin with http://, or have another port?"
        return f"{preview(host, 100)} does not answer on port {port}: is a firewall, VPN or HTTPS_PROXY in between?"
    except ssl.SSLCertVerificationError as error:
        return _distrusted(error, host)
    except ssl.SSLError as error:
        if error.reason == "WRONG_VERSION_NUMBER":
            return f"port {port} does not speak TLS: should the address begin with http://, or have another port?"
        return f"port {port} and this machine agree on no way to speak TLS ({error.reason}): is the server too old?"
    except ConnectionError as error:
        if trusted:
            return f"port {port} breaks off when TLS begins: does it speak TLS at all, or only versions below 1.2?"
        return f"no connection: {error.strerror or type(error).__name__}"
    except OSError as error:
        return f"no connection: {error.strerror or error}"
    return ""


def _distrusted(error: ssl.SSLCertVerificationError, host: str) -> str:
    """What to do about a certificate, by OpenSSL's number of what is wrong with it (x509_vfy.h)."""
    said = preview(error.verify_message, 100)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    return {
        9: f"its certificate is not valid yet: check this machine's clock, which says {today}",
        10: f"its certificate has expired: renew it at the server, or set this machine's clock, which says {today}",
        62: f"its certificate is for another name than {preview(host, 100)}: check the address ({said})",
        64: f"its certificate is for another address than {preview(host, 100)}: use the host's name ({said})",
    }.get(
        error.verify_code,
        f"its certificate is from nobody this machine trusts ({said}): set ca_file of the upstream, or SSL_CERT_FILE, "
        "to a file with the certificate of its authority",
    )


async def _speaks_tls(host: str, port: int) -> bool:
    """Whether a TLS handshake gets an answer, be its certificate good or not."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=True)
        writer.transport.abort()
    except ssl.SSLCertVerificationError:
        return True
    except OSError:
        return False
    return True
