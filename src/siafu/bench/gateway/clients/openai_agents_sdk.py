"""An agent of the OpenAI Agents SDK without tools, with its default settings, but for the number of connections, and
without its traces, which would leave the machine.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import openai  # type: ignore[import-not-found]

sdk: Any = importlib.import_module("agents")  # by name: type checkers find other packages of this name


@asynccontextmanager
async def connect(
    base_url: str, body: Mapping[str, Any], agents: int, folder: Path
) -> AsyncIterator[Callable[[int], Awaitable[str]]]:
    sdk.set_tracing_disabled(True)
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    http = openai.DefaultAsyncHttpxClient(limits=limits)
    async with openai.AsyncOpenAI(base_url=base_url, api_key="sk-bench", http_client=http) as client:
        system, user = (message["content"] for message in body["messages"])
        agent = sdk.Agent(
            name="support",
            instructions=system,
            model=sdk.OpenAIChatCompletionsModel(model=body["model"], openai_client=client),
            model_settings=sdk.ModelSettings(max_tokens=body["max_tokens"]),
        )

        async def call(number: int) -> str:
            return str((await sdk.Runner.run(agent, user)).final_output)

        yield call
