"""The one door to Redis. It carries only what may be lost: nothing here is ever the truth."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from typing import Any

from siafu.border.secrets import Secret, redact
from siafu.border.text import preview
from siafu.errors import ConfigError, StoreError

CONNECTIONS = 4  # at most, a process


class RedisDoor:
    """One Redis. `timeout`: seconds that a command may take, connecting included. Connections are made when needed, in
    the event loop that needs them.

    Raises: ConfigError when the address cannot be used or the library is not installed.
    """

    def __init__(self, url: Secret, *, timeout: float = 0.25) -> None:
        try:
            self._library: Any = importlib.import_module("redis.asyncio")
            self._errors: Any = importlib.import_module("redis.exceptions")
        except ModuleNotFoundError:
            raise ConfigError(
                "redis_url (or REDIS_URL) is set, and the Redis client is not installed: pip install 'siafu[redis]', "
                "or unset it"
            ) from None
        self._url = url
        self._timeout = timeout
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._new()

    def _new(self) -> Any:
        try:
            return self._library.Redis.from_url(
                self._url.reveal(),
                protocol=2,
                max_connections=CONNECTIONS,
                socket_timeout=self._timeout,
                socket_connect_timeout=self._timeout,
                retry=None,
                decode_responses=False,
            )
        except ValueError as error:
            raise ConfigError(f"redis_url cannot be used: {preview(redact(str(error)), 200)}") from None

    async def run(self, script: str, keys: Sequence[str], values: Sequence[int | str]) -> list[int]:
        """Run a Lua script that answers with integers.

        Raises: StoreError when Redis does not answer in time, or answers with an error.
        """
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client, self._loop = self._new(), loop
        try:
            async with asyncio.timeout(self._timeout):
                found = await self._client.eval(script, len(keys), *keys, *values)
            return [int(each) for each in found]
        except (self._errors.RedisError, OSError, TimeoutError, ValueError, TypeError) as error:
            await self.aclose()  # what is still to come on its connections is not for the next command
            text = f"{type(error).__name__}: {preview(redact(str(error)), 200)}"
            raise StoreError(f"Redis did not answer ({text})") from None

    async def aclose(self) -> None:
        """Close the connections. Idempotent; the next command opens new ones."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()
