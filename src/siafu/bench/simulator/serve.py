"""A simulator as a process: listens, says where, and ends when told to or when its parent dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web

from siafu.errors import ConfigError

POLL = 0.25  # seconds between looks at the parent where the system cannot tell us


async def serve(
    app: web.Application, host: str, port: int, ready: Callable[[str], None], *, parent_pid: int | None = None
) -> None:
    """Serve until SIGTERM, SIGINT or the end of process `parent_pid`. `port` 0 = any free one. `ready` is told once:
    the URL, without a path. A handler is cancelled when its client leaves.

    Raises: ConfigError when the address cannot be used.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    watch = asyncio.create_task(_ended(parent_pid, stop)) if parent_pid else None
    try:
        site = web.TCPSite(runner, host, port, backlog=4096)
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}; use --port 0") from None
        ready(f"http://{f'[{host}]' if ':' in host else host}:{runner.addresses[0][1]}")
        await stop.wait()
    finally:
        if watch:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
        await runner.cleanup()


async def _ended(pid: int, stop: asyncio.Event) -> None:
    """Set `stop` once process `pid` is dead, also while nobody has collected it yet."""
    loop = asyncio.get_running_loop()
    try:
        if not hasattr(os, "pidfd_open"):
            while True:
                os.kill(pid, 0)
                await asyncio.sleep(POLL)
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        stop.set()
        return
    try:
        loop.add_reader(handle, stop.set)
        await stop.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
