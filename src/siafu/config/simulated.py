"""The endpoint that stands in when none is configured: `siafu sim` as a process of its own, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

import msgspec

from siafu.errors import ConfigError

START_SECONDS = 20.0
NOTICE = (
    "no endpoint is configured, so a SIMULATED one answers: no model runs and nothing is billed "
    "(set OPENAI_API_KEY, or SIAFU_BASE_URL and SIAFU_MODEL, for a real one)"
)


@contextlib.asynccontextmanager
async def simulated(*arguments: str) -> AsyncIterator[str]:
    """Run the simulated endpoint on a free port while the block runs; yields its base URL (`http://.../v1`).

    The process ends with the block, and also when this process is killed. `arguments`: further `siafu sim` options.

    Raises: ConfigError when it does not start.
    """
    command = [sys.executable, "-P", "-m", "siafu", "sim", "--port", "0", "--json", "--parent-pid", str(os.getpid())]
    process = await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is ours: what is in flight still gets its answers
    )
    try:
        yield await _url(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await process.wait()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise


async def _url(process: asyncio.subprocess.Process) -> str:
    if process.stdout is None:
        raise ConfigError("the simulated endpoint has no output to read")
    try:
        line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
        return str(msgspec.json.decode(line)["url"])
    except TimeoutError:
        raise ConfigError(f"the simulated endpoint did not start within {START_SECONDS:g} s") from None
    except (msgspec.DecodeError, KeyError, TypeError):
        raise ConfigError("the simulated endpoint did not start; `siafu sim` says why") from None
