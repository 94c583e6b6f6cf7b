"""An agent of Pydantic AI without tools, with its default settings, but for the number of connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai  # type: ignore[import-not-found]
from pydantic_ai import Agent  # type: ignore[import-not-found]
from pydantic_ai.models.openai import OpenAIChatModel  # type: ignore[import-not-found]
from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]


@asynccontextmanager
async def connect(
    base_url: str, body: Mapping[str, Any], agents: int, folder: Path
) -> AsyncIterator[Callable[[int], Awaitable[str]]]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    http = openai.DefaultAsyncHttpxClient(limits=limits)
    async with openai.AsyncOpenAI(base_url=base_url, api_key="sk-bench", http_client=http) as client:
        system, user = (message["content"] for message in body["messages"])
        model = OpenAIChatModel(body["model"], provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, instructions=system, model_settings={"max_tokens": body["max_tokens"]})

        async def call(number: int) -> str:
            return str((await agent.run(user)).output)

        yield call
