"""One POST to an address of the operator's, and nowhere else: no redirect, no proxy, no address of a private network
unless that is allowed. The address that was checked is the one that is connected to.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from socket import AddressFamily

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from siafu import __version__
from siafu.border.secrets import redact
from siafu.border.text import preview
from siafu.border.urls import is_public

SECONDS = 15.0  # for one POST
_TIMEOUT = aiohttp.ClientTimeout(total=SECONDS, connect=5.0)


class _PublicOnly(AbstractResolver):
    """Names whose addresses are not public are unknown."""

    def __init__(self) -> None:
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: AddressFamily = AddressFamily.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        public = [each for each in found if is_public(each["host"])]
        if not public:
            raise OSError(errno.EACCES, f"{preview(host, 100)} has an address of no public network")
        return public

    async def close(self) -> None:
        await self._inner.close()


class Poster:
    """Posts. anywhere: whatever address a host has will do. To be closed."""

    def __init__(self, *, anywhere: bool) -> None:
        connector = aiohttp.TCPConnector(resolver=None if anywhere else _PublicOnly(), limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=_TIMEOUT, trust_env=False, cookie_jar=aiohttp.DummyCookieJar(),
            headers={"user-agent": f"siafu/{__version__}"},
        )  # fmt: skip

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int | str:
        """The status of the answer, whose body is not read; or, as a text, why there is none."""
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as reply:
                return reply.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return redact(preview(f"{type(error).__name__}: {error}"))

    async def aclose(self) -> None:
        await self._session.close()
