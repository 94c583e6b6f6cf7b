"""The one door to Redis. It carries only what may be lost: nothing here is ever the truth.

It is one server, over TCP, TLS or a socket, or a cluster: a node that answers MOVED or ASK belongs to one, and is asked
as such from then on. No command is newer than Redis 6.2, so Valkey knows them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from siafu.border.secrets import Secret, redact
from siafu.border.text import preview
from siafu.border.urls import check_redis_url
from siafu.errors import ConfigError, StoreError

T = TypeVar("T")
CONNECTIONS = 4  # at most, a door; as many commands are under way, the others wait for their turn
PATIENCE = 4  # times its own time that a command may wait for that


class RedisDoor:
    """One Redis. `timeout`: seconds that a command may take, connecting included; with many at once it may wait for its
    turn before. Connections are made when needed, in the event loop that needs them. Cancelled, a command may or may
    not have been carried out.

    Raises: ConfigError when the address cannot be used or the library is not installed.
    """

    def __init__(self, url: Secret, *, timeout: float = 0.25) -> None:
        try:
            self._library: Any = importlib.import_module("redis.asyncio")
            self.errors: Any = importlib.import_module("redis.exceptions")
        except ModuleNotFoundError:
            raise ConfigError(
                "redis_url (or REDIS_URL) is set, and the Redis client is not installed: pip install 'siafu[redis]', "
                "or unset it"
            ) from None
        check_redis_url(url.reveal(), "redis_url")
        self._url = url
        self._timeout = timeout
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._faults = 0
        self._cluster = False
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        client = self._new()
        try:
            client.connection_pool.make_connection()  # not connected; it takes all that it knows
        except (TypeError, ValueError) as error:
            raise ConfigError(f"redis_url cannot be used: {preview(redact(str(error)), 200)}") from None
        options = client.get_connection_kwargs()
        if options.get("ssl_cert_reqs", "required") != "required" or not options.get("ssl_check_hostname", True):
            raise ConfigError(
                "redis_url turns the check of certificates off: leave ssl_cert_reqs and ssl_check_hostname away, and "
                "name a certificate authority of your own with ?ssl_ca_certs=/path"
            )
        if (trusted := options.get("ssl_ca_certs")) and not os.access(trusted, os.R_OK):
            raise ConfigError(f"redis_url has ssl_ca_certs={preview(trusted, 200)}, and that file cannot be read")

    def _new(self) -> Any:
        kind = self._library.RedisCluster if self._cluster else self._library.Redis
        try:
            return kind.from_url(
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
        """Run a Lua script that answers with integers. Raises: as `ask`."""

        async def work(client: Any) -> list[int]:
            return [int(each) for each in await client.eval(script, len(keys), *keys, *values)]

        return await self.ask(work)

    async def ask(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """What `work` makes of the library's client. It may be called twice.

        Raises: StoreError when Redis does not answer in time, or answers with an error; also to those who wait for
            their turn meanwhile, as each would have to find out for itself.
        """
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._client, self._loop, self._turns = None, loop, asyncio.Semaphore(CONNECTIONS)
        turns, faults = self._turns, self._faults
        try:
            async with asyncio.timeout(PATIENCE * self._timeout):
                await turns.acquire()
        except TimeoutError:
            raise StoreError("Redis did not answer (too many commands wait for it)") from None
        try:
            if faults != self._faults:
                raise StoreError("Redis did not answer (nor to the commands before)")
            return await self._answer(work)
        finally:
            turns.release()

    async def _answer(self, work: Callable[[Any], Awaitable[T]]) -> T:
        errors = self.errors
        try:
            async with asyncio.timeout(self._timeout):
                try:
                    return await self._with_client(work)
                except errors.AskError:  # MOVED is one, too
                    await self.aclose()
                    self._cluster = True
                    return await self._with_client(work)
        except (
            errors.RedisError, errors.RedisClusterException, OSError,
            RuntimeError,  # of uvloop, for a connection that is closed
            AttributeError,  # of the library, for one that another command closes while it is made
            ValueError, TypeError, LookupError,  # an answer of another form
        ) as error:  # fmt: skip
            self._faults += 1
            await self.aclose()  # what is still to come on its connections is not for the next command
            text = f"{type(error).__name__}: {preview(redact(str(error)), 200)}".removesuffix(": ")
            raise StoreError(f"Redis did not answer ({text})") from None

    async def _with_client(self, work: Callable[[Any], Awaitable[T]]) -> T:
        if self._client is None:
            self._client = self._new()
        client = self._client
        try:
            return await work(client)
        finally:
            if client is not self._client:  # closed for another command meanwhile, and perhaps connected anew for this
                await self._closed(client)

    async def aclose(self) -> None:
        """Close the connections. Idempotent; the next command opens new ones."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await self._closed(client)

    async def _closed(self, client: Any) -> None:
        """Close all that a client has opened. One of a cluster closes nothing unless it knows the cluster, and has
        connections also while it does not: when a node that it asks is gone, and when it was closed for another
        command.
        """
        with contextlib.suppress(self.errors.RedisError, OSError):  # of a connection that is gone
            await client.aclose()
        nodes = getattr(client, "nodes_manager", None)
        for each in () if nodes is None else (*nodes.nodes_cache.values(), *nodes.startup_nodes.values()):
            with contextlib.suppress(self.errors.RedisError, OSError):
                await each.disconnect()


