"""LiteLLM's Router over one deployment, with its default settings."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # its own copy of the prices instead of the network's

from litellm import Router  # type: ignore[import-not-found]


@asynccontextmanager
async def connect(
    base_url: str, body: Mapping[str, Any], agents: int, folder: Path
) -> AsyncIterator[Callable[[int], Awaitable[str]]]:
    upstream = {"model": f"openai/{body['model']}", "api_base": base_url, "api_key": "sk-bench"}
    router = Router(model_list=[{"model_name": body["model"], "litellm_params": upstream}])

    async def call(number: int) -> str:
        answer = await router.acompletion(**body)
        return str(answer.choices[0].message.content)

    yield call
