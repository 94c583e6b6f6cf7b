"""What can be learned of an upstream without a completion: its models, its clock, and where the way to it ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec

from siafu.border.canonical import loads
from siafu.border.text import clean, preview
from siafu.border.urls import is_loopback
from siafu.errors import BoundaryError
from siafu.gateway.chat import MAX_ANSWER_BYTES
from siafu.gateway.classify import malformed

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


async def obstacle(base_url: str) -> str:
    """Why no connection to the host of `base_url` can be made, and what to do; empty when one can. No key is sent.

    It goes straight to the host: only of use where no proxy is in between.
    """
    parts = urlsplit(base_url)
    host, tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=tls or None)
        writer.transport.abort()
    except socket.gaierror:
        return f"the name {preview(host, 100)} is not known: check its spelling, and this machine's DNS and network"
    except ConnectionRefusedError:
        own = "; start the server, or correct the port" if is_loopback(host) else "; check the address and port"
        return f"nothing listens on port {port} of {preview(host, 100)}{own}"
    except TimeoutError:
        return f"{preview(host, 100)} does not answer on port {port}: is a firewall, VPN or HTTPS_PROXY in between?"
    except ssl.SSLCertVerificationError as error:
        return (
            f"its certificate is refused ({preview(error.verify_message, 100)}): for a private authority set "
            "SSL_CERT_FILE; for an expired one check this machine's clock first"
        )
    except ssl.SSLError:
        return f"port {port} does not speak TLS: should the address begin with http://, or have another port?"
    except OSError as error:
        return f"no connection: {error.strerror or error}"
    return ""