class RedisStream:
    """A stream of notes with one group of readers: each note goes to one of them. At most about `most` notes wait.

    Raises (every method): StoreError.
    """

    def __init__(self, door: RedisDoor, name: str, group: str, *, most: int) -> None:
        self._door = door
        self._name, self._group = name, group
        self._most = most

    async def add(self, notes: Sequence[str]) -> None:
        async def work(client: Any) -> None:
            pipe = client.pipeline(transaction=False)
            for note in notes:
                pipe.xadd(self._name, {"task": note}, maxlen=self._most, approximate=True)
            await pipe.execute()

        await self._door.ask(work)

    async def join(self) -> None:
        """Make the group, unless it is there; it begins with what waits already."""
        errors = self._door.errors

        async def work(client: Any) -> None:
            try:
                await client.xgroup_create(self._name, self._group, id="0", mkstream=True)
            except errors.ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise

        await self._door.ask(work)

    async def read(self, reader: str, most: int, seconds: float) -> list[bytes]:
        """Which notes are there for `reader`, at most `most`; none after so many seconds. They wait to be dropped."""

        async def work(client: Any) -> list[bytes]:
            streams = {self._name: ">"}
            found = await client.xreadgroup(self._group, reader, streams, count=most, block=int(1000 * seconds))
            return [note for _, notes in found or () for note, _ in notes]

        return await self._door.ask(work)

    async def drop(self, notes: Sequence[bytes]) -> None:
        async def work(client: Any) -> None:
            pipe = client.pipeline(transaction=False)
            pipe.xack(self._name, self._group, *notes)
            pipe.xdel(self._name, *notes)
            await pipe.execute()

        await self._door.ask(work)

    async def leave(self, reader: str | bytes) -> None:
        """Remove a reader, with what it has read and not dropped."""
        name, group = self._name, self._group
        kept = await self._door.ask(lambda client: client.xpending_range(name, group, "-", "+", 100, reader))
        if kept:
            await self.drop([each["message_id"] for each in kept])
        await self._door.ask(lambda client: client.xgroup_delconsumer(name, group, reader))

    async def tidy(self, seconds: float) -> int:
        """Remove readers that have not asked for so many seconds; one that lives is back when it asks. Returns how
        many.
        """
        readers = await self._door.ask(lambda client: client.xinfo_consumers(self._name, self._group))
        idle = [each["name"] for each in readers if each["idle"] > 1000 * seconds]
        for reader in idle:
            await self.leave(reader)
        return len(idle)
