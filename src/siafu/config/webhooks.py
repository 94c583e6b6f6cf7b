"""Webhooks as the settings name them."""

from __future__ import annotations

import base64
import contextlib
from urllib.parse import urlsplit

import msgspec

from siafu.border.secrets import Secret
from siafu.border.urls import check_web_url, is_loopback, is_public
from siafu.config.sections import WebhookSettings
from siafu.config.settings import resolve
from siafu.errors import ConfigError

_PREFIX = "whsec_"
_LEAST, _MOST = 24, 64  # bytes of a secret


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """tenants: whose tasks, None = everybody's. anywhere: whatever address its host has will do; else it has to be a
    public one.
    """

    url: str
    secret: Secret
    tenants: tuple[str, ...] | None
    anywhere: bool


def webhook(name: str, given: WebhookSettings) -> Webhook:
    """One of them. Raises: ConfigError."""
    place = f"webhooks.{name}"
    check_web_url(given.url, f"{place}.url", like="https://host/path", instead="its deliveries are signed")
    host = urlsplit(given.url).hostname or ""
    anywhere = given.allow_private or is_loopback(host)
    if not anywhere and _is_private(host):
        raise ConfigError(f"{place}.url names an address of no public network; if it shall: allow_private = true")
    return Webhook(
        url=given.url,
        secret=_checked_secret(resolve(given.secret, f"{place}.secret"), f"{place}.secret"),
        tenants=None if given.tenants is None else tuple(given.tenants),
        anywhere=anywhere,
    )


def signing_key(secret: Secret) -> bytes:
    """The bytes of a secret that was checked."""
    return base64.b64decode(secret.reveal().removeprefix(_PREFIX))


def _checked_secret(text: str, where: str) -> Secret:
    with contextlib.suppress(ValueError):
        key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        if text.startswith(_PREFIX) and _LEAST <= len(key) <= _MOST:
            return Secret(text)
    raise ConfigError(
        f"{where} has to be {_PREFIX} and {_LEAST} to {_MOST} random bytes in Base64; make one: "
        f"echo {_PREFIX}$(openssl rand -base64 32)"
    )


def _is_private(host: str) -> bool:
    """Whether a host is written as an address that is not public, or in a way that only some take for an address
    (127.1, 0x7f000001). A name is looked up when it is called.
    """
    last = host.rstrip(".").rpartition(".")[2]
    return (":" in host or last.isdigit() or last.startswith("0x")) and not is_public(host)
