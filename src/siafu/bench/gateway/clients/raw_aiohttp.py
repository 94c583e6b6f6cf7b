"""The floor: bare aiohttp, one POST, the answer decoded. No limits, retries, prices or records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec


@asynccontextmanager
async def connect(
    base_url: str, body: Mapping[str, Any], agents: int, folder: Path
) -> AsyncIterator[Callable[[int], Awaitable[str]]]:
    url = f"{base_url}/chat/completions"
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-bench"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:

        async def call(number: int) -> str:
            async with session.post(url, data=msgspec.json.encode(body)) as response:
                response.raise_for_status()
                answer = msgspec.json.decode(await response.read())
            return str(answer["choices"][0]["message"]["content"])

        yield call
