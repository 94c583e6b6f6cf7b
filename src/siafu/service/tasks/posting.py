"""One POST to an address of the operator's, and nowhere else: no redirect, no proxy, no address of a private network
unless that is allowed. What is checked is the address that is connected to, however it was written or found.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping

import aiohttp

from siafu import __version__
from siafu.border.secrets import redact
from siafu.border.text import preview
from siafu.border.urls import is_public

SECONDS = 15.0  # for one POST
_TIMEOUT = aiohttp.ClientTimeout(total=SECONDS, connect=5.0)


def _public_only(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket for an address. Raises: OSError when it is not public."""
    family, kind, protocol, _, place = address
    if not is_public(str(place[0])):
        raise OSError(errno.EACCES, f"{place[0]} is an address of no public network")
    return socket.socket(family, kind, protocol)


class Poster:
    """Posts. anywhere: whatever address a host has will do. To be closed."""

    def __init__(self, *, anywhere: bool) -> None:
        connector = aiohttp.TCPConnector(socket_factory=None if anywhere else _public_only, limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=_TIMEOUT, trust_env=False, cookie_jar=aiohttp.DummyCookieJar(),
            headers={"user-agent": f"siafu/{__version__}"},
        )  # fmt: skip

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int | str:
        """The status of the answer, whose body is not read; or, as a text, why there is none."""
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as reply:
                return reply.status
        except (aiohttp.ClientError, TimeoutError, OSError, UnicodeError) as error:  # the last: a label too long
            return redact(preview(f"{type(error).__name__}: {error}"))

    async def aclose(self) -> None:
        await self._session.close()
