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
    command = [sys.executable, "-m", "siafu", "sim", "--port", "0", "--json", "--parent-pid", str(os.getpid())]
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=None
    )
    try:
        if process.stdout is None:
            raise ConfigError("the simulated endpoint has no output to read")
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
            url = str(msgspec.json.decode(line)["url"])
        except (TimeoutError, msgspec.DecodeError, KeyError) as error:
            raise ConfigError(f"the simulated endpoint did not start: {error or 'no answer'}") from None
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
