"""LangChain's ChatOpenAI with its default settings, but for the number of connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai  # type: ignore[import-not-found]
from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]


@asynccontextmanager
async def connect(
    base_url: str, body: Mapping[str, Any], agents: int, folder: Path
) -> AsyncIterator[Callable[[int], Awaitable[str]]]:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with openai.DefaultAsyncHttpxClient(limits=limits) as http:
        chat = ChatOpenAI(
            model=body["model"],
            base_url=base_url,
            api_key="sk-bench",
            max_tokens=body["max_tokens"],
            http_async_client=http,
        )
        messages = [(message["role"], message["content"]) for message in body["messages"]]

        async def call(number: int) -> str:
            return str((await chat.ainvoke(messages)).content)

        yield call
