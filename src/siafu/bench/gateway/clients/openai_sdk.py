"""The official OpenAI SDK with its default HTTP client and settings, but for the number of connections. It runs in its
own environment, without siafu.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai  # type: ignore[import-not-found]


@asynccontextmanager
async def connect(
    base_url: str, body: Mapping[str, Any], agents: int, folder: Path
) -> AsyncIterator[Callable[[int], Awaitable[str]]]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    http = openai.DefaultAsyncHttpxClient(limits=limits)
    async with openai.AsyncOpenAI(base_url=base_url, api_key="sk-bench", http_client=http) as client:

        async def call(number: int) -> str:
            answer = await client.chat.completions.create(**body)
            return str(answer.choices[0].message.content)

        yield call
